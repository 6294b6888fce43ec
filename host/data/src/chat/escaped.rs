//! Escapes special tokens in an environment's text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use capo_system::contain::contain;
use regex::Regex;

use crate::Tokenizer;

/// Largest number of searches of a text for special tokens. Each search leaves fewer.
const SEARCHES: usize = 8;

/// Counts of the special tokens among some ids.
pub(super) type Special = BTreeMap<u32, usize>;

impl Tokenizer {
    /// An environment's text, in which no added token of the vocabulary can be read, and none of
    /// `marks`, with which a chat template begins and ends messages: a space separates the first
    /// character of each from the rest. Colours and other escape sequences of a terminal are left
    /// out. Control characters other than tab and line feed become `\u{..}`.
    pub fn escaped(&self, text: &str, marks: &[String]) -> String {
        let text = with_escapes(&printed(text), |c| {
            c.is_control() && !matches!(c, '\n' | '\t')
        });
        self.without_special(self.apart(text, marks))
    }

    /// An environment's text with only letters, digits, spaces and those signs of ASCII that begin
    /// no special token; the rest becomes `\u{..}`.
    pub(super) fn spelled_out(&self, text: &str, marks: &[String]) -> String {
        let added = self.inner.get_added_tokens_decoder();
        with_escapes(&self.escaped(text, marks), |c| {
            let begins_token = added
                .values()
                .any(|token| token.content.trim_start().starts_with(c));
            begins_token || !(c.is_ascii() || c.is_alphanumeric())
        })
    }

    /// The text with a space behind the first character of each added token and mark.
    fn apart(&self, mut text: String, marks: &[String]) -> String {
        let added = self.inner.get_added_tokens_decoder();
        let added = added
            .values()
            .map(|token| token.content.as_str())
            .chain(marks.iter().map(String::as_str));
        let added = added.filter_map(|token: &str| {
            let visible = token.trim();
            let (one, rest) = visible.split_at(visible.ceil_char_boundary(1));
            match rest {
                "" if one.len() == token.len() || one.is_empty() => None,
                // A token of one visible character cannot be split by a space.
                "" => Some((token, token.replace(one, &one.escape_unicode().to_string()))),
                _ => Some((visible, format!("{one} {rest}"))),
            }
        });
        let added: Vec<(&str, String)> = added.collect();
        while let Some((token, apart)) = added.iter().find(|(token, _)| text.contains(token)) {
            text = text.replace(token, apart);
        }
        text
    }

    /// The text without what the tokenizer reads as a special token only after it has changed the
    /// text, such as `＜s＞` or `<S>`.
    fn without_special(&self, mut text: String) -> String {
        for search in 0..SEARCHES {
            let Some(place) = self.special_in(&text) else {
                break;
            };
            for start in place.into_iter().rev() {
                let Some(first) = text[start..].chars().next() else {
                    continue;
                };
                let end = start + first.len_utf8();
                // A tokenizer may drop spaces too.
                if search == 0 {
                    text.insert(end, ' ');
                } else {
                    text.replace_range(start..end, &first.escape_unicode().to_string());
                }
            }
        }
        text
    }

    /// Byte offsets at which special tokens begin in a text; `None` if there is none, or the text
    /// has no ids.
    fn special_in(&self, text: &str) -> Option<Vec<usize>> {
        let encoding = contain(|| self.inner.encode(text, false)).ok()?.ok()?;
        let tokens = encoding.get_ids().iter().zip(encoding.get_offsets());
        let special =
            tokens
                .filter(|(id, _)| self.special.contains(*id))
                .map(|(_, (start, end))| {
                    let found = text.get(*start..*end).unwrap_or_default();
                    start + found.len() - found.trim_start().len()
                });
        let special: Vec<usize> = special.collect();
        (!special.is_empty()).then_some(special)
    }

    /// The special tokens among `ids`.
    pub(super) fn special_among(&self, ids: &[u32]) -> Special {
        let mut counts = Special::new();
        ids.iter()
            .filter(|id| self.special.contains(*id))
            .for_each(|id| *counts.entry(*id).or_default() += 1);
        counts
    }

    /// A special token that occurs among `ids` more often than in `may_be`.
    pub(super) fn forged(&self, ids: &[u32], may_be: &Special) -> Option<String> {
        let counts = self.special_among(ids);
        let (id, _) = counts
            .iter()
            .find(|(id, count)| *count > may_be.get(*id).unwrap_or(&0))?;
        self.inner.id_to_token(*id)
    }
}

/// The text with `\u{..}` for each character that must be escaped.
fn with_escapes(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Text of a program's output as a terminal shows it. Line ends become line feeds; colours, titles
/// and other escape sequences are left out.
fn printed(text: &str) -> Cow<'_, str> {
    static SEQUENCE: LazyLock<Regex> = LazyLock::new(|| {
        let control = r"(?:\x1b\[|\u{9b})[0-?]*[ -/]*[@-~]";
        let begin = r"(?:\x1b[\]PX^_]|[\u{9d}\u{90}\u{98}\u{9e}\u{9f}])";
        let end = r"(?:\x07|\x1b\\|\u{9c})";
        let string = format!(r"{begin}[^\x07\x1b\u{{9c}}]*{end}");
        let other = r"\x1b[ -/]*[0-Z\\`-~]";
        Regex::new(&format!("{control}|{string}|{other}")).expect("the pattern is a constant")
    });
    let text = SEQUENCE.replace_all(text, "");
    if text.contains('\r') {
        text.replace("\r\n", "\n").replace('\r', "\n").into()
    } else {
        text
    }
}
