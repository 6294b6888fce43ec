//! Size of each token's contribution to the gradient, computed from a batch file.
//!
//! A token's gradient by the last layer's weight W is `w (e_a − p) ⊗ h ÷ τ`. Here w is its
//! derivative, p are the policy's probabilities at temperature τ, a is the sampled token, and h is
//! the logits' feature. Its squared norm is `w² ‖e_a − p‖² ‖h‖² ÷ τ²`.

use anyhow::Result;
use capo_plugin::{Batch, LastLayer};

use crate::stages::backward::reduction_scales;

/// `[B, T]`: w, the derivative of the reduced loss by each token's log-probability with nothing
/// rejected. If the batch has no derivative of the objective, minus the advantage replaces it.
pub fn derivatives(batch: &Batch<'_>) -> Result<Vec<f64>> {
    let scales = reduction_scales(
        batch.dims,
        batch.reduction,
        batch.max_completion_length,
        batch.completion_mask,
    )?;
    let tokens = batch.dims.tokens.max(1) as usize;
    Ok((0..batch.dims.len())
        .map(|i| {
            let slope = match batch.dloss_dlogp {
                Some(slopes) => slopes[i],
                None => -batch.advantages[i],
            };
            scales[i / tokens] * f64::from(slope)
        })
        .collect())
}

/// `1 − p` of a token with this log-probability, computed without cancellation.
pub fn unlikeliness(logp: f32) -> f64 {
    -f64::from(logp).exp_m1()
}

fn last_extent(shape: &[i64]) -> usize {
    shape.last().map_or(0, |&extent| extent as usize)
}

/// The last layer of a batch, in host memory.
pub struct Layer<'a> {
    batch: Batch<'a>,
    hidden: &'a [f32],
    ids: &'a [u32],
    logits: &'a [f32],
    logsumexp: &'a [f32],
    /// D, the feature width, and K, the number of top logits.
    width: usize,
    k: usize,
}

impl<'a> Layer<'a> {
    pub fn new(batch: &Batch<'a>, layer: &LastLayer<'a>) -> Result<Self> {
        Ok(Self {
            batch: *batch,
            hidden: layer.hidden.as_f32()?,
            ids: layer.topk_ids.as_u32()?,
            logits: layer.topk_logits.as_f32()?,
            logsumexp: layer.logsumexp.as_f32()?,
            width: last_extent(layer.hidden.shape()),
            k: last_extent(layer.topk_ids.shape()),
        })
    }

    /// `‖e_a − p‖² ‖h‖² ÷ τ²` of token i of `[B, T]`. The sum over p includes the sampled token and
    /// the K most probable ones. The squares of the others are left out; they are at most their
    /// probability times the smallest of the K probabilities.
    pub fn squared_norm(&self, i: usize) -> f64 {
        let temperature = f64::from(self.batch.loss_temperature);
        let mut spread = 0.0;
        for j in i * self.k..(i + 1) * self.k {
            if self.ids[j] != self.batch.completion_ids[i] {
                let logp = f64::from(self.logits[j]) / temperature - f64::from(self.logsumexp[i]);
                spread += logp.min(0.0).exp().powi(2);
            }
        }
        spread += unlikeliness(self.batch.logps[i]).powi(2);
        let feature = &self.hidden[i * self.width..][..self.width];
        let length: f64 = feature.iter().map(|&h| f64::from(h).powi(2)).sum();
        spread * length / temperature.powi(2)
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::Fixture;
    use capo_plugin::{Reduction, Tensor};

    use super::*;

    /// Two completions of one and two tokens, with two features and a vocabulary of four, of which
    /// the top two logits are kept.
    fn layered(check: impl FnOnce(&Batch<'_>)) {
        let logps = [0.5_f32.ln(), 0.0, 0.25_f32.ln(), 0.125_f32.ln()];
        let hidden = [3.0, 4.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0];
        let ids = [1, 2, 0, 1, 3, 0, 0, 1];
        // ln p of the kept tokens, which is their logit because the logsumexp is 0.
        let logits = [0.5, 0.25, 1.0, 1.0, 0.5, 0.25, 0.5, 0.25].map(f32::ln);
        let (zeros, b_t) = ([0.0; 4], [2, 2]);
        let layer = LastLayer::new(
            Tensor::from_f32(&hidden, &[2, 2, 2]),
            Tensor::from_u32(&ids, &[2, 2, 2]),
            Tensor::from_f32(&logits, &[2, 2, 2]),
            Tensor::from_f32(&zeros, &b_t),
            Tensor::from_f32(&zeros, &b_t),
            4,
        );
        let fixture = Fixture::new(2, 2)
            .completion_ids(&[1, 0, 0, 2])
            .logps(&logps)
            .advantages(&[2.0, 0.0, -1.0, 4.0])
            .last_layer(layer)
            .lengths(&[1, 2]);
        check(&fixture.batch());
    }

    #[test]
    fn the_reduction_multiplies_a_tokens_derivative() {
        layered(|batch| {
            let mut batch = *batch;
            batch.max_completion_length = 10;
            let mut of = |reduction| {
                batch.reduction = reduction;
                derivatives(&batch)
            };
            let mut values = |reduction| of(reduction).unwrap();
            assert_eq!(values(Reduction::COMPLETION_MEAN), [-1.0, 0.0, 0.25, -1.0]);
            assert_eq!(values(Reduction::FIXED_LENGTH), [-0.1, 0.0, 0.05, -0.2]);
            let third = 1.0 / 3.0;
            assert_eq!(
                values(Reduction::TOKEN_MEAN),
                [-2.0 * third, 0.0, third, -4.0 * third]
            );
            let error = of(Reduction(9)).unwrap_err().to_string();
            assert!(error.contains("reduction 9"), "{error}");
            (batch.reduction, batch.dloss_dlogp) = (Reduction::COMPLETION_MEAN, None);
            assert_eq!(derivatives(&batch).unwrap()[2], 0.25, "minus the advantage");
        });
    }

    #[test]
    fn squared_norm_has_the_policy_and_the_feature() {
        layered(|batch| {
            let layer = Layer::new(batch, &batch.last_layer.unwrap()).unwrap();
            let close = |i: usize, expected: f64| {
                let norm = layer.squared_norm(i);
                assert!(
                    (norm - expected).abs() < 1e-6 * expected,
                    "{i}: {norm}, expected {expected}"
                );
            };
            // The sampled token, with p = 1/2, is among the two kept: (1 - 1/2)² + (1/4)².
            close(0, (0.25 + 0.0625) * 25.0);
            // Kept are token 0, with p = 1/4, and another token, with p = 1/2.
            close(2, (0.5625 + 0.25) * 1.0);
            // The sampled token, with p = 1/8, is not among the kept ones.
            close(3, (0.875_f64.powi(2) + 0.25 + 0.0625) * 4.0);
        });
    }

    #[test]
    fn logits_are_divided_by_the_temperature() {
        layered(|batch| {
            let mut warm = *batch;
            warm.loss_temperature = 2.0;
            let layer = Layer::new(&warm, &warm.last_layer.unwrap()).unwrap();
            // The other kept token has the square root of 1/4.
            let expected = (0.25 + 0.25) * 25.0 / 4.0;
            assert!(
                (layer.squared_norm(0) - expected).abs() < 1e-6,
                "{}",
                layer.squared_norm(0)
            );
        });
    }
}
