//! Wire types for the search ranges of keys, frozen at revision 1. The extension came after the descriptions of keys,
//! under a separate id. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;
use abi_stable::std_types::{RStr, RString, RVec};

/// Extension id of [`SweepPoint`].
pub const SWEEP_POINT: &str = "capo.sweep/1";

/// Type behind [`SWEEP_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct SweepPoint {
    /// Search ranges for the keys of component `id` at the point with extension id `point`, in their author's order.
    /// The first key has the strongest effect on how much the component does. Empty where the author gave none, or
    /// where the component does not exist.
    pub ranges: extern "C" fn(point: RStr<'_>, id: RStr<'_>) -> RVec<SweepRange>,
}

/// Range in which to search for a good value of one configuration key.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, PartialEq)]
pub struct SweepRange {
    /// Name of the key in a table.
    pub key: RString,
    /// The lowest value. Where it is above 0, a search spaces values evenly in their logarithm.
    pub low: f64,
    /// The highest value.
    pub high: f64,
    /// True if the key takes whole numbers alone.
    pub whole: bool,
}
