//! This image's descriptions of its components: ids, names and meanings of keys, and ranges in which to search for a
//! key's value. Also the declarations of masks and weights about their decisions.

use abi_stable::std_types::{RResult, RStr, RString, RVec};

use crate::abi::{ComponentInfo, WireError};
use crate::abi_keys::KeyInfo;
use crate::abi_sweep::SweepRange;
use crate::guard::caught;
use crate::keys::Key;
use crate::register::Entry;
use crate::{MaskTraits, PluginError, Wired};

/// All components of this image at a point.
pub(crate) extern "C" fn components<W: Wired>() -> RVec<ComponentInfo> {
    let entries = inventory::iter::<Entry>.into_iter().filter(|entry| entry.point == W::POINT);
    entries
        .map(|entry| ComponentInfo {
            id: entry.id.into(),
            about: entry.about.into(),
            package: entry.package.into(),
            version: entry.version.into(),
            keys: keys_of(entry),
        })
        .collect()
}

/// Builds component `id` of a point from its table as JSON text.
pub(crate) extern "C" fn create<W: Wired>(id: RStr<'_>, config: RStr<'_>) -> RResult<W, WireError> {
    let built = match entry(RStr::from_str(W::POINT.extension_id()), id) {
        Some(entry) => (entry.make)(config.as_str()),
        None => Err(PluginError::config(format!("the image has no component `{id}` at this point"))),
    };
    let wire = built.map(|made| *made.downcast::<W>().expect("an entry makes what its point takes"));
    wire.map_err(WireError::from).into()
}

/// The keys of `entry`: the keys that its type reads, or, where the type does not tell, the keys that its author
/// describes. Empty where the type panics when asked, because a panic must not cross the ABI.
fn keys_of(entry: &Entry) -> RVec<RString> {
    match caught(entry.keys) {
        Some(Some(keys)) => keys.iter().map(|key| (*key).into()).collect(),
        Some(None) => entry.docs.list().into_iter().map(|key| key.info.name).collect(),
        None => RVec::new(),
    }
}

/// Function behind `capo.keys/1`.
pub(crate) extern "C" fn describe(point: RStr<'_>, id: RStr<'_>) -> RVec<KeyInfo> {
    described(point, id).into_iter().map(|key| key.info).collect()
}

/// Function behind `capo.sweep/1`.
pub(crate) extern "C" fn ranges(point: RStr<'_>, id: RStr<'_>) -> RVec<SweepRange> {
    described(point, id).into_iter().filter_map(|key| key.range).collect()
}

/// Function behind `capo.mask-traits/1`.
pub(crate) extern "C" fn traits(point: RStr<'_>, id: RStr<'_>, config: RStr<'_>) -> RResult<MaskTraits, WireError> {
    let declared = entry(point, id).map_or(Ok(MaskTraits::NONE), |entry| (entry.traits)(config.as_str()));
    declared.map_err(WireError::from).into()
}

fn described(point: RStr<'_>, id: RStr<'_>) -> Vec<Key> {
    entry(point, id).map(|entry| entry.docs.list()).unwrap_or_default()
}

fn entry(point: RStr<'_>, id: RStr<'_>) -> Option<&'static Entry> {
    let asked = |entry: &&Entry| entry.point.extension_id() == point.as_str() && entry.id == id.as_str();
    inventory::iter::<Entry>.into_iter().find(asked)
}
