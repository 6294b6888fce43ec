//! Causal softmax over attention scores of left-padded rows, for devices whose attention is composed of several operations.

use candle_core::{Result, Tensor};

use super::{Starts, generic};

/// `softmax(scale * scores)` over the keys `starts[b]..=i` of query `i`, for `scores` `[B, H, Q, S]` of the last Q of S queries.
///
/// Other keys get 0, and so do all keys of a query in the padding (`i < starts[b]`).
pub fn causal_softmax(scores: &Tensor, starts: &Starts, scale: f64) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(scores) {
        return super::cuda::causal_softmax(scores, starts, scale);
    }
    generic::causal_softmax(scores, starts, scale)
}

/// Gradient of `causal_softmax` by `scores`, from its result `probs` and the result's gradient `grad`.
pub fn causal_softmax_backward(probs: &Tensor, grad: &Tensor, starts: &Starts, scale: f64) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if super::cuda::takes(probs) {
        return super::cuda::causal_softmax_backward(probs, grad, starts, scale);
    }
    _ = starts;
    generic::causal_softmax_backward(probs, grad, scale)
}
