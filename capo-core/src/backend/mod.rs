//! The array operations: all work whose cost grows with the width D. The remaining work is O(K) per
//! token, in `f64`, elsewhere.
//!
//! | operation | gives | used by |
//! |---|---|---|
//! | `squared_norm` | `‖h‖²` of a feature | supports; token proposals, SGD |
//! | `token_projections` | `D h` per pair, D the Adam direction of the token's gradient alone | token proposals, Adam |
//! | `subset_projections` | `D h` per pair, D the direction of a subset's gradient | proposals of completions, groups, batches; both |
//! | `sum_rows` | the moments after a step | `commit`, Adam |
//! | `add_up`, `take_in` | the same in two halves: one rank's sums; then the new moments from all ranks' sums | `commit`, Adam |
//!
//! A backend streams over rows of `[D]`: no array of size N K D exists. Sums over a row run in the
//! order of `Gradients::pairs`, so results depend on the inputs only.

pub(crate) mod cpu;
mod lanes;
pub(crate) mod parallel;
pub(crate) mod update;

/// Effect of a direction on one (row, token) pair.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Projection {
    /// `D_row . h`.
    pub v: f64,
    /// The pair's contribution to `‖D‖²`.
    pub squared_norm: f64,
}

/// Nearest finite `f32`: a finite `f64` stays finite when stored or reported.
pub(crate) fn saturate(x: f64) -> f32 {
    (x as f32).clamp(f32::MIN, f32::MAX)
}
