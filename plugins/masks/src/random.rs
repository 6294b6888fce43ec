//! Drops random tokens: the control that every study of a mask needs.

use capo_plugin::Draws;
use capo_plugin::prelude::*;

use crate::{checks, tokens};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Random {
    /// Fraction of the remaining tokens that is dropped.
    #[serde(default = "share")]
    share: f64,
}

fn share() -> f64 {
    0.02
}

impl PreBackwardMask for Random {
    fn mask(&mut self, _: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let mut left = tokens::left(keep);
        Draws::new(batch.seed ^ STREAM, batch.step).shuffle(&mut left);
        let count = tokens::share_of(left.len(), self.share);
        left.into_iter().take(count).for_each(|i| keep[i] = 0);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::share("share", self.share)
    }

    fn traits(&self) -> MaskTraits {
        MaskTraits::NO_OPTIMIZER
    }
}

/// Constant that separates this mask's draws from those of other components.
const STREAM: u64 = 0x4A4D_0311;

register!(PreBackwardMask, Random, "masks.random", "drops random tokens, drawn from the run's seed and the step", {
    share = share() => "share of the tokens that goes"; 1e-4..1.0,
});
