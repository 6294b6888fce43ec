//! A plugin of the first day: one component at each point there was, a mask with state, a recipe.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Reward minus the mean of its group.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Centred {}

impl AdvantageEstimator for Centred {
    fn estimate(&mut self, _: &mut Ctx, batch: &Batch, advantages: &mut [f32]) -> Result<(), PluginError> {
        for group in batch.dims.groups() {
            let mean = batch.rewards[group.clone()].iter().sum::<f32>() / group.len() as f32;
            for b in group {
                for i in batch.dims.row(b) {
                    advantages[i] = (batch.rewards[b] - mean) * f32::from(batch.completion_mask[i]);
                }
            }
        }
        Ok(())
    }
}

/// The policy gradient, with the ratio to the policy that sampled.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gradient {}

impl Objective for Gradient {
    fn evaluate(&mut self, ctx: &mut Ctx, batch: &Batch, out: PerToken) -> Result<(), PluginError> {
        let old_logps = batch.old_logps()?;
        let mut largest = 0.0_f32;
        for i in (0..batch.dims.len()).filter(|&i| batch.completion_mask[i] == 1) {
            let ratio = (batch.logps[i] - old_logps[i]).exp();
            largest = largest.max(ratio);
            out.loss[i] = -batch.advantages[i] * ratio;
            out.dloss_dlogp[i] = out.loss[i];
        }
        ctx.record("largest_ratio", f64::from(largest));
        Ok(())
    }

    fn reduction(&self) -> Reduction {
        Reduction::TOKEN_MEAN
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS
    }
}

/// Drops tokens more surprising than `factor` times the mean of the steps before, and looks at everything a mask may ask for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Follower {
    factor: f32,
    #[serde(skip)]
    mean: f32,
    #[serde(skip)]
    steps: u32,
}

impl PreBackwardMask for Follower {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let (layer, entropy) = (batch.last_layer()?, batch.entropy()?);
        let surprise: Vec<f32> = batch.logps.iter().map(|logp| -logp).collect();
        if self.steps > 0 {
            for (keep, surprise) in keep.iter_mut().zip(&surprise) {
                *keep &= u8::from(*surprise <= self.factor * self.mean);
            }
        }
        ctx.record_tokens("surprise", &surprise);
        ctx.record("entropy", f64::from(entropy.iter().sum::<f32>()));
        ctx.record("hidden", f64::from(layer.hidden.as_f32()?.iter().sum::<f32>()));
        ctx.record("first_id", f64::from(layer.topk_ids.as_u32()?[0]));
        ctx.record("learning_rate", batch.optimizer.learning_rate);
        ctx.record("steps", f64::from(self.steps));
        Ok(())
    }

    fn step_end(&mut self, _: &mut Ctx, batch: &Batch, keep: &[u8], taken: bool) -> Result<(), PluginError> {
        let kept = batch.logps.iter().zip(keep).filter(|(_, keep)| **keep == 1);
        let (sum, count) = kept.fold((0.0, 0.0_f32), |(sum, count), (logp, _)| (sum - logp, count + 1.0));
        if taken {
            self.mean = 0.5 * self.mean + 0.5 * sum / count.max(1.0);
            self.steps += 1;
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::LAST_LAYER | Inputs::ENTROPY
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok([self.mean.to_le_bytes(), self.steps.to_le_bytes()].concat())
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        let &[a, b, c, d, e, f, g, h] = state else {
            return Err(PluginError::state(format!("a state of {} bytes, expected 8", state.len())));
        };
        (self.mean, self.steps) = (f32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        Ok(())
    }
}

register!(AdvantageEstimator, Centred, "frozen.advantage", "reward minus the mean of its group");
register!(Objective, Gradient, "frozen.objective", "the policy gradient");
register!(PreBackwardMask, Follower, "frozen.mask", "drops tokens far above the usual surprise");

recipe!(
    "frozen",
    "what a plugin of the first day does",
    r#"
[advantage]
use = "frozen.advantage"

[objective]
use = "frozen.objective"

[[mask]]
use = "frozen.mask"
factor = 20.0
"#
);
