//! Drops tokens that the policy holds for improbable: their gradient is large.

use capo_plugin::prelude::*;

use crate::{checks, tokens};

/// A bound on the probability.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbabilityFloor {
    /// Smallest probability kept.
    #[serde(default = "floor")]
    min_probability: f64,
}

fn floor() -> f64 {
    0.01
}

impl PreBackwardMask for ProbabilityFloor {
    fn mask(&mut self, _: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        tokens::drop_where(keep, |i| f64::from(batch.logps[i]).exp() < self.min_probability);
        Ok(())
    }

    fn traits(&self) -> MaskTraits {
        tokens::ALONE
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::share("min_probability", self.min_probability)
    }
}

register!(PreBackwardMask, ProbabilityFloor, "masks.probability-floor", "drops tokens below a probability", {
    min_probability = floor() => "smallest probability kept"; 1e-9..0.9,
});
