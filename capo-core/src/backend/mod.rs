//! The array operations: everything whose cost grows with the width D. All else is O(K) per token, in `f64`, outside.
//!
//! | operation | gives | used by |
//! |---|---|---|
//! | `squared_norm` | `‖h‖²` of a feature | supports; token proposals, SGD |
//! | `token_projections` | `D h` per pair, D the Adam direction of the token's gradient alone | token proposals, Adam |
//! | `subset_projections` | `D h` per pair, D the direction of a subset's gradient | proposals of completions, groups, batches; both |
//! | `update_moments` | the moments after a step | `commit`, Adam |
//! | `add_up`, `take_in` | the same in two halves: the sums of one of many ranks; the moments after a step with those of all | `commit`, Adam |
//!
//! A backend streams over rows of `[D]`: no array of size N K D exists. Sums over a row run in the order of
//! `Gradients::pairs`, so that results do not depend on anything but the inputs.

pub(crate) mod cpu;
mod lanes;
pub(crate) mod parallel;
pub(crate) mod update;

/// Effect of a direction on one (row, token) pair.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Projection {
    /// `D_row . h`.
    pub v: f64,
    /// The pair's part of `‖D‖²`.
    pub squared_norm: f64,
}

/// Nearest finite `f32`: what is finite in `f64` stays finite when stored or reported.
pub(crate) fn saturate(x: f64) -> f32 {
    (x as f32).clamp(f32::MIN, f32::MAX)
}
