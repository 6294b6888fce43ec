//! Reads a `tokenizer.json`, which is checked before the tokenizers crate reads it: a few bytes of
//! the file can claim all memory.

use anyhow::{Result, anyhow, bail, ensure};
use capo_system::contain::contain;
use serde_json::Value;
use tokenizers::Tokenizer;

use super::added_tokens;
use super::tokenizer_configs::TokenizerConfigs;

/// Largest token id; vocabularies in use end below 2^19.
const LARGEST_ID: u64 = (1 << 24) - 1;
/// Largest number of characters of all regular expressions together, with counted repetitions
/// expanded.
const MOST_PATTERN: usize = 1 << 12;
/// Largest factor by which replacements may lengthen a text.
const MOST_GROWTH: usize = 1 << 10;

/// Reads a tokenizer, with the tokens of the files beside it; its own truncation and padding
/// settings are turned off.
pub(super) fn read(bytes: &[u8], configs: &TokenizerConfigs) -> Result<Tokenizer> {
    check(bytes).map_err(|error| anyhow!("`tokenizer.json` cannot be read: {error}"))?;
    let mut tokenizer = contain(|| Tokenizer::from_bytes(bytes))?
        .map_err(|error| anyhow!("`tokenizer.json` cannot be read: {error}"))?;
    tokenizer.with_padding(None);
    tokenizer
        .with_truncation(None)
        .map_err(|error| anyhow!("{error}"))?;
    added_tokens::add(&mut tokenizer, configs)?;
    Ok(tokenizer)
}

/// Checks ids, regular expressions, replacements and the table of a normalizer.
fn check(bytes: &[u8]) -> Result<()> {
    let json: Value = serde_json::from_slice(bytes)?;
    let vocab = json["model"]["vocab"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, id)| id);
    let added = json["added_tokens"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|token| &token["id"]);
    for id in vocab.chain(added) {
        let allowed = id.as_u64().is_none_or(|id| id <= LARGEST_ID);
        ensure!(
            allowed,
            "it has a token with the id {id} (ids end at {LARGEST_ID})"
        );
    }
    let parts = ["normalizer", "pre_tokenizer", "decoder"].map(|part| &json[part]);
    let mut pattern = 0_usize;
    for part in parts {
        let mut growth = 1_usize;
        let mut tables = 0;
        visit(part, &mut |object| {
            pattern = pattern.saturating_add(
                object
                    .get("Regex")
                    .and_then(Value::as_str)
                    .map_or(0, written_out),
            );
            growth = growth.saturating_mul(factor(object));
            if let Some(table) = object.get("precompiled_charsmap").and_then(Value::as_str) {
                tables += 1;
                check_table(table)?;
            }
            Ok(())
        })?;
        ensure!(
            growth <= MOST_GROWTH,
            "its replacements make a text {growth} times as long (at most {MOST_GROWTH})"
        );
        ensure!(
            tables <= 1,
            "it has {tables} tables `precompiled_charsmap` one after the other (at most 1)"
        );
    }
    ensure!(
        pattern <= MOST_PATTERN,
        "its regular expressions have {pattern} characters, repetitions written out \
         (at most {MOST_PATTERN})"
    );
    Ok(())
}

type Object = serde_json::Map<String, Value>;

/// Calls `see` with every object in `value`, including `value` itself.
fn visit(value: &Value, see: &mut dyn FnMut(&Object) -> Result<()>) -> Result<()> {
    match value {
        Value::Array(values) => values.iter().try_for_each(|value| visit(value, see)),
        Value::Object(object) => {
            see(object)?;
            object.values().try_for_each(|value| visit(value, see))
        }
        _ => Ok(()),
    }
}

/// Upper bound on the factor by which an object of type `Replace` or `Prepend` lengthens a text.
fn factor(object: &Object) -> usize {
    if let Some(prepended) = length(object.get("prepend")) {
        return prepended + 1;
    }
    let (Some(content), Some(pattern)) = (length(object.get("content")), object.get("pattern"))
    else {
        return 1;
    };
    match length(pattern.get("String")) {
        Some(replaced) if replaced > 0 => content.div_ceil(replaced).max(1),
        // A regular expression or an empty string may match between any two characters.
        _ => content + 1,
    }
}

fn length(value: Option<&Value>) -> Option<usize> {
    value.and_then(Value::as_str).map(str::len)
}

/// A group or a character class of a regular expression, as far as it was read.
#[derive(Default)]
struct Group {
    /// Number of characters, with repetitions expanded.
    all: usize,
    /// Number of characters of its last element, to which a repetition applies.
    last: usize,
}

impl Group {
    fn push(&mut self, last: usize) {
        self.all = self.all.saturating_add(last);
        self.last = last;
    }

    fn repeat(&mut self, times: usize) {
        let repeated = self.last.saturating_mul(times);
        self.all = self.all.saturating_add(repeated - self.last);
        self.last = repeated;
    }
}

/// Length of a regular expression with its counted repetitions `{n,m}` expanded.
fn written_out(pattern: &str) -> usize {
    let mut groups = vec![Group::default()];
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        let outermost = groups.len() == 1;
        let group = groups.last_mut().expect("there is always a group");
        match c {
            '\\' => {
                rest.next();
                let (name, after) = braces(rest.as_str())
                    .filter(|(name, _)| times(name).is_none())
                    .unzip();
                group.push(2 + name.map_or(0, |name| name.len() + 2));
                rest = after.map_or(rest, str::chars);
            }
            '(' | '[' => groups.push(Group::default()),
            ')' | ']' if !outermost => {
                let inner = groups.pop().map_or(0, |inner| inner.all);
                groups
                    .last_mut()
                    .expect("there is always a group")
                    .push(inner.saturating_add(2));
            }
            '{' => match rest
                .as_str()
                .split_once('}')
                .and_then(|(numbers, after)| Some((times(numbers)?, after)))
            {
                Some((times, after)) => {
                    group.repeat(times);
                    rest = after.chars();
                }
                None => group.push(1),
            },
            // A counted repetition may apply to this repetition too, so `last` stays as it is.
            '?' | '*' | '+' => group.all = group.all.saturating_add(1),
            _ => group.push(1),
        }
    }
    groups
        .into_iter()
        .fold(0, |sum, group| sum.saturating_add(group.all))
}

/// The text between the braces at the beginning of `text`, and the text after them.
fn braces(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('{')?.split_once('}')
}

/// The larger number of a repetition `n` or `n,m`.
fn times(numbers: &str) -> Option<usize> {
    let mut largest = 1;
    for number in numbers
        .split(',')
        .map(str::trim)
        .filter(|number| !number.is_empty())
    {
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        largest = largest.max(number.parse().unwrap_or(usize::MAX));
    }
    Some(largest)
}

/// Checks the declared length of a `precompiled_charsmap`: base64 of a byte count, then at least
/// that many bytes.
fn check_table(table: &str) -> Result<()> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits = 0_u64;
    for byte in table.bytes().take(6) {
        let Some(value) = alphabet.iter().position(|known| *known == byte) else {
            return Ok(());
        };
        bits = bits << 6 | value as u64;
    }
    if table.len() < 6 {
        return Ok(());
    }
    let length = ((bits >> 4) as u32).swap_bytes();
    if length as usize > table.len() {
        bail!(
            "its `precompiled_charsmap` is said to have {length} bytes, but has fewer \
             (fetch the file again)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(json: &Value) -> String {
        check(json.to_string().as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn refuses_ids_that_are_too_large() {
        let with = |id: u64| json!({"model": {"vocab": {"a": id}}});
        assert_eq!(
            error(&with(1 << 32)),
            "it has a token with the id 4294967296 (ids end at 16777215)"
        );
        check(with(LARGEST_ID).to_string().as_bytes()).unwrap();
        assert!(error(&json!({"added_tokens": [{"id": u32::MAX}]})).contains("id 4294967295"));
    }

    #[test]
    fn repetitions_are_written_out() {
        assert_eq!(written_out("abc"), 3);
        assert_eq!(written_out("ab{3}"), 1 + 3);
        assert_eq!(written_out("(ab){3}"), 3 * 4);
        assert_eq!(written_out("a[bc]{1,3}?"), 1 + 3 * 4 + 1);
        assert_eq!(written_out(r"\p{N}{2}\{{2,}"), 2 * 5 + 2 * 2);
        assert_eq!(written_out("a{10}+{10}"), 1 + 9 + 1 + 90);
        assert!(written_out("((a{100}){100}){100}") >= 1_000_000);
        assert!(written_out(r"\w{20000}") >= 40_000);
        assert!(written_out("a{99999999999999999999}{9}") == usize::MAX);
        let split = |pattern: &str| json!({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern}}});
        assert!(
            error(&split(r"(\w{1000}){1000}")).contains("repetitions written out (at most 4096)")
        );
        let llama = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        check(split(llama).to_string().as_bytes()).unwrap();
    }

    #[test]
    fn refuses_replacements_that_multiply() {
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let long = "a".repeat(40);
        let one = replace(json!({"String": "a"}), &long);
        let twice =
            json!({"normalizer": {"type": "Sequence", "normalizers": [one.clone(), one.clone()]}});
        assert_eq!(
            error(&twice),
            "its replacements make a text 1600 times as long (at most 1024)"
        );
        check(
            json!({"normalizer": one, "decoder": one})
                .to_string()
                .as_bytes(),
        )
        .unwrap();
        let between = json!({"decoder": replace(json!({"Regex": ""}), &"a".repeat(2000))});
        assert!(error(&between).contains("2001 times"));
        assert!(
            error(&json!({"normalizer": {"type": "Prepend", "prepend": "a".repeat(2000)}}))
                .contains("2001 times")
        );
    }

    #[test]
    fn refuses_tables_shorter_than_they_declare() {
        let table = |text: &str| json!({"normalizer": {"type": "Precompiled", "precompiled_charsmap": text}});
        // A length of four bytes 0xff, and no data.
        assert!(error(&table("/////w==")).contains("said to have 4294967295 bytes"));
        // A little-endian length of 1 in four bytes, and one byte of data.
        check(table("AQAAAAA=").to_string().as_bytes()).unwrap();
        check(table("?").to_string().as_bytes()).unwrap();
    }
}
