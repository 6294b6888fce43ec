//! Weights and moments that a step of AdamW reads and writes.

use candle_core::Tensor;

use super::optimizer::{Mean, MeanSquare};

/// A weight and the tensors that its step reads or writes. All have the weight's shape.
pub struct Trained<'a> {
    /// The weight.
    pub weight: &'a Tensor,
    /// Means of gradients and of their squares.
    pub moments: [&'a Tensor; 2],
    /// Gradient, f32 or bf16.
    pub grad: &'a Tensor,
    /// Gradient of the rejected tokens, f32 or bf16.
    pub rejected: Option<&'a Tensor>,
    /// Fraction of the weight that remains after decay.
    pub decay_factor: f64,
}

/// The rule of a step: [`Mean`], then [`MeanSquare`], then [`Update`](super::optimizer::Update).
pub struct AdamW {
    /// The mean of gradients.
    pub mean: Mean,
    /// The mean of their squares.
    pub square: MeanSquare,
    /// Learning rate, divided by the bias correction of the mean.
    pub rate: f64,
    /// Square root of the bias correction of the mean square.
    pub root: f64,
    /// Term added to the root.
    pub eps: f64,
}
