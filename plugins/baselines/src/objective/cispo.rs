//! CISPO: a policy gradient weighted by capped ratios.

use capo_plugin::prelude::*;

use super::clips::Side;
use super::evaluate::evaluate;
use super::kl::RatioPenalty;
use super::ratio::Level;
use super::term::Term;

/// `−min(ρ, epsilon_high) A · logp + beta · KL` with a stop-gradient on the first factor (TRL
/// `loss_type="cispo"`).
///
/// Every token keeps a gradient. A token that has become much more probable has at most the weight
/// `epsilon_high`.
#[keys]
#[derive(Debug, Clone)]
pub struct Cispo {
    /// Largest ratio that counts.
    #[key(default = 5.0, above = 0)]
    epsilon_high: f32,
    #[key(default = Level::Token)]
    importance_sampling_level: Level,
    #[key(flatten)]
    penalty: RatioPenalty,
    #[key(default = Reduction::TOKEN_MEAN)]
    reduction: Reduction,
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
            self.penalty,
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
        self.penalty.validate()
    }

    fn reduction(&self) -> Reduction {
        self.reduction
    }

    fn inputs(&self) -> Inputs {
        Inputs::OLD_LOGPS | self.penalty.inputs()
    }
}
