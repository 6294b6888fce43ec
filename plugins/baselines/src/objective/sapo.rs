//! SAPO: a soft gate instead of a clip.

use capo_plugin::prelude::*;

use super::evaluate::evaluate;
use super::kl::RatioPenalty;
use super::ratio::Level;
use super::term::{Term, Token};

/// `−4/τ · sigmoid(τ (ρ − 1)) A + beta · KL`, with one τ for advantages above 0 and one for the
/// others (TRL `loss_type="sapo"`).
///
/// The derivative of the first term by ρ is `−A` at ρ = 1, and decays smoothly on both sides.
#[keys]
#[derive(Debug, Clone)]
pub struct Sapo {
    /// Decay of the slope for advantages above 0.
    #[key(default = 1.0, above = 0)]
    sapo_temperature_pos: f32,
    /// Decay of the slope for other advantages.
    #[key(default = 1.05, above = 0)]
    sapo_temperature_neg: f32,
    #[key(default = Level::Token)]
    importance_sampling_level: Level,
    #[key(flatten)]
    penalty: RatioPenalty,
    #[key(default = Reduction::COMPLETION_MEAN)]
    reduction: Reduction,
}

impl Sapo {
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
            self.penalty,
            ctx,
            batch,
            out,
            |token| self.term(token),
        )?;
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
