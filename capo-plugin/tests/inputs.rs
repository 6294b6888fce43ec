//! Which optional inputs a component sees: those that it asked for when it was made, and no others.

use std::sync::atomic::{AtomicU64, Ordering};

use capo_plugin::prelude::*;
use capo_plugin::testing::{self, Fixture, Listener};

/// Records a set of flags: the optional inputs that it finds in its batch, whether it asked for them or not.
#[derive(Deserialize)]
struct Peek {
    /// The flags that it asks for.
    asks: u64,
    /// How often it was asked what it asks for.
    #[serde(skip)]
    asked: AtomicU64,
}

impl Peek {
    fn look(&self, ctx: &mut Ctx<'_>, batch: &Batch<'_>) {
        let found = [
            (Inputs::OLD_LOGPS, batch.old_logps.is_some() && batch.old_logps().is_ok()),
            (Inputs::REF_LOGPS, batch.ref_logps.is_some() && batch.ref_logps().is_ok()),
            (Inputs::ENTROPY, batch.entropy.is_some() && batch.entropy().is_ok()),
            (Inputs::LAST_LAYER, batch.last_layer.is_some() && batch.last_layer().is_ok()),
            (Inputs::OPTIMIZER_STATE, batch.optimizer_state.is_some() && batch.optimizer_state().is_ok()),
            (Inputs::ROLLOUT_CONTEXT, ctx.rollout_context().is_ok()),
            (Inputs::SAMPLER_TOP_K, ctx.sampler_top_k().is_ok()),
            (Inputs::ALIGNMENT, ctx.alignment().is_ok()),
        ];
        let seen = found.iter().filter(|(_, found)| *found).fold(0, |seen, (input, _)| seen | input.0);
        ctx.record("seen", seen as f64);
        ctx.record("asked", self.asked.load(Ordering::Relaxed) as f64);
    }

    fn answer(&self) -> Inputs {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Inputs(self.asks)
    }
}

impl AdvantageEstimator for Peek {
    fn estimate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, _: &mut [f32]) -> Result<(), PluginError> {
        self.look(ctx, batch);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.answer()
    }
}

impl Objective for Peek {
    fn evaluate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, _: PerToken<'_>) -> Result<(), PluginError> {
        self.look(ctx, batch);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.answer()
    }
}

impl PreBackwardMask for Peek {
    fn mask(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, _: &mut [u8]) -> Result<(), PluginError> {
        self.look(ctx, batch);
        Ok(())
    }

    fn step_end(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, _: &[u8], _: bool) -> Result<(), PluginError> {
        self.look(ctx, batch);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.answer()
    }
}

#[test]
fn a_component_sees_what_it_asked_for_and_no_more() {
    // A batch that holds every optional input.
    let fixture = Fixture::new(2, 3);
    let (batch, context, mut arrays) = (fixture.batch(), fixture.context(), [vec![0.0; 6], vec![0.0; 6]]);
    for asks in 0..=Inputs::KNOWN.0 {
        let table = format!("asks = {asks}");
        let mut listener = Listener::new(&context);
        let mut advantage = testing::advantage::<Peek>(&table).unwrap();
        advantage.estimate(&mut listener, &batch, &mut arrays[0]).unwrap();
        let mut objective = testing::objective::<Peek>(&table).unwrap();
        let [loss, slope] = &mut arrays;
        objective.evaluate(&mut listener, &batch, loss, slope).unwrap();
        let mut mask = testing::mask::<Peek>(&table).unwrap();
        mask.mask(&mut listener, &batch, &mut [1; 6]).unwrap();
        mask.step_end(&mut listener, &batch, &[1; 6], true).unwrap();
        let numbers = |wanted| {
            listener.records.numbers.iter().filter(move |(name, _)| name == wanted).map(|(_, value)| *value as u64)
        };
        assert_eq!(numbers("seen").collect::<Vec<_>>(), [asks; 4]);
        assert_eq!(numbers("asked").collect::<Vec<_>>(), [1; 4]);
        assert_eq!([advantage.inputs(), objective.inputs(), mask.inputs()], [Inputs(asks); 3]);
    }
}

#[test]
fn what_was_not_asked_for_is_named() {
    #[derive(Deserialize)]
    struct Careless {}
    impl PreBackwardMask for Careless {
        fn mask(&mut self, _: &mut Ctx<'_>, batch: &Batch<'_>, _: &mut [u8]) -> Result<(), PluginError> {
            batch.entropy().map(drop)
        }
    }
    let error = Fixture::new(1, 1).mask(&mut testing::mask::<Careless>("").unwrap()).unwrap_err();
    let sentence = "`entropy` is not in this batch (return `Inputs::ENTROPY` from `inputs`)";
    assert_eq!(error.to_string(), format!("component `test.mask`: {sentence}"));
}
