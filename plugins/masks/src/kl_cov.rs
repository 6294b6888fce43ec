//! KL-Cov's tokens: drops the tokens with the highest covariance of log-probability and advantage.
//!
//! The source keeps the loss of these tokens and adds a KL penalty. A mask cannot add a penalty, so
//! nothing is learnt from these tokens. `kl_cov_ratio` selects the same tokens as in the source.
//!
//! Cui et al., arXiv 2505.22617; verl, `core_algos.py`, loss mode `kl_cov`.

use capo_plugin::prelude::*;

use crate::tokens;

/// Drops the tokens whose log-probability and advantage go together most.
#[component(Mask, id = "masks.kl-cov")]
struct KlCov {
    /// Share of the tokens that is dropped, at least one token.
    #[key(default = 0.0002, at_least = 0, at_most = 1, search = 1e-5..=1.0)]
    kl_cov_ratio: f64,
}

/// Covariance of log-probability and advantage, which determines how much the entropy falls: (A −
/// mean A)(ln p − mean ln p) for each token at `places`, in their order. Both means are over these
/// tokens.
pub(crate) fn covariances(batch: &Batch, places: &[usize]) -> Vec<f32> {
    let advantage = mean(batch.advantages, places);
    let logp = mean(batch.logps, places);
    places
        .iter()
        .map(|&i| (batch.advantages[i] - advantage) * (batch.logps[i] - logp))
        .collect()
}

/// Mean of the values at `places`; 0 for no places.
fn mean(values: &[f32], places: &[usize]) -> f32 {
    let sum: f64 = places.iter().map(|&i| f64::from(values[i])).sum();
    (sum / places.len().max(1) as f64) as f32
}

impl Mask for KlCov {
    fn mask(
        &mut self,
        _: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let left = tokens::left(token_mask);
        let mut ranked: Vec<(usize, f32)> = left
            .iter()
            .copied()
            .zip(covariances(batch, &left))
            .collect();
        ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let count = ((self.kl_cov_ratio * left.len() as f64) as usize).max(1);
        ranked
            .into_iter()
            .take(count)
            .for_each(|(i, _)| token_mask[i] = 0);
        Ok(())
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}
