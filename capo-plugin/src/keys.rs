//! Meanings of a component's keys: the macro `keys!` for plugins, and the check that descriptions
//! cover exactly the keys that the component reads.

use std::ops::Range;

use abi_stable::std_types::{ROption, RString};
use serde::Serialize;

use crate::guard::caught;
use crate::nearest;
use crate::wire::{ComponentInfo, KeyDoc, KeyRange};

/// Descriptions of a component's keys, made by [`keys!`](crate::keys).
#[derive(Clone, Copy)]
pub struct KeyDocs {
    list: fn() -> Vec<KeyDoc>,
}

impl From<Range<f64>> for KeyRange {
    fn from(range: Range<f64>) -> Self {
        Self {
            low: range.start,
            high: range.end,
            whole: false,
        }
    }
}

impl From<Range<i32>> for KeyRange {
    fn from(range: Range<i32>) -> Self {
        Self {
            low: range.start.into(),
            high: range.end.into(),
            whole: true,
        }
    }
}

impl KeyDocs {
    /// No descriptions.
    pub const NONE: Self = Self::new(Vec::new);

    #[doc(hidden)]
    pub const fn new(list: fn() -> Vec<KeyDoc>) -> Self {
        Self { list }
    }

    /// The descriptions; empty where a default panics, because a panic must not cross the ABI.
    pub(crate) fn list(self) -> Vec<KeyDoc> {
        caught(self.list).unwrap_or_default()
    }
}

impl KeyDoc {
    /// A key that a table must have.
    pub fn required(name: &str, about: &str) -> Self {
        Self {
            name: name.into(),
            about: about.into(),
            default: ROption::RNone,
            range: ROption::RNone,
        }
    }

    /// A key that a table may leave out.
    pub fn optional(name: &str, about: &str, default: &impl Serialize) -> Self {
        let default = serde_json::to_string(default).unwrap_or_else(|_| "null".into());
        Self {
            default: ROption::RSome(default.into()),
            ..Self::required(name, about)
        }
    }

    /// This key with a range in which to search for a good value: `1e-3..50.0` or `1..100`.
    #[must_use]
    pub fn searched(self, range: impl Into<KeyRange>) -> Self {
        Self {
            range: ROption::RSome(range.into()),
            ..self
        }
    }

    /// [`default`](Self#structfield.default) as text.
    pub fn default(&self) -> Option<&str> {
        self.default.as_ref().map(RString::as_str).into_option()
    }
}

impl ComponentInfo {
    /// Checks the author's descriptions of keys: they must cover exactly the keys that the
    /// component reads, each once and with text, with valid ranges of numbers. No descriptions at
    /// all pass.
    ///
    /// # Errors
    ///
    /// The first faulty key.
    pub fn check_key_docs(&self) -> Result<(), String> {
        check(
            &self.key_docs,
            &self.keys.iter().map(RString::as_str).collect::<Vec<_>>(),
        )
    }
}

/// Describes a component's keys. A required key is `name => "what it means"`. An optional key is
/// `name = default => "..."`, or `name = None::<T> => "..."` where absence has a meaning of its
/// own.
///
/// `; LOW..HIGH` after a description gives the range in which to search for a good value:
/// `1e-3..50.0`, or `1..100` for a key of whole numbers. `host compare-masks --target-rate` varies
/// the first key with a range. The component must accept both ends.
///
/// Where several ids share a type, pass the result to [`register!`](crate::register) as a constant.
/// For one id, `register!` takes the same list in braces.
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
            $($crate::__key!($name, $about $(, $default)?)$(.searched($range))?),*
        ])
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __key {
    ($name:ident, $about:expr) => {
        $crate::wire::KeyDoc::required(::core::stringify!($name), $about)
    };
    ($name:ident, $about:expr, $default:expr) => {
        $crate::wire::KeyDoc::optional(::core::stringify!($name), $about, &$default)
    };
}

fn check(docs: &[KeyDoc], read: &[&str]) -> Result<(), String> {
    for (i, key) in docs.iter().enumerate() {
        let name = key.name.as_str();
        if !read.contains(&name) {
            let hint = nearest(name, read.iter().copied()).map_or("leave it out".into(), |near| {
                format!("did you mean `{near}`?")
            });
            return Err(format!(
                "key `{name}` is described, but nothing reads it ({hint})"
            ));
        }
        if docs[..i].iter().any(|other| other.name == key.name) {
            return Err(format!("key `{name}` is described twice (leave one out)"));
        }
        if key.about.trim().is_empty() || key.about.contains('\n') {
            return Err(format!(
                "key `{name}` is described by {:?} (write one line)",
                key.about.as_str()
            ));
        }
    }
    match read
        .iter()
        .find(|name| docs.iter().all(|key| key.name.as_str() != **name))
    {
        Some(name) if !docs.is_empty() => Err(format!(
            "key `{name}` is read, but not described (add it to the list in `register!`)"
        )),
        _ => docs.iter().try_for_each(check_range),
    }
}

/// Refuses a range whose key is not numeric, or whose ends are out of order.
fn check_range(doc: &KeyDoc) -> Result<(), String> {
    let (key, ROption::RSome(KeyRange { low, high, .. })) = (&doc.name, doc.range) else {
        return Ok(());
    };
    let default = doc
        .default()
        .and_then(|text| serde_json::from_str(text).ok());
    if default.is_some_and(|default: serde_json::Value| !default.is_number() && !default.is_null())
    {
        let default = doc.default().unwrap_or_default();
        return Err(format!(
            "key `{key}` has a range, but is {default} where a table leaves it out (ranges are for numbers)"
        ));
    }
    if low.is_finite() && high.is_finite() && low < high {
        return Ok(());
    }
    Err(format!(
        "the range of key `{key}` is {low:?}..{high:?} (both ends must be numbers, the first the lower one)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_of_the_keys_that_there_are() {
        let both = ["max_nats", "warm_up"];
        let docs =
            keys! { warm_up = 10 => "steps that keep all", max_nats => "largest surprise kept" };
        assert_eq!(check(&docs.list(), &both), Ok(()));
        assert_eq!(check(&[], &both), Ok(()), "nothing has to be said");
        let refused: [(KeyDocs, &[&str]); 9] = [
            (docs, &["max_nat"]),
            (keys! { max_nat => "largest" }, &both),
            (keys! { max_nats => "largest" }, &both),
            (keys! { max_nats => "largest", max_nats => "again" }, &both),
            (keys! { max_nats => " " }, &both),
            (keys! { mode = "hard" => "how"; 0.0..1.0 }, &["mode"]),
            (keys! { a => "a"; 50.0..1e-3 }, &["a"]),
            (keys! { a => "a"; 2..2 }, &["a"]),
            (keys! { a => "a"; 0.0..f64::INFINITY }, &["a"]),
        ];
        let said = refused.map(|(docs, read)| check(&docs.list(), read).unwrap_err());
        assert_eq!(
            include_str!("keys_refused.txt").lines().collect::<Vec<_>>(),
            said
        );
    }

    #[test]
    fn defaults_are_json_and_ranges_are_of_numbers() {
        let docs = keys! {
            a = 0.2_f32 => "a"; 1e-3..50.0,
            b = "x" => "b",
            c = [1, 2] => "c",
            d = None::<f32> => "d"; -1.0..1.0,
            e = f32::INFINITY => "e"; 0.0..f64::from(1.5_f32),
            f => "f"; 1..100,
        };
        let docs = docs.list();
        let parts = docs.iter().map(|key| {
            let range = key.range.map(|range| (range.low, range.high, range.whole));
            (key.default(), range.into_option())
        });
        let expected = [
            (Some("0.2"), Some((1e-3, 50.0, false))),
            (Some("\"x\""), None),
            (Some("[1,2]"), None),
            (Some("null"), Some((-1.0, 1.0, false))),
            (Some("null"), Some((0.0, 1.5, false))),
            (None, Some((1.0, 100.0, true))),
        ];
        assert_eq!(parts.collect::<Vec<_>>(), expected);
        assert_eq!(check(&docs, &["a", "b", "c", "d", "e", "f"]), Ok(()));
    }
}
