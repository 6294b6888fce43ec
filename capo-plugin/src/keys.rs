//! Meanings of a component's keys: the macro `keys!` for plugins, and the check that descriptions cover exactly the
//! keys that the component reads.

use std::ops::Range;

use abi_stable::std_types::ROption;
use serde::Serialize;

use crate::abi_keys::KeyInfo;
use crate::abi_sweep::SweepRange;
use crate::guard::caught;
use crate::nearest;

/// Descriptions of a component's keys, made by [`keys!`](crate::keys).
#[derive(Clone, Copy)]
pub struct KeyDocs {
    list: fn() -> Vec<Key>,
}

/// An author's description of one key.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    pub(crate) info: KeyInfo,
    pub(crate) range: Option<SweepRange>,
}

impl From<KeyInfo> for Key {
    fn from(info: KeyInfo) -> Self {
        Self { info, range: None }
    }
}

impl Key {
    /// Adds a range in which to search for a good value.
    #[must_use]
    pub fn searched(self, range: impl Into<Ends>) -> Self {
        let Ends { low, high, whole } = range.into();
        let range = SweepRange { key: self.info.name.clone(), low, high, whole };
        Self { range: Some(range), ..self }
    }
}

/// Ends of a key's range: real or whole numbers.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    low: f64,
    high: f64,
    whole: bool,
}

impl From<Range<f64>> for Ends {
    fn from(range: Range<f64>) -> Self {
        Self { low: range.start, high: range.end, whole: false }
    }
}

impl From<Range<i32>> for Ends {
    fn from(range: Range<i32>) -> Self {
        Self { low: range.start.into(), high: range.end.into(), whole: true }
    }
}

impl KeyDocs {
    /// No descriptions.
    pub const NONE: Self = Self::new(Vec::new);

    #[doc(hidden)]
    pub const fn new(list: fn() -> Vec<Key>) -> Self {
        Self { list }
    }

    /// The descriptions; empty where a default panics, because a panic must not cross the ABI.
    pub(crate) fn list(self) -> Vec<Key> {
        caught(self.list).unwrap_or_default()
    }
}

impl KeyInfo {
    /// A key that a table must have.
    pub fn required(name: &str, about: &str) -> Self {
        Self { name: name.into(), about: about.into(), default: ROption::RNone }
    }

    /// A key that a table may leave out.
    pub fn optional(name: &str, about: &str, default: &impl Serialize) -> Self {
        let default = serde_json::to_string(default).unwrap_or_else(|_| "null".into());
        Self { name: name.into(), about: about.into(), default: ROption::RSome(default.into()) }
    }

    /// The key's default as JSON text; `null` where absence has a meaning of its own. `None` where a table must have
    /// the key.
    pub fn default(&self) -> Option<&str> {
        self.default.as_ref().map(abi_stable::std_types::RString::as_str).into_option()
    }
}

/// Describes a component's keys. A required key is `name => "what it means"`. An optional key is
/// `name = default => "..."`, or `name = None::<T> => "..."` where absence has a meaning of its own.
///
/// `; LOW..HIGH` after a description gives the range in which to search for a good value: `1e-3..50.0`, or `1..100`
/// for a key of whole numbers. `host compare-masks --target-rate` varies the first key with a range. The component
/// must accept both ends.
///
/// Where several ids share a type, pass the result to [`register!`](crate::register) as a constant. For one id,
/// `register!` takes the same list in braces.
///
/// ```
/// use capo_plugin::{KeyDocs, keys};
///
/// struct SurpriseCap;
///
/// impl SurpriseCap {
///     const KEYS: KeyDocs = keys! {
///         max_nats => "largest `-logp` kept, nats"; 1e-3..50.0,
///         warm_up = 10 => "steps that keep all",
///         share = None::<f32> => "largest share of tokens dropped; no limit when absent",
///     };
/// }
/// ```
#[macro_export]
macro_rules! keys {
    ($($name:ident $(= $default:expr)? => $about:expr $(; $range:expr)?),* $(,)?) => {
        $crate::KeyDocs::new(|| ::std::vec![
            $($crate::__private::Key::from($crate::__key!($name, $about $(, $default)?))$(.searched($range))?),*
        ])
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __key {
    ($name:ident, $about:expr) => {
        $crate::abi_keys::KeyInfo::required(::core::stringify!($name), $about)
    };
    ($name:ident, $about:expr, $default:expr) => {
        $crate::abi_keys::KeyInfo::optional(::core::stringify!($name), $about, &$default)
    };
}

/// Refuses descriptions unless they cover exactly the keys `read`, each once and with text. An empty `docs` passes.
pub(crate) fn check(docs: &[KeyInfo], read: &[&str]) -> Result<(), String> {
    if docs.is_empty() {
        return Ok(());
    }
    for (i, key) in docs.iter().enumerate() {
        let name = key.name.as_str();
        if !read.contains(&name) {
            let hint = nearest(name, read.iter().copied())
                .map_or("leave it out".into(), |near| format!("did you mean `{near}`?"));
            return Err(format!("key `{name}` is described, but nothing reads it ({hint})"));
        }
        if docs[..i].iter().any(|other| other.name == key.name) {
            return Err(format!("key `{name}` is described twice (leave one out)"));
        }
        if key.about.trim().is_empty() || key.about.contains('\n') {
            return Err(format!("key `{name}` is described by {:?} (write one line)", key.about.as_str()));
        }
    }
    match read.iter().find(|name| docs.iter().all(|key| key.name.as_str() != **name)) {
        None => Ok(()),
        Some(name) => Err(format!("key `{name}` is read, but not described (add it to the list in `register!`)")),
    }
}

/// Refuses a range whose key is not described or not numeric, or whose ends are out of order.
pub(crate) fn check_ranges(docs: &[KeyInfo], ranges: &[SweepRange]) -> Result<(), String> {
    for SweepRange { key, low, high, .. } in ranges {
        let Some(doc) = docs.iter().find(|doc| doc.name == *key) else {
            return Err(format!("key `{key}` has a range, but is not described (say what it means)"));
        };
        let default = doc.default().and_then(|text| serde_json::from_str(text).ok());
        if default.is_some_and(|default: serde_json::Value| !default.is_number() && !default.is_null()) {
            let default = doc.default().unwrap_or_default();
            return Err(format!(
                "key `{key}` has a range, but is {default} where a table leaves it out (ranges are for numbers)"
            ));
        }
        if !(low.is_finite() && high.is_finite() && low < high) {
            return Err(format!(
                "the range of key `{key}` is {low:?}..{high:?} (both ends must be numbers, the first the lower one)"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_of_the_keys_that_there_are() {
        let infos = |docs: KeyDocs| docs.list().into_iter().map(|key| key.info).collect::<Vec<_>>();
        let check = |docs: KeyDocs, read: &[&str]| check(&infos(docs), read);
        let say = |docs: KeyDocs, read: &[&str]| check(docs, read).unwrap_err();
        let both = ["max_nats", "warm_up"];
        let docs = keys! { warm_up = 10 => "steps that keep all", max_nats => "largest surprise kept" };
        assert_eq!(check(docs, &both), Ok(()));
        assert_eq!(check(KeyDocs::NONE, &both), Ok(()), "nothing has to be said");
        let said = [
            say(docs, &["max_nat"]),
            say(keys! { max_nat => "largest" }, &both),
            say(keys! { max_nats => "largest" }, &both),
            say(keys! { max_nats => "largest", max_nats => "again" }, &both),
            say(keys! { max_nats => " " }, &both),
        ];
        assert_eq!(include_str!("keys_refused.txt").lines().collect::<Vec<_>>(), said);
    }

    #[test]
    fn defaults_are_json() {
        let docs = keys! {
            a = 0.2_f32 => "a",
            b = "x" => "b",
            c = [1, 2] => "c",
            d = None::<f32> => "d",
            e = f32::INFINITY => "e",
            f => "f",
        };
        let defaults = docs.list().iter().map(|key| key.info.default().map(str::to_owned)).collect::<Vec<_>>();
        let expected = [Some("0.2"), Some("\"x\""), Some("[1,2]"), Some("null"), Some("null"), None];
        assert_eq!(defaults, expected.map(|default| default.map(str::to_owned)));
    }

    #[test]
    fn ranges_are_of_described_numbers() {
        let check = |docs: KeyDocs| {
            let (infos, ranges): (Vec<_>, Vec<_>) = docs.list().into_iter().map(|key| (key.info, key.range)).unzip();
            check_ranges(&infos, &ranges.into_iter().flatten().collect::<Vec<_>>())
        };
        let good = keys! {
            a => "a"; 1e-3..50.0,
            b = 3 => "b"; 1..100,
            c = None::<f32> => "c"; -1.0..1.0,
            d = f32::INFINITY => "d"; 0.0..f64::from(1.5_f32),
            e = "x" => "e",
        };
        assert_eq!(check(good), Ok(()));
        let keys = good.list();
        let ranges: Vec<_> =
            keys.iter().map(|key| key.range.as_ref().map(|range| (range.low, range.high, range.whole))).collect();
        let expected = [
            Some((1e-3, 50.0, false)),
            Some((1.0, 100.0, true)),
            Some((-1.0, 1.0, false)),
            Some((0.0, 1.5, false)),
            None,
        ];
        assert_eq!(ranges, expected);
        let stray = good.list().remove(0).range.unwrap();
        let refused = [
            check(keys! { mode = "hard" => "how"; 0.0..1.0 }),
            check(keys! { a => "a"; 50.0..1e-3 }),
            check(keys! { a => "a"; 2..2 }),
            check(keys! { a => "a"; 0.0..f64::INFINITY }),
            check_ranges(&[], &[stray]),
        ];
        let said = refused.map(Result::unwrap_err);
        assert_eq!(include_str!("ranges_refused.txt").lines().collect::<Vec<_>>(), said);
    }
}
