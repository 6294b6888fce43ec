//! The remaining tokens when a mask is called, and drops among them.

use capo_plugin::Traits;

/// Declarations of a component that decides each token alone and keeps no state.
pub(crate) const ALONE: Traits = Traits(Traits::TOKEN_WISE.0 | Traits::SUMS_RANKS.0 | Traits::NO_OPTIMIZER.0);

/// Drops the tokens for which `drops` is true.
pub(crate) fn drop_where(keep: &mut [u8], drops: impl Fn(usize) -> bool) {
    for (i, keep) in keep.iter_mut().enumerate() {
        *keep &= u8::from(!drops(i));
    }
}

/// Indices of the remaining tokens.
pub(crate) fn left(keep: &[u8]) -> Vec<usize> {
    (0..keep.len()).filter(|&i| keep[i] == 1).collect()
}
