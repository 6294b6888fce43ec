//! The wire of the keys' ranges, frozen at revision 1: an extension that came after the keys' descriptions, under an id of its own. The
//! rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;
use abi_stable::std_types::{RStr, RString, RVec};

/// Extension id of [`SweepPoint`].
pub const SWEEP_POINT: &str = "capo.sweep/1";

/// Behind [`SWEEP_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct SweepPoint {
    /// The keys of component `id` at the point with extension id `point` for which a search makes sense, in the order of their
    /// author; the first is the one that decides how much the component does. Empty where nothing was said, or there is no such
    /// component.
    pub ranges: extern "C" fn(point: RStr<'_>, id: RStr<'_>) -> RVec<SweepRange>,
}

/// Between which values of one configuration key a search makes sense.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, PartialEq)]
pub struct SweepRange {
    /// Name of the key in a table.
    pub key: RString,
    /// The lowest value. Where it is above 0, values are spaced evenly in their logarithm.
    pub low: f64,
    /// The highest value.
    pub high: f64,
    /// True if the key takes whole numbers alone.
    pub whole: bool,
}
