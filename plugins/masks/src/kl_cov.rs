//! KL-Cov's tokens: drops those whose log-probability and advantage go together most.
//!
//! The source leaves their loss and adds a KL penalty to it; a mask cannot add one, so these tokens are not learnt from at all, and
//! `kl_cov_ratio` means the same tokens.
//!
//! Cui et al., arXiv 2505.22617; verl, `core_algos.py`, loss mode `kl_cov`.

use capo_plugin::prelude::*;

use crate::covariance::covariances;
use crate::{checks, tokens};

/// How many go.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KlCov {
    /// Share of the tokens that are left.
    #[serde(default = "ratio")]
    kl_cov_ratio: f64,
}

fn ratio() -> f64 {
    0.0002
}

impl PreBackwardMask for KlCov {
    fn mask(&mut self, _: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        let left = tokens::left(keep);
        let mut ranked: Vec<(usize, f32)> = left.iter().copied().zip(covariances(batch, &left)).collect();
        ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let count = ((self.kl_cov_ratio * left.len() as f64) as usize).max(1);
        ranked.into_iter().take(count).for_each(|(i, _)| keep[i] = 0);
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        checks::share("kl_cov_ratio", self.kl_cov_ratio)
    }

    fn traits(&self) -> MaskTraits {
        MaskTraits::NO_OPTIMIZER
    }
}

register!(PreBackwardMask, KlCov, "masks.kl-cov", "drops the tokens whose log-probability and advantage go together most", {
    kl_cov_ratio = ratio() => "share of the tokens that goes, at least one token"; 1e-5..1.0,
});
