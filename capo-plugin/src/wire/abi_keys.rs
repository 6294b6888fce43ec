//! Wire types for the descriptions of keys, frozen at revision 1. The extension came after the points, under a
//! separate id. The rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RStr, RString, RVec};

/// Extension id of [`KeysPoint`].
pub const KEYS_POINT: &str = "capo.keys/1";

/// Type behind [`KEYS_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct KeysPoint {
    /// Meanings of the keys of component `id` at the point with extension id `point`, in their author's order. Empty
    /// where the author gave none, or where the component does not exist.
    pub describe: extern "C" fn(point: RStr<'_>, id: RStr<'_>) -> RVec<KeyInfo>,
}

/// Meaning of one configuration key.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Name of the key in a table.
    pub name: RString,
    /// One-line description for users.
    pub about: RString,
    /// The key's default as JSON text; `null` where absence has a meaning of its own. `RNone` where a table must have
    /// the key.
    pub default: ROption<RString>,
}
