//! Writes lines to the terminal. Control characters in text from others are shown as escapes, so
//! that the terminal does not obey them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// `text` with every control character written as an escape such as `\u001b`, except line breaks
/// and tabs.
///
/// Characters that control text direction are escaped too, for they can make a line read as another
/// line. If `text` is JSON, the result is still JSON.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_control(c) {
            // Writing to a string does not fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// True for C0 and C1 controls, line separators and controls of Unicode's bidirectional algorithm.
fn is_control(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}'
        | '\u{feff}' => true,
        c => c.is_control(),
    }
}

/// A path as a word of a shell's command: in quotes unless it consists of plain characters.
pub fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = text
        .chars()
        .all(|c| c.is_alphanumeric() || "/._-+:,@%=".contains(c));
    if is_plain && !text.is_empty() {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Writes a line to standard error. A failure to write is ignored.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", escape(line));
}

/// Writes a warning to standard error.
pub fn warn(sentence: &str) {
    note(&format!("warning: {sentence}"));
}

/// Writes an error to standard error.
pub fn error(sentence: &str) {
    note(&format!("error: {sentence}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_control_characters() {
        assert_eq!(escape("plain ü\n\ttext"), "plain ü\n\ttext");
        assert!(matches!(escape("plain"), Cow::Borrowed(_)));
        assert_eq!(
            escape("\x1b[31mred\x1b]0;title\x07"),
            "\\u001b[31mred\\u001b]0;title\\u0007"
        );
        assert_eq!(
            escape("over\rwritten\0\x7f"),
            "over\\u000dwritten\\u0000\\u007f"
        );
        assert_eq!(
            escape("\u{9b}31m \u{202e}txt\u{2066} \u{2028}"),
            "\\u009b31m \\u202etxt\\u2066 \\u2028"
        );
    }

    #[test]
    fn a_path_becomes_one_word_of_a_shell() {
        let word = |path: &str| word(Path::new(path));
        assert_eq!(["runs/x-2", "ünd/a=b"].map(word), ["runs/x-2", "ünd/a=b"]);
        assert_eq!(
            ["", "a b", "it's", "~x", "$x"].map(word),
            ["''", "'a b'", r"'it'\''s'", "'~x'", "'$x'"]
        );
    }
}
