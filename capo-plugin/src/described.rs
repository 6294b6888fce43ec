//! What this image says of its components: their keys' names, what they mean, where a search for their values makes sense; and what masks
//! and weights declare of their decisions.

use abi_stable::std_types::{RResult, RStr, RString, RVec};

use crate::abi::WireError;
use crate::abi_keys::KeyInfo;
use crate::abi_sweep::SweepRange;
use crate::abi_traits::MaskTraits;
use crate::keys::Key;
use crate::register::Entry;

/// The keys of `entry`: those that its type reads, or, where its type does not say, those that its author describes. None where
/// asking the type panics, which must not cross the ABI.
pub(crate) fn keys_of(entry: &Entry) -> RVec<RString> {
    match std::panic::catch_unwind(entry.keys) {
        Ok(Some(keys)) => keys.iter().map(|key| (*key).into()).collect(),
        Ok(None) => entry.docs.list().into_iter().map(|key| key.info.name).collect(),
        Err(payload) => {
            std::mem::forget(payload);
            RVec::new()
        }
    }
}

/// Behind `capo.keys/1`.
pub(crate) extern "C" fn describe(point: RStr<'_>, id: RStr<'_>) -> RVec<KeyInfo> {
    described(point, id).into_iter().map(|key| key.info).collect()
}

/// Behind `capo.sweep/1`.
pub(crate) extern "C" fn ranges(point: RStr<'_>, id: RStr<'_>) -> RVec<SweepRange> {
    described(point, id).into_iter().filter_map(|key| key.range).collect()
}

/// Behind `capo.mask-traits/1`.
pub(crate) extern "C" fn traits(point: RStr<'_>, id: RStr<'_>, config: RStr<'_>) -> RResult<MaskTraits, WireError> {
    let declared = entry(point, id).map_or(Ok(MaskTraits::NONE), |entry| (entry.traits)(config.as_str()));
    declared.map_err(WireError::from).into()
}

fn described(point: RStr<'_>, id: RStr<'_>) -> Vec<Key> {
    entry(point, id).map(|entry| entry.docs.list()).unwrap_or_default()
}

fn entry(point: RStr<'_>, id: RStr<'_>) -> Option<&'static Entry> {
    let asked = |entry: &&Entry| entry.make.point().extension_id() == point.as_str() && entry.id == id.as_str();
    inventory::iter::<Entry>.into_iter().find(asked)
}
