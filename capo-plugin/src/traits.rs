//! What masks and weights declare about their decisions.

use std::ops::BitOr;

use abi_stable::StableAbi;

/// Facts about a mask or a weight with a given table: a set of flags, which may grow.
///
/// A host may rely on a declared fact, but need not rely on any. It ignores flags that it does not
/// know.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Traits(pub u64);

impl Traits {
    /// No declaration.
    pub const NONE: Self = Self(0);
    /// The decision about a token depends only on the token's own entries of the batch, its
    /// completion's `rewards` and `truncated`, the batch's settings, and the state before the step.
    /// A host may therefore call `mask` or `weigh` on parts of a step's batch, split in any way
    /// between completions, before one `step_end` with the whole batch. The decisions stay the
    /// same.
    pub const TOKEN_WISE: Self = Self(1);
    /// Where [`Ctx::collective`](crate::Ctx::collective) connects several ranks, `step_end` on each
    /// rank's rows leaves equal state on all ranks. Up to rounding, it is the state after
    /// `step_end` on the whole batch. A host therefore need not gather the batch. A component
    /// without state may declare this.
    pub const SUMS_RANKS: Self = Self(1 << 1);
    /// No method reads [`Batch::optimizer`](crate::Batch::optimizer). A host without an optimizer
    /// may therefore call the component.
    pub const NO_OPTIMIZER: Self = Self(1 << 2);

    /// True if every flag of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// `self` if `holds`, else `NONE`.
    #[must_use]
    pub fn only_if(self, holds: bool) -> Self {
        if holds { self } else { Self::NONE }
    }
}

impl BitOr for Traits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
