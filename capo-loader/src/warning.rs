//! Sentences of components for the person at the terminal.

use std::collections::BTreeSet;

use capo_plugin::Sink;

use crate::terminal;
use crate::watchdog::Watchdog;

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

/// The sink of calls that belong to no step, as of a measurement on held-out prompts: warnings are shown, calls are watched.
pub struct WarningSink<'a> {
    /// Sentences already shown.
    pub warned: &'a mut BTreeSet<String>,
    /// Told of every call.
    pub watchdog: &'a Watchdog,
}

impl Sink for WarningSink<'_> {
    fn warn(&mut self, component: &str, text: &str) {
        show(self.warned, component, text);
    }

    fn enter(&mut self, component: &str, method: &'static str) {
        self.watchdog.enter(component, method);
    }

    fn leave(&mut self) {
        self.watchdog.leave();
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
