//! A component sees the inputs that it asked for when it was made, and no others. Each lies where
//! the host put it: nothing is copied on the way.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use capo_plugin::fields::Value;
use capo_plugin::prelude::*;
use capo_plugin::testing::{self, Fixture, Records};
use capo_plugin::{Completion, ErrorKind, Sink};

/// Addresses by name; they are below 2^53, so that a number records them exactly.
type Addresses = BTreeMap<String, usize>;

/// The optional inputs, with the names under which their addresses are recorded.
const OPTIONAL: [(Inputs, &[&str]); 7] = [
    (Inputs::OLD_LOGPS, &["old_logps"]),
    (Inputs::REF_LOGPS, &["ref_logps"]),
    (Inputs::ENTROPY, &["entropy"]),
    (
        Inputs::LAST_LAYER,
        &[
            "hidden",
            "shape",
            "topk_ids",
            "topk_logits",
            "logsumexp",
            "action_logits",
        ],
    ),
    (
        Inputs::OPTIMIZER_STATE,
        &["weight", "exp_avg", "exp_avg_sq"],
    ),
    (Inputs::ROLLOUT_CONTEXT, &["context"]),
    (Inputs::SAMPLER_TOP_K, &["top_k"]),
];

fn of<T>(values: &[T]) -> usize {
    values.as_ptr().addr()
}

/// Where everything in `batch` lies, tensors and their shapes included.
fn addresses(batch: &Batch<'_>) -> Addresses {
    let mut found: Vec<(&str, usize)> = Vec::new();
    for (field, value) in batch.values() {
        let address = match value {
            Value::Bits(values) => of(values),
            Value::Ids(values) => of(values),
            Value::Floats(values) => of(values),
            Value::Tensor(tensor) => tensor.address() as usize,
            _ => continue,
        };
        found.push((field.name, address));
    }
    found.extend(
        batch
            .last_layer()
            .ok()
            .map(|layer| ("shape", of(layer.hidden.shape()))),
    );
    found.extend(
        batch
            .rollout_context()
            .ok()
            .map(|context| ("context", of(context.sampler_logps()))),
    );
    found.extend(
        batch
            .sampler_top_k()
            .ok()
            .map(|top_k| ("top_k", of(top_k.ids(0, 0)))),
    );
    named(&found)
}

fn named(found: &[(&str, usize)]) -> Addresses {
    found
        .iter()
        .map(|(name, address)| ((*name).to_owned(), *address))
        .collect()
}

/// Reports what it sees and where, whether it asked for it or not.
#[keys]
struct Witness {
    /// The flags that it asks for.
    #[key]
    asks: u64,
    /// How often it was asked what it asks for.
    asked: AtomicU64,
}

impl Witness {
    fn tell(&self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: &[(&str, usize)]) {
        let mut seen = addresses(batch);
        seen.extend(named(out));
        seen.insert("asked".into(), self.asked.load(Ordering::Relaxed) as usize);
        for (name, address) in seen {
            ctx.record(&name, address as f64);
        }
        // Recorded arrays are read where they lie, too.
        ctx.record("logps_again", of(batch.logps) as f64);
        ctx.record_tokens("logps_again", batch.logps);
    }

    fn answer(&self) -> Inputs {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Inputs(self.asks)
    }
}

impl Advantage for Witness {
    fn estimate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        self.tell(ctx, batch, &[("out", of(advantages))]);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.answer()
    }
}

impl Objective for Witness {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError> {
        self.tell(
            ctx,
            batch,
            &[("out", of(out.losses)), ("slope", of(out.dloss_dlogp))],
        );
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.answer()
    }
}

impl Mask for Witness {
    fn mask(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        self.tell(ctx, batch, &[("out", of(token_mask))]);
        Ok(())
    }

    fn step_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &[u8],
        _: bool,
    ) -> Result<(), PluginError> {
        self.tell(ctx, batch, &[("out", of(token_mask))]);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        self.answer()
    }
}

/// Hears the addresses.
#[derive(Default)]
struct Ears(Addresses);

impl Sink for Ears {
    fn record(&mut self, _: &str, name: &str, value: f64) {
        self.0.insert(name.to_owned(), value as usize);
    }

    fn record_tokens(&mut self, _: &str, name: &str, values: &[f32]) {
        assert_eq!(self.0.remove(name), Some(of(values)), "{name}");
    }

    fn warn(&mut self, _: &str, text: &str) {
        panic!("{text}");
    }
}

#[test]
fn every_component_sees_what_it_asked_for_and_the_hosts_own_arrays() {
    let fixture = Fixture::new(3, 5);
    let context = fixture.context();
    let batch = fixture.batch_with(&context);
    let (mut out, mut slope, mut token_mask) = ([0.0; 15], [0.0; 15], [1; 15]);
    let mut all = addresses(&batch);
    all.extend(named(&[("asked", 1)]));
    assert_eq!(all.len(), 23, "{all:?}");
    let seen = |asks: Inputs, out: &[(&str, usize)]| {
        let withheld = |name: &String| {
            OPTIONAL
                .iter()
                .any(|(flag, names)| names.contains(&name.as_str()) && !asks.contains(*flag))
        };
        let mut seen = named(out);
        seen.extend(all.clone().into_iter().filter(|(name, _)| !withheld(name)));
        seen
    };
    let heard = |call: &mut dyn FnMut(&mut Ears) -> Result<(), PluginError>| {
        let mut ears = Ears::default();
        call(&mut ears).unwrap();
        ears.0
    };
    for asks in (0..=Inputs::KNOWN.0).map(Inputs) {
        let table = format!("asks = {}", asks.0);

        let mut advantage = testing::advantage::<Witness>(&table).unwrap();
        let told = heard(&mut |ears| advantage.estimate(ears, &batch, &mut out));
        assert_eq!(told, seen(asks, &[("out", of(&out))]));

        let mut objective = testing::objective::<Witness>(&table).unwrap();
        let told = heard(&mut |ears| objective.evaluate(ears, &batch, &mut out, &mut slope));
        assert_eq!(
            told,
            seen(asks, &[("out", of(&out)), ("slope", of(&slope))])
        );

        let mut mask = testing::mask::<Witness>(&table).unwrap();
        let told = heard(&mut |ears| mask.mask(ears, &batch, &mut token_mask));
        assert_eq!(told, seen(asks, &[("out", of(&token_mask))]));
        let told = heard(&mut |ears| mask.step_end(ears, &batch, &token_mask, true));
        assert_eq!(told, seen(asks, &[("out", of(&token_mask))]));
        assert_eq!(
            [advantage.inputs(), objective.inputs(), mask.inputs()],
            [asks; 3]
        );
    }
}

#[test]
fn what_was_not_asked_for_is_named() {
    #[keys]
    struct Careless {
        /// Read the context.
        #[key]
        reads_context: bool,
    }
    impl Mask for Careless {
        fn mask(
            &mut self,
            _: &mut Ctx<'_>,
            batch: &Batch<'_>,
            _: &mut [u8],
        ) -> Result<(), PluginError> {
            if self.reads_context {
                batch.rollout_context().map(drop)
            } else {
                batch.entropy().map(drop)
            }
        }
    }
    let sentences = [
        (
            false,
            "`entropy` is not in this batch (return `Inputs::ENTROPY` from `inputs`)",
        ),
        (
            true,
            "`rollout_context` is not in this batch (return `Inputs::ROLLOUT_CONTEXT` from `inputs`)",
        ),
    ];
    for (reads_context, sentence) in sentences {
        let mut mask =
            testing::mask::<Careless>(&format!("reads_context = {reads_context}")).unwrap();
        let error = Fixture::new(1, 1).mask(&mut mask).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MISSING_INPUT);
        assert_eq!(
            error.to_string(),
            format!("component `test.mask`: {sentence}")
        );
    }
}

/// Where a completion's texts and the rewards lie.
fn places(first: &Completion<'_>, rewards: &[f32]) -> [usize; 5] {
    let texts = [first.prompt, first.text, first.columns].map(|text| of(text.as_bytes()));
    [texts[0], texts[1], texts[2], of(first.ids), of(rewards)]
}

/// Reports these places of the first completion.
#[keys]
struct Reader {}

impl Reward for Reader {
    fn score(
        &mut self,
        ctx: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        for place in places(&rollout.completions[0], rewards) {
            ctx.record("place", place as f64);
        }
        Ok(())
    }
}

#[test]
fn a_reward_reads_the_hosts_own_texts() {
    let fixture = testing::RolloutFixture::new(&["a text of its own", "4"]);
    let (mut records, mut rewards) = (Records::default(), [0.0; 2]);
    let rollout = fixture.rollout();
    testing::reward::<Reader>("")
        .unwrap()
        .score(&mut records, &rollout, &mut rewards)
        .unwrap();
    let mine = places(&rollout.completions[0], &rewards);
    assert_eq!(
        records
            .numbers
            .iter()
            .map(|(_, address)| *address as usize)
            .collect::<Vec<_>>(),
        mine
    );
}
