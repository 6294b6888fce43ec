//! Nothing is copied on the way: what a component sees lies where the host put it.

use std::collections::BTreeMap;

use capo_plugin::prelude::*;
use capo_plugin::testing::{self, Fixture, Records};
use capo_plugin::{OptimizerState, Sink, Tensor};

/// Addresses by name; they are below 2^53, so that a number records them exactly.
type Addresses = BTreeMap<String, usize>;

fn of<T>(values: &[T]) -> usize {
    values.as_ptr().addr()
}

/// Where everything in `batch` lies, tensors and their shapes included.
fn addresses(batch: &Batch<'_>) -> Addresses {
    let mut found = vec![
        ("completion_ids", of(batch.completion_ids)),
        ("completion_mask", of(batch.completion_mask)),
        ("truncated", of(batch.truncated)),
        ("rewards", of(batch.rewards)),
        ("advantages", of(batch.advantages)),
        ("logps", of(batch.logps)),
        ("losses", of(batch.losses.unwrap())),
        ("dloss_dlogp", of(batch.dloss_dlogp.unwrap())),
        ("old_logps", of(batch.old_logps.unwrap())),
        ("ref_logps", of(batch.ref_logps.unwrap())),
        ("entropy", of(batch.entropy.unwrap())),
    ];
    let (layer, state) = (batch.last_layer.unwrap(), batch.optimizer_state.unwrap());
    let mut tensor = |name, tensor: Tensor<'_>| found.push((name, tensor.address() as usize));
    tensor("hidden", layer.hidden);
    tensor("topk_ids", layer.topk_ids);
    tensor("topk_logits", layer.topk_logits);
    tensor("logsumexp", layer.logsumexp);
    tensor("action_logits", layer.action_logits);
    tensor("weight", state.weight);
    tensor("exp_avg", state.exp_avg);
    tensor("exp_avg_sq", state.exp_avg_sq);
    found.push(("shape", of(layer.hidden.shape())));
    found.into_iter().map(|(name, address)| (name.to_owned(), address)).collect()
}

/// Reports where it sees things.
#[derive(Deserialize)]
struct Witness {}

impl Witness {
    fn tell(&self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, more: &[(&str, usize)]) {
        for (name, address) in addresses(batch) {
            ctx.record(&name, address as f64);
        }
        more.iter().for_each(|(name, address)| ctx.record(name, *address as f64));
        // Recorded arrays are read where they lie, too.
        ctx.record("logps_again", of(batch.logps) as f64);
        ctx.record_tokens("logps_again", batch.logps);
    }
}

impl AdvantageEstimator for Witness {
    fn estimate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, advantages: &mut [f32]) -> Result<(), PluginError> {
        self.tell(ctx, batch, &[("out", of(advantages))]);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::KNOWN
    }
}

impl Objective for Witness {
    fn evaluate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: PerToken<'_>) -> Result<(), PluginError> {
        self.tell(ctx, batch, &[("out", of(out.loss)), ("slope", of(out.dloss_dlogp))]);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::KNOWN
    }
}

impl PreBackwardMask for Witness {
    fn mask(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, keep: &mut [u8]) -> Result<(), PluginError> {
        self.tell(ctx, batch, &[("out", of(keep))]);
        Ok(())
    }

    fn step_end(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, keep: &[u8], _: bool) -> Result<(), PluginError> {
        self.tell(ctx, batch, &[("out", of(keep))]);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::KNOWN
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
fn every_component_reads_and_writes_the_hosts_own_arrays() {
    let fixture = Fixture::new(3, 5);
    let (weight, shape) = ([[0.0; 24]; 3], [3, 8]);
    let tensor = |values| Tensor::from_f32(values, &shape);
    let mut batch = fixture.batch();
    batch.optimizer_state = Some(OptimizerState::new(tensor(&weight[0]), tensor(&weight[1]), tensor(&weight[2])));
    let mine = addresses(&batch);
    let (mut out, mut slope, mut keep) = ([0.0; 15], [0.0; 15], [1; 15]);
    let expected = |more: &[(&str, usize)]| {
        let more = more.iter().map(|(name, address)| ((*name).to_owned(), *address));
        mine.clone().into_iter().chain(more).collect::<Addresses>()
    };

    let mut ears = Ears::default();
    testing::advantage::<Witness>("").unwrap().estimate(&mut ears, &batch, &mut out).unwrap();
    assert_eq!(ears.0, expected(&[("out", of(&out))]));

    let mut ears = Ears::default();
    testing::objective::<Witness>("").unwrap().evaluate(&mut ears, &batch, &mut out, &mut slope).unwrap();
    assert_eq!(ears.0, expected(&[("out", of(&out)), ("slope", of(&slope))]));

    let mut mask = testing::mask::<Witness>("").unwrap();
    let mut ears = Ears::default();
    mask.mask(&mut ears, &batch, &mut keep).unwrap();
    assert_eq!(ears.0, expected(&[("out", of(&keep))]));
    let mut ears = Ears::default();
    mask.step_end(&mut ears, &batch, &keep, true).unwrap();
    assert_eq!(ears.0, expected(&[("out", of(&keep))]));
    assert_eq!(mine.len(), 20, "{mine:?}");
}

/// Reports where the texts of the first completion lie.
#[derive(Deserialize)]
struct Reader {}

impl Reward for Reader {
    fn score(&mut self, ctx: &mut Ctx<'_>, rollout: &Rollout<'_>, rewards: &mut [f32]) -> Result<(), PluginError> {
        let first = &rollout.completions[0];
        ctx.record("prompt", of(first.prompt.as_bytes()) as f64);
        ctx.record("text", of(first.text.as_bytes()) as f64);
        ctx.record("ids", of(first.ids) as f64);
        ctx.record("columns", of(first.columns.as_bytes()) as f64);
        ctx.record("out", of(rewards) as f64);
        Ok(())
    }
}

#[test]
fn a_reward_reads_the_hosts_own_texts() {
    let fixture = testing::RolloutFixture::new(&["a text of its own", "4"]);
    let (mut records, mut rewards) = (Records::default(), [0.0; 2]);
    let rollout = fixture.rollout();
    testing::reward::<Reader>("").unwrap().score(&mut records, &rollout, &mut rewards).unwrap();
    let first = &rollout.completions[0];
    let mine = [
        of(first.prompt.as_bytes()),
        of(first.text.as_bytes()),
        of(first.ids),
        of(first.columns.as_bytes()),
        of(&rewards),
    ];
    assert_eq!(records.numbers.iter().map(|(_, address)| *address as usize).collect::<Vec<_>>(), mine);
}
