//! Parts of a token's loss.

use super::clips::Side;

/// Parts of a loss at one token.
#[derive(Clone, Copy)]
pub(super) struct Token {
    /// Which completion it belongs to.
    pub completion: usize,
    /// How much more probable it is than when it was sampled.
    pub ratio: f32,
    pub advantage: f32,
    pub logp: f32,
}

/// A token's loss, and its derivatives by the ratio and, apart from that, by the log-probability.
#[derive(Default)]
pub(super) struct Term {
    pub loss: f32,
    pub by_ratio: f32,
    pub by_logp: f32,
    /// Where a limit on the ratio holds.
    pub held: Option<Side>,
}
