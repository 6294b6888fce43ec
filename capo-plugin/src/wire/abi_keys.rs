//! The wire of the keys' descriptions, frozen at revision 1: an extension that came after the points, under an id of its own. The
//! rules of [`crate::abi`] hold here too.

use abi_stable::StableAbi;
use abi_stable::std_types::{ROption, RStr, RString, RVec};

/// Extension id of [`KeysPoint`].
pub const KEYS_POINT: &str = "capo.keys/1";

/// Behind [`KEYS_POINT`].
#[repr(C)]
#[derive(StableAbi)]
pub struct KeysPoint {
    /// Meanings of the keys of component `id` at the point with extension id `point`, in the order of their author. Empty
    /// where the author gave none, or there is no such component.
    pub describe: extern "C" fn(point: RStr<'_>, id: RStr<'_>) -> RVec<KeyInfo>,
}

/// Meaning of one configuration key.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its name in a table.
    pub name: RString,
    /// One line for a person.
    pub about: RString,
    /// The value that stands for a table without the key, as JSON text; `null` where absence means something of its own. None
    /// where a table must have the key.
    pub default: ROption<RString>,
}
