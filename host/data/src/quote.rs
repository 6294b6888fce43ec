//! Quotes others' texts in messages: on one line, and cut to a readable length.

/// Longest quotation, in characters.
const QUOTED: usize = 60;

/// The beginning of a text on one line.
pub(super) fn quote(text: &str) -> String {
    cut(text, QUOTED)
}

/// The first `limit` characters of a text on one line.
pub(super) fn cut(text: &str, limit: usize) -> String {
    let mut quoted = String::new();
    let mut chars = text.chars();
    for c in chars.by_ref().take(limit) {
        match c {
            '\n' | '\t' => quoted.extend(c.escape_default()),
            c => quoted.push(c),
        }
    }
    if chars.next().is_some() {
        quoted + "…"
    } else {
        quoted
    }
}
