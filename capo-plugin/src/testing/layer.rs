//! The last layer of a fixture.

use super::wobble;
use crate::batch::{Dims, LastLayer, OptimizerState};
use crate::tensor::Tensor;

/// What [`Batch::last_layer`](crate::Batch::last_layer) and the optimizer's state of it borrow from.
#[derive(Clone, Debug)]
pub(super) struct LayerData {
    pub(super) vocab_size: usize,
    pub(super) hidden: (Vec<f32>, [i64; 3]),
    pub(super) topk_ids: Vec<u32>,
    pub(super) topk_logits: (Vec<f32>, [i64; 3]),
    pub(super) logsumexp: Vec<f32>,
    pub(super) action_logits: (Vec<f32>, [i64; 2]),
    /// Weight and moments, one after another, `[V, D]` each.
    pub(super) state: ([Vec<f32>; 3], [i64; 2]),
}

impl LayerData {
    pub(super) fn new(dims: Dims, width: usize, k: usize, vocab_size: usize) -> Self {
        let n = dims.len();
        let (b, t) = (dims.completions as i64, dims.tokens as i64);
        // Ids descend from V − 1, shifted per token so that rows of the vocabulary are shared unevenly.
        let topk_ids = (0..n * k).map(|i| ((i / k) * 3 + i % k) as u32 % vocab_size as u32).collect();
        let state = |salt| (0..vocab_size * width).map(|i| 1e-3 * wobble(salt, i)).collect();
        let topk_logits = (0..n * k).map(|i| 2.0 - (i % k) as f32 - 0.5 * wobble(6, i)).collect();
        Self {
            vocab_size,
            hidden: ((0..n * width).map(|i| wobble(7, i) * 2.0 - 1.0).collect(), [b, t, width as i64]),
            topk_ids,
            topk_logits: (topk_logits, [b, t, k as i64]),
            logsumexp: (0..n).map(|i| 3.0 + wobble(8, i)).collect(),
            action_logits: (vec![0.0; n], [b, t]),
            state: ([9, 10, 11].map(state), [vocab_size as i64, width as i64]),
        }
    }

    pub(super) fn borrow(&self) -> LastLayer<'_> {
        LastLayer::new(
            Tensor::from_f32(&self.hidden.0, &self.hidden.1),
            Tensor::from_u32(&self.topk_ids, &self.topk_logits.1),
            Tensor::from_f32(&self.topk_logits.0, &self.topk_logits.1),
            Tensor::from_f32(&self.logsumexp, &self.action_logits.1),
            Tensor::from_f32(&self.action_logits.0, &self.action_logits.1),
            self.vocab_size,
        )
    }

    pub(super) fn borrow_state(&self) -> OptimizerState<'_> {
        let ([weight, exp_avg, exp_avg_sq], shape) = &self.state;
        OptimizerState::new(
            Tensor::from_f32(weight, shape),
            Tensor::from_f32(exp_avg, shape),
            Tensor::from_f32(exp_avg_sq, shape),
        )
    }
}
