//! Covariance of a token's log-probability and its advantage, which determines how much the entropy falls (arXiv 2505.22617).

use capo_plugin::prelude::*;

/// (A − mean A)(ln p − mean ln p) for each token at `places`, in their order; both means are over these tokens.
pub(crate) fn covariances(batch: &Batch, places: &[usize]) -> Vec<f32> {
    let mean = |values: &[f32]| {
        let sum: f64 = places.iter().map(|&i| f64::from(values[i])).sum();
        (sum / places.len().max(1) as f64) as f32
    };
    let (advantage, logp) = (mean(batch.advantages), mean(batch.logps));
    places.iter().map(|&i| (batch.advantages[i] - advantage) * (batch.logps[i] - logp)).collect()
}
