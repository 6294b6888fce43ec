//! CISPO: a policy gradient weighted by capped ratios.

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};

use super::clips::Side;
use super::defaults::{ABOUT_REDUCTION, token, token_mean};
use super::evaluate::evaluate;
use super::kl::{ABOUT_BETA, ABOUT_CORRECTION, ABOUT_ESTIMATOR, KlEstimator, Penalty};
use super::ratio::{ABOUT_LEVEL, Level};
use super::term::Term;
use crate::checks;

/// `−min(ρ, epsilon_high) A · logp + beta · KL` with a stop-gradient on the first factor (TRL
/// `loss_type="cispo"`).
///
/// Every token keeps a gradient. A token that has become much more probable has at most the weight
/// `epsilon_high`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cispo {
    #[serde(default = "default_epsilon_high")]
    epsilon_high: f32,
    #[serde(default = "token")]
    importance_sampling_level: Level,
    #[serde(default)]
    beta: f32,
    #[serde(default)]
    kl_estimator: KlEstimator,
    #[serde(default)]
    use_bias_correction_kl: bool,
    #[serde(default = "token_mean")]
    reduction: Reduction,
}

fn default_epsilon_high() -> f32 {
    5.0
}

impl Cispo {
    /// Meanings of the keys, for `register!`.
    pub const KEYS: KeyDocs = keys! {
        epsilon_high = default_epsilon_high() => "largest ratio that counts",
        importance_sampling_level = token() => ABOUT_LEVEL,
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
}

impl Objective for Cispo {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError> {
        let clips = evaluate(
            self.importance_sampling_level,
            self.penalty(),
            ctx,
            batch,
            out,
            |token| {
                let weight = -token.ratio.min(self.epsilon_high) * token.advantage;
                let above = token.ratio > self.epsilon_high && token.advantage > 0.0;
                Term {
                    loss: weight * token.logp,
                    by_logp: weight,
                    held: above.then_some(Side::Above),
                    ..Term::default()
                }
            },
        )?;
        clips.record_above(ctx, "cispo_clip_ratio");
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::positive("epsilon_high", self.epsilon_high)?;
        self.penalty().validate()
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS | self.penalty().inputs()
    }
}
