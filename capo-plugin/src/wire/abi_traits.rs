//! The wire of what a mask or weight declares of its decisions, frozen at revision 1: an extension that came after the points, under an
//! id of its own. The rules of [`crate::abi`] hold here too.

use std::ops::BitOr;

use abi_stable::StableAbi;
use abi_stable::std_types::{RResult, RStr};

use crate::abi::WireError;

/// Extension id of [`TraitsPoint`].
pub const TRAITS_POINT: &str = "capo.mask-traits/1";

/// Behind [`TRAITS_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct TraitsPoint {
    /// Declarations of component `id` at the point with extension id `point`, a mask's or a weight's, that is built from its table as JSON
    /// text. None where there is no such component.
    pub traits: extern "C" fn(point: RStr<'_>, id: RStr<'_>, config: RStr<'_>) -> RResult<MaskTraits, WireError>,
}

/// Facts about how a mask or a weight works, as its table makes it: a set of flags, open to more.
///
/// A host may rely on a fact that is declared, and needs to rely on none; flags that it does not know mean nothing to it.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaskTraits(pub u32);

impl MaskTraits {
    /// Nothing is declared.
    pub const NONE: Self = Self(0);
    /// Each token is decided from its own entries of the batch, what the batch says of its completion as a whole (`rewards`, `truncated`),
    /// the batch's settings, and the state before the step. So a host may call `mask` or `weigh` on parts of a step's batch, whole
    /// completions each and in any split, before the one `step_end` with the whole, and gets the same decisions.
    pub const TOKEN_WISE: Self = Self(1);
    /// Where [`Ctx::collective`](crate::Ctx::collective) connects more than one rank, a `step_end` on the rows of each leaves
    /// the same state on all of them, that of a `step_end` on the whole batch but for rounding. So a host need not gather the
    /// batch for it. A component without state may declare it.
    pub const SUMS_RANKS: Self = Self(1 << 1);
    /// No method reads [`Batch::optimizer`](crate::Batch::optimizer). So a host that knows none may call it all the same.
    pub const NO_OPTIMIZER: Self = Self(1 << 2);

    /// True if every flag of `other` is set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These where `holds`, and else nothing.
    #[must_use]
    pub fn only_if(self, holds: bool) -> Self {
        if holds { self } else { Self::NONE }
    }
}

impl BitOr for MaskTraits {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
