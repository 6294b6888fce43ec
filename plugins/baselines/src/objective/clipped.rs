//! PPO's clipped surrogate: GRPO, Dr.GRPO, BNPO, DAPO, GSPO, LUSPO, RLOO.

use std::marker::PhantomData;

use capo_plugin::prelude::*;
use capo_plugin::{KeyDocs, keys};

use super::clips::Side;
use super::defaults::{ABOUT_REDUCTION, Defaults};
use super::evaluate::evaluate;
use super::kl::{ABOUT_BETA, ABOUT_CORRECTION, ABOUT_ESTIMATOR, KlEstimator, Penalty};
use super::ratio::{ABOUT_LEVEL, Level};
use super::term::{Term, Token};
use crate::checks;

/// `−min(min(ρ, delta) A, clip(ρ, 1 − epsilon, 1 + epsilon_high) A) + beta · KL`, with
/// `ρ = exp(logps − old_logps)` (TRL `loss_type="grpo"`, `"dr_grpo"`, `"bnpo"`, `"dapo"`,
/// `"luspo"`).
///
/// The derivative of the first term by logp is `−ρ A` where the unclipped term applies, and 0 where
/// a limit applies.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, bound = "")]
pub struct ClippedSurrogate<D> {
    epsilon: Option<f32>,
    epsilon_high: Option<f32>,
    delta: Option<f32>,
    importance_sampling_level: Option<Level>,
    #[serde(default)]
    beta: f32,
    #[serde(default)]
    kl_estimator: KlEstimator,
    #[serde(default)]
    use_bias_correction_kl: bool,
    reduction: Option<Reduction>,
    #[serde(skip)]
    default: PhantomData<D>,
}

impl<D: Defaults> ClippedSurrogate<D> {
    /// Meanings of the keys, for `register!`.
    pub const KEYS: KeyDocs = keys! {
        epsilon = D::EPSILON => "how far below 1 the ratio counts",
        epsilon_high = D::EPSILON_HIGH => "how far above 1 the ratio counts; `epsilon` where nothing is said",
        delta = None::<f32> => "largest ratio that counts where the advantage is below 0; no limit when absent",
        importance_sampling_level = D::LEVEL => ABOUT_LEVEL,
        beta = 0.0 => ABOUT_BETA,
        kl_estimator = KlEstimator::default() => ABOUT_ESTIMATOR,
        use_bias_correction_kl = false => ABOUT_CORRECTION,
        reduction = D::REDUCTION => ABOUT_REDUCTION,
    };

    fn epsilon(&self) -> f32 {
        self.epsilon.unwrap_or(D::EPSILON)
    }

    fn epsilon_high(&self) -> f32 {
        self.epsilon_high
            .or(D::EPSILON_HIGH)
            .unwrap_or(self.epsilon())
    }

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
        let limited = self.delta.map_or(ratio, |delta| ratio.min(delta));
        let bounded = ratio.clamp(1.0 - self.epsilon(), 1.0 + self.epsilon_high());
        let clipped = bounded * advantage < limited * advantage;
        let counted = if clipped { bounded } else { limited };
        let side = if advantage < 0.0 {
            Side::Below
        } else {
            Side::Above
        };
        Term {
            loss: -counted * advantage,
            by_ratio: if counted == ratio { -advantage } else { 0.0 },
            by_logp: 0.0,
            held: clipped.then_some(side).filter(|_| bounded != ratio),
        }
    }
}

impl<D: Defaults> Objective for ClippedSurrogate<D> {
    fn evaluate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError> {
        let level = self.importance_sampling_level.unwrap_or(D::LEVEL);
        evaluate(level, self.penalty(), ctx, batch, out, |token| {
            self.term(token)
        })?
        .record(ctx);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::not_negative("epsilon", self.epsilon())?;
        checks::not_negative("epsilon_high", self.epsilon_high())?;
        checks::positive("delta", self.delta.unwrap_or(1.0))?;
        self.penalty().validate()
    }

    fn reduction(&self) -> Reduction {
        self.reduction.unwrap_or(D::REDUCTION)
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS | self.penalty().inputs()
    }
}
