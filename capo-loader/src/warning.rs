//! Warnings of components, shown at the terminal.

use std::collections::BTreeSet;

use capo_plugin::Sink;

use crate::watchdog::Watchdog;
use capo_system::terminal;

/// Largest number of warnings of components that one process shows.
const MOST: usize = 100;
/// Largest length of a warning, in characters.
const LONGEST: usize = 1000;

/// Shows a warning of `component` on one line, unless `shown` already contains it.
pub fn show(shown: &mut BTreeSet<String>, component: &str, text: &str) {
    let sentence = format!("component `{component}`: {}", one_line(text));
    if shown.len() < MOST && shown.insert(sentence.clone()) {
        terminal::warn(&sentence);
        if shown.len() == MOST {
            terminal::warn(&format!(
                "these were {MOST} different warnings of components; no more are shown"
            ));
        }
    }
}

/// `text` on one line: every run of blanks, line ends and control characters becomes one blank, and
/// a very long text is cut.
pub(crate) fn one_line(text: &str) -> String {
    let words = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The sink for calls outside of steps, such as a measurement on held-out prompts. It shows
/// warnings and watches calls.
pub struct WarningSink<'a> {
    /// Warnings that were already shown.
    pub warned: &'a mut BTreeSet<String>,
    /// The watchdog that is told of every call.
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
        assert_eq!(
            one_line("two\nlines,\ta \u{1b}[31mcolour\r\n and \u{9b}2J "),
            "two lines, a [31mcolour and 2J"
        );
        assert_eq!(one_line(&"é".repeat(5000)).chars().count(), LONGEST + 1);
        let mut shown = BTreeSet::new();
        for (component, text) in [
            ("a.b", "x\ny"),
            ("a.b", "x y"),
            ("a.c", "x y"),
            ("a.b", "z"),
        ] {
            show(&mut shown, component, text);
        }
        assert_eq!(shown.len(), 3, "{shown:?}");
    }
}
