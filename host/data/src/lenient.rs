//! JSON as other programs write it: Python's `NaN`, whole numbers of any length, a list of rows in
//! place of lines.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::bytes::{Captures, Regex};
use serde::de::{DeserializeOwned, Error as _};
use serde_json::Result;

use crate::exact::Json;

/// The bytes of the byte order mark with which some programs begin a file in UTF-8.
pub(super) const BYTE_ORDER: &[u8] = b"\xef\xbb\xbf";

/// Reads JSON. `NaN` and infinities are null, and a whole number beyond 64 bits is its text, so
/// that it keeps its digits.
pub fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T> {
    serde_json::from_slice(&plain(json, true))
}

/// Reads JSON, in which `NaN` and infinities are null. All numbers keep their digits.
pub(super) fn exact(json: &[u8]) -> Result<Json> {
    let plain = plain(json, false);
    let text = std::str::from_utf8(&plain)
        .map_err(|error| serde_json::Error::custom(format!("not UTF-8: {error}")))?;
    Json::parse(text)
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is a constant")
}

/// JSON without `NaN` and infinities, and with whole numbers beyond 64 bits as text if
/// `quotes_long`.
fn plain(json: &[u8], quotes_long: bool) -> Cow<'_, [u8]> {
    static RARE: LazyLock<Regex> = LazyLock::new(|| regex("NaN|Infinity|[0-9]{19}"));
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| regex(r#"(?s-u)"(?:\\.|[^"\\])*"?|-?(?:NaN|Infinity|[0-9][0-9.eE+-]*)"#));
    if !RARE.is_match(json) {
        return json.into();
    }
    WORD.replace_all(json, |word: &Captures<'_>| {
        let text = String::from_utf8_lossy(&word[0]);
        match text.trim_start_matches('-') {
            "NaN" | "Infinity" => b"null".to_vec(),
            digits if quotes_long && is_whole(digits) && !fits(&text) => {
                format!("\"{text}\"").into_bytes()
            }
            _ => word[0].to_vec(),
        }
    })
}

fn is_whole(digits: &str) -> bool {
    digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// True for a whole number of at most 64 bits.
fn fits(number: &str) -> bool {
    number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok()
}

/// The rows of a list as lines of JSON; their keys keep their order.
pub(super) fn lines(list: &[u8]) -> Result<Vec<u8>> {
    let rows: Vec<minijinja::Value> = parse(list)?;
    Ok(rows
        .iter()
        .map(serde_json::to_string)
        .collect::<Result<Vec<_>>>()?
        .join("\n")
        .into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_python_writes() {
        let shown =
            |line: &str| String::from_utf8(plain(line.as_bytes(), true).into_owned()).unwrap();
        for (line, expected) in [
            (
                r#"{"a": NaN, "b": [-Infinity, Infinity], "c": "NaN \" 1"}"#,
                r#"{"a": null, "b": [null, null], "c": "NaN \" 1"}"#,
            ),
            (
                "[123456789012345678901234567890]",
                r#"["123456789012345678901234567890"]"#,
            ),
            (
                "[18446744073709551615,-9223372036854775809]",
                r#"[18446744073709551615,"-9223372036854775809"]"#,
            ),
            (
                "[1e30, 123456789012345678901.5, true, nullN",
                "[1e30, 123456789012345678901.5, true, nullN",
            ),
            (
                r#""cut off 1234567890123456789012 \"#,
                r#""cut off 1234567890123456789012 \"#,
            ),
        ] {
            assert_eq!(shown(line), expected);
        }
        let exact = exact(b"[123456789012345678901234567890, NaN, \"NaN\"]").unwrap();
        assert_eq!(
            exact.to_string(),
            "[123456789012345678901234567890,null,\"NaN\"]"
        );
        let lines = lines(b"[{\"b\": \"],\", \"a\": 1.5},\n [1, NaN]\n]").unwrap();
        assert_eq!(
            String::from_utf8(lines).unwrap(),
            "{\"b\":\"],\",\"a\":1.5}\n[1,null]"
        );
    }
}
