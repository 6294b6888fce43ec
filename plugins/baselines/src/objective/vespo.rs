//! VESPO: a policy gradient weighted by a smooth function of the completion's ratio.

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};

use super::correction::{Correction, CorrectionMode, LEAST, MOST, clip_max};
use super::defaults::{ABOUT_REDUCTION, token_mean};
use super::evaluate::evaluate;
use super::kl::{ABOUT_BETA, ABOUT_CORRECTION, ABOUT_ESTIMATOR, KlEstimator, Penalty};
use super::ratio::Level;
use super::term::{Term, Token};
use crate::checks;

/// `−φ(w) A · logp + beta · KL` with a stop-gradient on `φ(w) = w^k · exp(λ (1 − w))` (TRL
/// `loss_type="vespo"`). `w` is the ratio of the whole completion. One pair (k, λ) applies to
/// negative advantages, another to the rest. With `vllm_importance_sampling_mode`, `w` is
/// multiplied by the ratio of trainer to sampler.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vespo {
    #[serde(default = "two")]
    vespo_k_pos: f32,
    #[serde(default = "three")]
    vespo_lambda_pos: f32,
    #[serde(default = "three")]
    vespo_k_neg: f32,
    #[serde(default = "two")]
    vespo_lambda_neg: f32,
    vllm_importance_sampling_mode: Option<CorrectionMode>,
    #[serde(default = "clip_max")]
    vllm_importance_sampling_clip_max: f32,
    vllm_importance_sampling_clip_min: Option<f32>,
    #[serde(default)]
    beta: f32,
    #[serde(default)]
    kl_estimator: KlEstimator,
    #[serde(default)]
    use_bias_correction_kl: bool,
    #[serde(default = "token_mean")]
    reduction: Reduction,
}

fn two() -> f32 {
    2.0
}

fn three() -> f32 {
    3.0
}

impl Vespo {
    /// Meanings of the keys, for `register!`.
    pub const KEYS: KeyDocs = keys! {
        vespo_k_pos = two() => "power of the ratio where the advantage is not below 0: completions that became less probable count less",
        vespo_lambda_pos = three() => "decay by the ratio there: completions that became more probable count less",
        vespo_k_neg = three() => "power of the ratio where the advantage is below 0",
        vespo_lambda_neg = two() => "decay by the ratio there",
        vllm_importance_sampling_mode = None::<CorrectionMode> => "multiplies the completion's ratio by that of trainer to sampler: `token_truncate`, `token_mask`, `sequence_truncate` or `sequence_mask`; off when absent",
        vllm_importance_sampling_clip_max = clip_max() => "largest ratio of trainer to sampler that counts as it is",
        vllm_importance_sampling_clip_min = None::<f32> => "smallest one; no such limit when absent",
        beta = 0.0 => ABOUT_BETA,
        kl_estimator = KlEstimator::default() => ABOUT_ESTIMATOR,
        use_bias_correction_kl = false => ABOUT_CORRECTION,
        reduction = token_mean() => ABOUT_REDUCTION,
    };

    fn penalty(&self) -> Penalty {
        Penalty {
            beta: self.beta,
            estimator: self.kl_estimator,
            by_ratio: self.use_bias_correction_kl,
        }
    }

    fn correction(&self) -> Correction {
        Correction {
            mode: self.vllm_importance_sampling_mode,
            clip_max: self.vllm_importance_sampling_clip_max,
            clip_min: self.vllm_importance_sampling_clip_min,
        }
    }

    /// φ(w) for a token with this advantage.
    fn weight(&self, log_ratio: f64, advantage: f32) -> f32 {
        let (k, lambda) = if advantage >= 0.0 {
            (self.vespo_k_pos, self.vespo_lambda_pos)
        } else {
            (self.vespo_k_neg, self.vespo_lambda_neg)
        };
        let (k, lambda) = (f64::from(k), f64::from(lambda));
        (lambda + k * log_ratio - lambda * log_ratio.exp()).exp() as f32
    }
}

/// `[B]`, nats: `ln w` of each completion, with the log-corrections `corrections` added.
fn log_ratios(batch: &Batch<'_>, corrections: &[f64]) -> Result<Vec<f64>, PluginError> {
    let old_logps = batch.old_logps()?;
    let of_token =
        |i: usize| (f64::from(batch.logps[i]) - f64::from(old_logps[i])).clamp(-MOST, MOST);
    let of_completion = |b: usize| {
        let sum: f64 = batch
            .dims
            .row(b)
            .filter(|&i| batch.completion_mask[i] == 1)
            .map(of_token)
            .sum();
        (sum + corrections[b]).clamp(LEAST, MOST)
    };
    Ok((0..batch.dims.completions as usize)
        .map(of_completion)
        .collect())
}

impl Objective for Vespo {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError> {
        let corrections = self.correction().log_ratios(batch)?;
        let log_ratios = log_ratios(batch, &corrections)?;
        evaluate(
            Level::Token,
            self.penalty(),
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
        let first = |b: usize| batch.dims.row(b).find(|&i| batch.completion_mask[i] == 1);
        let weights = (0..log_ratios.len())
            .filter_map(|b| Some(self.weight(log_ratios[b], batch.advantages[first(b)?])));
        let (count, sum) = weights.fold((0_u32, 0.0), |(count, sum), weight| {
            (count + 1, sum + f64::from(weight))
        });
        ctx.record("vespo/phi_seq_mean", sum / f64::from(count.max(1)));
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::not_negative("vespo_k_pos", self.vespo_k_pos)?;
        checks::positive("vespo_lambda_pos", self.vespo_lambda_pos)?;
        checks::not_negative("vespo_k_neg", self.vespo_k_neg)?;
        checks::positive("vespo_lambda_neg", self.vespo_lambda_neg)?;
        self.correction().validate()?;
        self.penalty().validate()
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS | self.penalty().inputs() | self.correction().inputs()
    }
}
