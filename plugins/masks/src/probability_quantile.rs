//! Drops the least probable tokens of a step: a control for masks that tend to drop improbable tokens.

use capo_plugin::prelude::*;

use crate::{checks, tokens};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbabilityQuantile {
    /// Fraction of the remaining tokens that is dropped.
    #[serde(default = "share")]
    share: f64,
}

fn share() -> f64 {
    0.02
}

impl PreBackwardMask for ProbabilityQuantile {
    fn mask(&mut self, _: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let mut left = tokens::left(keep);
        left.sort_by(|&a, &b| batch.logps[a].total_cmp(&batch.logps[b]));
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

register!(PreBackwardMask, ProbabilityQuantile, "masks.probability-quantile", "drops the least probable tokens", {
    share = share() => "share of the tokens that goes"; 1e-4..1.0,
});
