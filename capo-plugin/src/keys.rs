//! What a component's keys mean: `keys!` in a plugin, the check that the descriptions are of the keys that there are.

use abi_stable::std_types::ROption;
use serde::Serialize;

use crate::abi_keys::KeyInfo;
use crate::config::nearest;

/// Descriptions of a component's keys, made by [`keys!`](crate::keys).
#[derive(Clone, Copy)]
pub struct KeyDocs {
    list: fn() -> Vec<KeyInfo>,
}

impl KeyDocs {
    /// Nothing is said.
    pub const NONE: Self = Self::new(Vec::new);

    #[doc(hidden)]
    #[must_use]
    pub const fn new(list: fn() -> Vec<KeyInfo>) -> Self {
        Self { list }
    }

    /// The descriptions; none where a default panics, which must not cross the ABI.
    pub(crate) fn list(self) -> Vec<KeyInfo> {
        std::panic::catch_unwind(self.list).unwrap_or_else(|payload| {
            std::mem::forget(payload);
            Vec::new()
        })
    }
}

impl KeyInfo {
    /// A key that a table must have.
    #[must_use]
    pub fn required(name: &str, about: &str) -> Self {
        Self { name: name.into(), about: about.into(), default: ROption::RNone }
    }

    /// A key that a table may leave out.
    #[must_use]
    pub fn optional(name: &str, about: &str, default: &impl Serialize) -> Self {
        let default = serde_json::to_string(default).unwrap_or_else(|_| "null".into());
        Self { name: name.into(), about: about.into(), default: ROption::RSome(default.into()) }
    }

    /// The value that stands for a table without the key, as JSON text: `null` where absence means something of its own; none
    /// where a table must have the key.
    #[must_use]
    pub fn default(&self) -> Option<&str> {
        self.default.as_ref().map(abi_stable::std_types::RString::as_str).into_option()
    }
}

/// Describes a component's keys: `name => "what it means"` for one that a table must have, `name = default => "..."` for one that
/// it may leave out, `name = None::<T> => "..."` where absence means something of its own.
///
/// It goes to [`register!`](crate::register) as a constant where several ids share a type; for one id, `register!` takes the same
/// list in braces.
///
/// ```
/// use capo_plugin::{KeyDocs, keys};
///
/// struct SurpriseCap;
///
/// impl SurpriseCap {
///     const KEYS: KeyDocs = keys! {
///         max_nats => "largest `-logp` kept, nats",
///         warm_up = 10 => "steps that keep all",
///         share = None::<f32> => "largest share of tokens dropped; no limit when absent",
///     };
/// }
/// ```
#[macro_export]
macro_rules! keys {
    ($($name:ident $(= $default:expr)? => $about:expr),* $(,)?) => {
        $crate::KeyDocs::new(|| ::std::vec![$($crate::__key!($name, $about $(, $default)?)),*])
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

/// Refuses descriptions, where there are any, that are not of exactly the keys `read`, each once and in words.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_of_the_keys_that_there_are() {
        let say = |docs: KeyDocs, read: &[&str]| check(&docs.list(), read).unwrap_err();
        let both = ["max_nats", "warm_up"];
        let docs = keys! { warm_up = 10 => "steps that keep all", max_nats => "largest surprise kept" };
        assert_eq!(check(&docs.list(), &both), Ok(()));
        assert_eq!(check(&KeyDocs::NONE.list(), &both), Ok(()), "nothing has to be said");
        assert_eq!(say(docs, &["max_nat"]), "key `warm_up` is described, but nothing reads it (leave it out)");
        assert_eq!(
            say(keys! { max_nat => "largest" }, &both),
            "key `max_nat` is described, but nothing reads it (did you mean `max_nats`?)"
        );
        assert_eq!(
            say(keys! { max_nats => "largest" }, &both),
            "key `warm_up` is read, but not described (add it to the list in `register!`)"
        );
        assert_eq!(
            say(keys! { max_nats => "largest", max_nats => "again" }, &both),
            "key `max_nats` is described twice (leave one out)"
        );
        assert_eq!(say(keys! { max_nats => " " }, &both), "key `max_nats` is described by \" \" (write one line)");
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
        let defaults = docs.list().iter().map(|key| key.default().map(str::to_owned)).collect::<Vec<_>>();
        let expected = [Some("0.2"), Some("\"x\""), Some("[1,2]"), Some("null"), Some("null"), None];
        assert_eq!(defaults, expected.map(|default| default.map(str::to_owned)));
    }
}
