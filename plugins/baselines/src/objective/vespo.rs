//! VESPO: a policy gradient weighted by a smooth function of the completion's ratio.

use capo_plugin::prelude::*;

use super::correction::{Correction, LEAST, MOST};
use super::evaluate::evaluate;
use super::kl::RatioPenalty;
use super::ratio::Level;
use super::term::{Term, Token};

/// `−φ(w) A · logp + beta · KL` with a stop-gradient on `φ(w) = w^k · exp(λ (1 − w))` (TRL
/// `loss_type="vespo"`). `w` is the ratio of the whole completion. One pair (k, λ) applies to
/// negative advantages, another to the rest. With `vllm_importance_sampling_mode`, `w` is
/// multiplied by the ratio of trainer to sampler.
#[keys]
#[derive(Debug, Clone)]
pub struct Vespo {
    /// Power of the ratio where the advantage is not below 0: completions that became less
    /// probable count less.
    #[key(default = 2.0, at_least = 0)]
    vespo_k_pos: f32,
    /// Decay by the ratio where the advantage is not below 0: completions that became more
    /// probable count less.
    #[key(default = 3.0, above = 0)]
    vespo_lambda_pos: f32,
    /// Power of the ratio where the advantage is below 0.
    #[key(default = 3.0, at_least = 0)]
    vespo_k_neg: f32,
    /// Decay by the ratio where the advantage is below 0.
    #[key(default = 2.0, above = 0)]
    vespo_lambda_neg: f32,
    #[key(flatten)]
    correction: Correction,
    #[key(flatten)]
    penalty: RatioPenalty,
    #[key(default = Reduction::TOKEN_MEAN)]
    reduction: Reduction,
}

impl Vespo {
    /// φ(w) for a token with this advantage.
    fn weight(&self, log_ratio: f64, advantage: f32) -> f32 {
        let (k, lambda) = if advantage >= 0.0 {
            (self.vespo_k_pos, self.vespo_lambda_pos)
        } else {
            (self.vespo_k_neg, self.vespo_lambda_neg)
        };
        let k = f64::from(k);
        let lambda = f64::from(lambda);
        (lambda + k * log_ratio - lambda * log_ratio.exp()).exp() as f32
    }
}

/// `[B]`, nats: `ln w` of each completion, with the log-corrections `corrections` added.
fn log_ratios(batch: &Batch<'_>, corrections: &[f64]) -> Result<Vec<f64>, PluginError> {
    let old_logps = batch.old_logps()?;
    let mut log_ratios = Vec::with_capacity(corrections.len());
    for (b, correction) in corrections.iter().enumerate() {
        let tokens = batch.dims.row(b).filter(|&i| batch.completion_mask[i] == 1);
        let sum: f64 = tokens
            .map(|i| (f64::from(batch.logps[i]) - f64::from(old_logps[i])).clamp(-MOST, MOST))
            .sum();
        log_ratios.push((sum + correction).clamp(LEAST, MOST));
    }
    Ok(log_ratios)
}

impl Objective for Vespo {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError> {
        let corrections = self.correction.log_ratios(batch)?;
        let log_ratios = log_ratios(batch, &corrections)?;
        evaluate(
            Level::Token,
            self.penalty,
            ctx,
            batch,
            out,
            |&Token {
                 completion,
                 advantage,
                 logp,
                 ..
             }| {
                let weight = -self.weight(log_ratios[completion], advantage) * advantage;
                Term {
                    loss: weight * logp,
                    by_logp: weight,
                    ..Term::default()
                }
            },
        )?;
        let mut sum = 0.0;
        let mut count = 0_u32;
        for (b, log_ratio) in log_ratios.iter().enumerate() {
            let mut row = batch.dims.row(b);
            if let Some(first) = row.find(|&i| batch.completion_mask[i] == 1) {
                sum += f64::from(self.weight(*log_ratio, batch.advantages[first]));
                count += 1;
            }
        }
        ctx.record("vespo/phi_seq_mean", sum / f64::from(count.max(1)));
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.correction.validate()?;
        self.penalty.validate()
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS | self.penalty.inputs() | self.correction.inputs()
    }
}
