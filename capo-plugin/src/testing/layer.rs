//! The last layer of a fixture.

use super::wobble;
use crate::{Dims, LastLayer, OptimizerState, Tensor};

/// Arrays that [`Batch::last_layer`](crate::Batch::last_layer) and its optimizer state borrow.
#[derive(Clone, Debug)]
pub(super) struct LayerData {
    pub(super) vocab_size: usize,
    pub(super) hidden: (Vec<f32>, [i64; 3]),
    pub(super) topk_ids: Vec<u32>,
    pub(super) topk_logits: (Vec<f32>, [i64; 3]),
    pub(super) logsumexp: Vec<f32>,
    pub(super) action_logits: (Vec<f32>, [i64; 2]),
    /// Weight and moments in sequence, `[V, D]` each.
    pub(super) state: ([Vec<f32>; 3], [i64; 2]),
}

impl LayerData {
    pub(super) fn new(dims: Dims, width: usize, k: usize, vocab_size: usize) -> Self {
        let n = dims.len();
        let (b, t) = (dims.completions as i64, dims.tokens as i64);
        // Ids ascend from an offset per token, so that tokens share rows of the vocabulary
        // unevenly.
        let topk_ids = (0..n * k)
            .map(|i| ((i / k) * 3 + i % k) as u32 % vocab_size as u32)
            .collect();
        let topk_logits = (0..n * k)
            .map(|i| 2.0 - (i % k) as f32 - 0.5 * wobble(6, i))
            .collect();
        Self {
            vocab_size,
            hidden: (
                (0..n * width).map(|i| wobble(7, i) * 2.0 - 1.0).collect(),
                [b, t, width as i64],
            ),
            topk_ids,
            topk_logits: (topk_logits, [b, t, k as i64]),
            logsumexp: (0..n).map(|i| 3.0 + wobble(8, i)).collect(),
            action_logits: (vec![0.0; n], [b, t]),
            state: state(vocab_size, width),
        }
    }

    /// Copies `layer`; where D or V differ, creates new optimizer state.
    pub(super) fn replace(&mut self, dims: Dims, layer: LastLayer<'_>) {
        let (b, t) = (dims.completions as i64, dims.tokens as i64);
        let (width, k) = (last(layer.hidden), last(layer.topk_ids));
        let shapes: [(&str, Tensor<'_>, &[i64]); 5] = [
            ("hidden", layer.hidden, &[b, t, width]),
            ("topk_ids", layer.topk_ids, &[b, t, k]),
            ("topk_logits", layer.topk_logits, &[b, t, k]),
            ("logsumexp", layer.logsumexp, &[b, t]),
            ("action_logits", layer.action_logits, &[b, t]),
        ];
        for (name, tensor, shape) in shapes {
            assert_eq!(tensor.shape(), shape, "the shape of `{name}`");
        }
        let floats = |tensor: Tensor<'_>| tensor.as_f32().expect("f32 in host memory").to_vec();
        self.hidden = (floats(layer.hidden), [b, t, width]);
        self.topk_ids = layer
            .topk_ids
            .as_u32()
            .expect("u32 in host memory")
            .to_vec();
        self.topk_logits = (floats(layer.topk_logits), [b, t, k]);
        self.logsumexp = floats(layer.logsumexp);
        self.action_logits = (floats(layer.action_logits), [b, t]);
        self.vocab_size = layer.vocab_size;
        if self.state.1 != [layer.vocab_size as i64, width] {
            self.state = state(layer.vocab_size, width as usize);
        }
    }

    /// Updates the shapes to a new number of completions.
    pub(super) fn resize(&mut self, completions: usize) {
        let completions = completions as i64;
        (
            self.hidden.1[0],
            self.topk_logits.1[0],
            self.action_logits.1[0],
        ) = (completions, completions, completions);
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

/// Weight and moments of a layer with V = `vocab_size` and D = `width`.
fn state(vocab_size: usize, width: usize) -> ([Vec<f32>; 3], [i64; 2]) {
    let fill = |salt| {
        (0..vocab_size * width)
            .map(|i| 1e-3 * wobble(salt, i))
            .collect()
    };
    ([9, 10, 11].map(fill), [vocab_size as i64, width as i64])
}

/// Last extent of a tensor's shape.
fn last(tensor: Tensor<'_>) -> i64 {
    tensor.shape().last().copied().unwrap_or(0)
}
