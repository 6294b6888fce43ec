//! The remaining tokens when a mask is called, and drops among them.

use capo_plugin::Traits;

/// Declarations of a component that decides each token alone and keeps no state.
pub(crate) const ALONE: Traits =
    Traits(Traits::TOKEN_WISE.0 | Traits::SUMS_RANKS.0 | Traits::NO_OPTIMIZER.0);

/// Drops the tokens for which `drops` is true.
pub(crate) fn drop_where(token_mask: &mut [u8], drops: impl Fn(usize) -> bool) {
    for (i, keep) in token_mask.iter_mut().enumerate() {
        *keep &= u8::from(!drops(i));
    }
}

/// Indices of the remaining tokens.
pub(crate) fn left(token_mask: &[u8]) -> Vec<usize> {
    (0..token_mask.len())
        .filter(|&i| token_mask[i] == 1)
        .collect()
}
