//! SAPO: a soft gate instead of a clip.

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};

use super::defaults::{ABOUT_REDUCTION, completion_mean, token};
use super::evaluate::evaluate;
use super::kl::{ABOUT_BETA, ABOUT_CORRECTION, ABOUT_ESTIMATOR, KlEstimator, Penalty};
use super::ratio::{ABOUT_LEVEL, Level};
use super::term::{Term, Token};
use crate::checks;

/// `−4/τ · sigmoid(τ (ρ − 1)) A + beta · KL`, with one τ for advantages above 0 and one for the
/// others (TRL `loss_type="sapo"`).
///
/// The derivative of the first term by ρ is `−A` at ρ = 1, and decays smoothly on both sides.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sapo {
    #[serde(default = "default_temperature_pos")]
    sapo_temperature_pos: f32,
    #[serde(default = "default_temperature_neg")]
    sapo_temperature_neg: f32,
    #[serde(default = "token")]
    importance_sampling_level: Level,
    #[serde(default)]
    beta: f32,
    #[serde(default)]
    kl_estimator: KlEstimator,
    #[serde(default)]
    use_bias_correction_kl: bool,
    #[serde(default = "completion_mean")]
    reduction: Reduction,
}

fn default_temperature_pos() -> f32 {
    1.0
}

fn default_temperature_neg() -> f32 {
    1.05
}

impl Sapo {
    /// Meanings of the keys, for `register!`.
    pub const KEYS: KeyDocs = keys! {
        sapo_temperature_pos = default_temperature_pos() => "decay of the slope for advantages above 0",
        sapo_temperature_neg = default_temperature_neg() => "decay of the slope for other advantages",
        importance_sampling_level = token() => ABOUT_LEVEL,
        beta = 0.0 => ABOUT_BETA,
        kl_estimator = KlEstimator::default() => ABOUT_ESTIMATOR,
        use_bias_correction_kl = false => ABOUT_CORRECTION,
        reduction = completion_mean() => ABOUT_REDUCTION,
    };

    fn penalty(&self) -> Penalty {
        Penalty {
            beta: self.beta,
            estimator: self.kl_estimator,
            by_ratio: self.use_bias_correction_kl,
        }
    }

    fn term(
        &self,
        &Token {
            ratio, advantage, ..
        }: &Token,
    ) -> Term {
        let temperature = if advantage > 0.0 {
            self.sapo_temperature_pos
        } else {
            self.sapo_temperature_neg
        };
        let gate = 1.0 / (1.0 + (-temperature * (ratio - 1.0)).exp());
        Term {
            loss: -gate * 4.0 / temperature * advantage,
            by_ratio: -4.0 * gate * (1.0 - gate) * advantage,
            ..Term::default()
        }
    }
}

impl Objective for Sapo {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError> {
        evaluate(
            self.importance_sampling_level,
            self.penalty(),
            ctx,
            batch,
            out,
            |token| self.term(token),
        )?;
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::positive("sapo_temperature_pos", self.sapo_temperature_pos)?;
        checks::positive("sapo_temperature_neg", self.sapo_temperature_neg)?;
        self.penalty().validate()
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS | self.penalty().inputs()
    }
}
