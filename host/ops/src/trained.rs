//! Weights and moments that a step of AdamW reads and writes.

use candle_core::Tensor;

use super::optimizer::{Mean, MeanSquare};

/// A weight with what its step reads and writes, all of its shape.
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

/// A step of all weights: [`Mean`], [`MeanSquare`] and [`Update`](super::optimizer::Update) after
/// each other.
pub struct AdamW {
    /// The mean of gradients.
    pub mean: Mean,
    /// The mean of their squares.
    pub square: MeanSquare,
    /// As in [`Update`](super::optimizer::Update), as the next two.
    pub rate: f64,
    /// Square root of the bias correction of the mean square.
    pub root: f64,
    /// Term added to the root.
    pub eps: f64,
}
