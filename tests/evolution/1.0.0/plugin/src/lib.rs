//! A plugin of the first release: a component at each point, described keys, a state, a recipe.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// A point for each letter of the answer that the completion repeats.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Letters {}

impl Reward for Letters {
    fn score(&mut self, ctx: &mut Ctx, rollout: &Rollout, rewards: &mut [f32]) -> Result<(), PluginError> {
        for (reward, completion) in rewards.iter_mut().zip(&rollout.completions) {
            let pairs = completion.text.chars().rev().zip(completion.answer.chars().rev());
            *reward = pairs.take_while(|(said, right)| said == right).count() as f32;
        }
        if rollout.purpose == Purpose::TRAINING {
            ctx.record_tokens("letters", rewards);
        }
        Ok(())
    }
}

/// Asks for a second turn, and counts the episodes of all rollouts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Again {
    #[serde(skip)]
    episodes: u64,
}

impl Environment for Again {
    fn begin(&mut self, _: &mut Ctx<'_>, episodes: &Episodes<'_>) -> Result<Vec<String>, PluginError> {
        let count = episodes.episodes.len();
        self.episodes += if episodes.purpose == Purpose::TRAINING { count as u64 } else { 0 };
        Ok(vec![String::new(); count])
    }

    fn respond(&mut self, _: &mut Ctx<'_>, turns: &[Turn<'_>]) -> Result<Vec<Observation>, PluginError> {
        let answer = |turn: &Turn<'_>| match turn.number {
            0 => Observation::of(turn).metric("episodes", self.episodes as f64).say("+1="),
            _ => Observation::of(turn).reward(turn.text.len() as f32).end(),
        };
        Ok(turns.iter().map(answer).collect())
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(self.episodes.to_le_bytes().to_vec())
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        let state = state.try_into().map_err(|_| PluginError::state("eight bytes are expected"))?;
        self.episodes = u64::from_le_bytes(state);
        Ok(())
    }
}

/// Reward minus the mean of its group.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Centred {}

impl Advantage for Centred {
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
    fn evaluate(&mut self, ctx: &mut Ctx, batch: &Batch, out: TokenLosses) -> Result<(), PluginError> {
        let old_logps = batch.old_logps()?;
        let mut largest = 0.0_f32;
        for i in (0..batch.dims.len()).filter(|&i| batch.completion_mask[i] == 1) {
            let ratio = (batch.logps[i] - old_logps[i]).exp();
            largest = largest.max(ratio);
            out.losses[i] = -batch.advantages[i] * ratio;
            out.dloss_dlogp[i] = out.losses[i];
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

/// Drops tokens more surprising than `factor` times the mean of the steps before, and looks at the
/// last layer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Follower {
    factor: f32,
    #[serde(skip)]
    mean: f32,
    #[serde(skip)]
    steps: u32,
}

impl Mask for Follower {
    fn mask(&mut self, ctx: &mut Ctx, batch: &Batch, token_mask: &mut [u8]) -> Result<(), PluginError> {
        let surprise: Vec<f32> = batch.logps.iter().map(|logp| -logp).collect();
        if self.steps > 0 {
            for (keep, surprise) in token_mask.iter_mut().zip(&surprise) {
                *keep &= u8::from(*surprise <= self.factor * self.mean);
            }
        }
        let (layer, entropy) = (batch.last_layer()?, batch.entropy()?);
        ctx.record_tokens("surprise", &surprise);
        ctx.record("entropy", f64::from(entropy.iter().sum::<f32>()));
        ctx.record("hidden", f64::from(layer.hidden.as_f32()?.iter().sum::<f32>()));
        ctx.record("first_id", f64::from(layer.topk_ids.as_u32()?[0]));
        ctx.record("learning_rate", batch.optimizer.learning_rate);
        ctx.record("steps", f64::from(self.steps));
        Ok(())
    }

    fn step_end(&mut self, ctx: &mut Ctx, batch: &Batch, token_mask: &[u8], taken: bool) -> Result<(), PluginError> {
        let kept = batch.logps.iter().zip(token_mask).filter(|(_, keep)| **keep == 1);
        let mut sums = [0.0, 0.0];
        kept.for_each(|(logp, _)| sums = [sums[0] - f64::from(*logp), sums[1] + 1.0]);
        ctx.collective().all_reduce_sum(&mut sums)?;
        if taken {
            self.mean = 0.5 * self.mean + 0.5 * (sums[0] / sums[1].max(1.0)) as f32;
            self.steps += 1;
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::LAST_LAYER | Inputs::ENTROPY
    }

    fn traits(&self) -> Traits {
        Traits::TOKEN_WISE | Traits::SUMS_RANKS | Traits::NO_OPTIMIZER.only_if(false)
    }

    fn validate(&self) -> Result<(), PluginError> {
        (self.factor > 0.0).then_some(()).ok_or("`factor` must be above 0".into())
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

/// Counts every other token half, and looks at the rollout.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Halves {}

impl Weight for Halves {
    fn weigh(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        token_mask: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        let (context, top_k) = (batch.rollout_context()?, batch.sampler_top_k()?);
        ctx.record("text_bytes", (0..4).map(|b| context.text(b).len()).sum::<usize>() as f64);
        ctx.record("sampler_logps", f64::from(context.sampler_logps().iter().sum::<f32>()));
        ctx.record("sampler_first", f64::from(top_k.logps(0, 0)[0]));
        for i in (1..weights.len()).step_by(2) {
            weights[i] = 0.5 * f32::from(token_mask[i]);
        }
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::ROLLOUT_CONTEXT | Inputs::SAMPLER_TOP_K
    }
}

/// Shortens a step by its agreement with the last one, and measures all that there is to measure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Careful {}

impl StepControl for Careful {
    fn control(&mut self, ctx: &mut Ctx, _: &Batch, update: &mut Update) -> Result<(), PluginError> {
        ctx.record("norm", update.norm()?);
        ctx.record("fisher", update.fisher()?);
        ctx.record("last_layer_kl", update.last_layer_kl()?);
        ctx.record("kl", update.measure_kl(0.5)?);
        ctx.record("weights", f64::from(update.weights().iter().sum::<f32>()));
        let alignment = update.alignment()?.unwrap_or(1.0);
        ctx.record("alignment", alignment);
        update.scale(0.5 + 0.25 * alignment.clamp(0.0, 1.0));
        update.scale_group(update.groups().len() - 1, 1.0);
        Ok(())
    }

    fn inputs(&self) -> Inputs {
        Inputs::ALIGNMENT
    }
}

register!(Reward, Letters, "frozen.reward", "letters that agree from the end");
register!(Advantage, Centred, "frozen.advantage", "reward minus the mean of its group");
register!(Objective, Gradient, "frozen.objective", "the policy gradient");
register!(Mask, Follower, "frozen.mask", "drops tokens far above the usual surprise", {
    factor => "largest surprise kept, in means of the steps before"; 1.0..50.0,
});
register!(Environment, Again, "frozen.environment", "asks for a second turn");
register!(Weight, Halves, "frozen.weight", "counts every other token half");
register!(StepControl, Careful, "frozen.step-control", "shortens steps that turn back");

recipe!(
    "frozen",
    "what a plugin of the first release does",
    r#"
[advantage]
use = "frozen.advantage"

[objective]
use = "frozen.objective"

[[mask]]
use = "frozen.mask"
factor = 20.0

[[weight]]
use = "frozen.weight"

[[step_control]]
use = "frozen.step-control"

[[reward]]
use = "frozen.reward"

[train]
last_layer_top_k = 4
"#
);
