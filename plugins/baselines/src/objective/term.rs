//! The parts of a token's loss.

use super::clips::Side;

/// Inputs of the loss at one token.
#[derive(Clone, Copy)]
pub(super) struct Token {
    /// Index of the token's completion.
    pub completion: usize,
    /// Ratio of the token's probability now to its probability when sampled.
    pub ratio: f32,
    pub advantage: f32,
    pub logp: f32,
}

/// A token's loss with its derivatives by the ratio and, separately, by the log-probability.
#[derive(Default)]
pub(super) struct Term {
    pub loss: f32,
    pub by_ratio: f32,
    pub by_logp: f32,
    /// Side on which the ratio is clipped, if it is.
    pub held: Option<Side>,
}
