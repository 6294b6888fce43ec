//! Sentences of components for the person at the terminal.

use std::collections::BTreeSet;

use crate::terminal;

/// Most sentences of components that one process shows.
const MOST: usize = 100;
/// Longest of them, characters.
const LONGEST: usize = 1000;

/// Shows what `component` says, on one line, unless it stands in `shown` already.
pub fn show(shown: &mut BTreeSet<String>, component: &str, text: &str) {
    let sentence = format!("component `{component}`: {}", one_line(text));
    if shown.len() < MOST && shown.insert(sentence.clone()) {
        terminal::warn(&sentence);
        if shown.len() == MOST {
            terminal::warn(&format!("these were {MOST} different warnings of components; no more are shown"));
        }
    }
}

/// `text` with a blank for every stretch of blanks, line ends and control characters, cut where it is very long.
pub(crate) fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_line_and_is_shown_once_per_component() {
        assert_eq!(one_line("two\nlines,\ta \u{1b}[31mcolour\r\n and \u{9b}2J "), "two lines, a [31mcolour and 2J");
        assert_eq!(one_line(&"é".repeat(5000)).chars().count(), LONGEST + 1);
        let mut shown = BTreeSet::new();
        for (component, text) in [("a.b", "x\ny"), ("a.b", "x y"), ("a.c", "x y"), ("a.b", "z")] {
            show(&mut shown, component, text);
        }
        assert_eq!(shown.len(), 3, "{shown:?}");
    }
}
