//! Sealed JSON files, in which a change is noticed: the last field is the SHA-256 of every byte
//! before it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::files::{self, sha256_hex};

/// Text between the sealed fields and their SHA-256.
const SEAL: &str = ",\n  \"sha256\": \"";
const END: &str = "\"\n}\n";

/// Writes `value`, an object with at least one field and none called `sha256`. The file appears
/// whole or not at all.
///
/// # Errors
///
/// When the disk reports an error.
pub fn write(path: &Path, value: &impl Serialize) -> Result<()> {
    files::write_atomic(path, seal(value)?.as_bytes())
}

/// Reads a file that [`write()`] wrote.
///
/// # Errors
///
/// When the file is missing, any byte has changed, or the content is not a `T`.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T> {
    unseal(&files::read(path)?).with_context(|| format!("`{}` is damaged", path.display()))
}

fn seal(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    let body = text
        .strip_suffix("\n}")
        .context("only an object with fields can be sealed")?;
    Ok(format!("{body}{SEAL}{}{END}", sha256_hex(body.as_bytes())))
}

fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let text = str::from_utf8(bytes).context("it is not text")?;
    let sealed = text
        .strip_suffix(END)
        .and_then(|text| text.rsplit_once(SEAL));
    let (body, expected) = sealed.context("its last field is not `sha256`")?;
    let found = sha256_hex(body.as_bytes());
    ensure!(found == expected, "SHA-256 {found}, expected {expected}");
    Ok(serde_json::from_str(&format!("{body}\n}}"))?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_byte_can_change_unnoticed() {
        let value = BTreeMap::from([("step".to_owned(), 4_u64), ("tokens".to_owned(), 1234)]);
        let sealed = seal(&value).unwrap();
        assert_eq!(
            unseal::<BTreeMap<String, u64>>(sealed.as_bytes()).unwrap(),
            value
        );
        for place in 0..sealed.len() {
            let mut bytes = sealed.clone().into_bytes();
            bytes[place] ^= 1;
            assert!(
                unseal::<BTreeMap<String, u64>>(&bytes).is_err(),
                "byte {place}"
            );
            assert!(
                unseal::<BTreeMap<String, u64>>(&sealed.as_bytes()[..place]).is_err(),
                "cut at {place}"
            );
        }
        serde_json::from_str::<serde_json::Value>(&sealed).expect("it is JSON all the same");
    }

    #[test]
    fn an_object_without_fields_has_no_place_for_a_seal() {
        assert!(seal(&BTreeMap::<String, u64>::new()).is_err());
    }
}
