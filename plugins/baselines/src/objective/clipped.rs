//! PPO's clipped surrogate: GRPO, Dr.GRPO, BNPO, DAPO, GSPO, LUSPO, RLOO.

use std::marker::PhantomData;

use capo_plugin::prelude::*;

use super::clips::Side;
use super::defaults::Defaults;
use super::evaluate::evaluate;
use super::kl::RatioPenalty;
use super::ratio::Level;
use super::term::{Term, Token};

/// `−min(min(ρ, delta) A, clip(ρ, 1 − epsilon, 1 + epsilon_high) A) + beta · KL`, with
/// `ρ = exp(logps − old_logps)` (TRL `loss_type="grpo"`, `"dr_grpo"`, `"bnpo"`, `"dapo"`,
/// `"luspo"`).
///
/// The derivative of the first term by logp is `−ρ A` where the unclipped term applies, and 0 where
/// a limit applies.
#[keys]
#[derive(Debug, Clone)]
pub struct ClippedSurrogate<D: Defaults> {
    /// How far below 1 the ratio counts.
    #[key(default = D::EPSILON, at_least = 0)]
    epsilon: f32,
    /// How far above 1 the ratio counts; `epsilon` when absent.
    #[key(default = D::EPSILON_HIGH, at_least = 0)]
    epsilon_high: Option<f32>,
    /// Largest ratio that counts where the advantage is below 0; no limit when absent.
    #[key(above = 0)]
    delta: Option<f32>,
    #[key(default = D::LEVEL)]
    importance_sampling_level: Level,
    #[key(flatten)]
    penalty: RatioPenalty,
    #[key(default = D::REDUCTION)]
    reduction: Reduction,
    default: PhantomData<D>,
}

impl<D: Defaults> ClippedSurrogate<D> {
    fn term(
        &self,
        &Token {
            ratio, advantage, ..
        }: &Token,
    ) -> Term {
        let epsilon_high = self.epsilon_high.unwrap_or(self.epsilon);
        let limited = self.delta.map_or(ratio, |delta| ratio.min(delta));
        let bounded = ratio.clamp(1.0 - self.epsilon, 1.0 + epsilon_high);
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
        let level = self.importance_sampling_level;
        evaluate(level, self.penalty, ctx, batch, out, |token| {
            self.term(token)
        })?
        .record(ctx);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.penalty.validate()
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS | self.penalty.inputs()
    }
}
