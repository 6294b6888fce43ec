//! The reward `exact_match`: 1 for the right answer, 0 for anything else.

use super::Completion;
use crate::data::Example;

/// Compares the answer that a completion ends with to the example's.
#[derive(Clone, Debug)]
pub(super) struct ExactMatch {
    answer_separator: String,
}

impl ExactMatch {
    pub(super) const NAME: &'static str = "exact_match";

    pub(super) fn new(answer_separator: &str) -> Self {
        ExactMatch { answer_separator: answer_separator.into() }
    }

    /// 1.0 if the completion ended by itself and its answer equals the example's, else 0.0.
    ///
    /// The answer of a text is what follows its last separator, trimmed; a text without a separator is its own answer. The
    /// example's answer is read the same way, so that a whole worked solution (as in GSM8K, separator `####`) will do.
    pub(super) fn reward(&self, completion: &Completion<'_>, example: &Example) -> f32 {
        let right = self.answer(completion.text) == self.answer(&example.answer);
        f32::from(u8::from(right && !completion.truncated))
    }

    fn answer<'a>(&self, text: &'a str) -> &'a str {
        let answer = match self.answer_separator.as_str() {
            "" => text,
            separator => text.rsplit(separator).next().unwrap_or(text),
        };
        answer.trim()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reward(separator: &str, text: &str, answer: &str, truncated: bool) -> f32 {
        let example =
            Example { prompt: "448+972=".into(), answer: answer.into(), solution: None, columns: Default::default() };
        ExactMatch::new(separator).reward(&Completion { text, truncated }, &example)
    }

    #[test]
    fn the_text_after_the_last_separator_counts() {
        assert_eq!(reward("=", "10 12 14=1420", "1420", false), 1.0);
        assert_eq!(reward("=", "1=2= 1420 ", "1420", false), 1.0);
        assert_eq!(reward("=", "1420=1421", "1420", false), 0.0);
        assert_eq!(reward("=", "10 12 14=", "1420", false), 0.0);
        assert_eq!(reward("=", "10 12 14=01420", "1420", false), 0.0);
    }

    #[test]
    fn a_truncated_completion_earns_nothing() {
        assert_eq!(reward("=", "10 12 14=1420", "1420", true), 0.0);
    }

    #[test]
    fn without_a_separator_the_whole_completion_counts() {
        assert_eq!(reward("=", " 1420", "1420", false), 1.0);
        assert_eq!(reward("=", "10 12 14 1420", "1420", false), 0.0);
        assert_eq!(reward("", "14=20", "14=20", false), 1.0);
        assert_eq!(reward("", "x=1420", "1420", false), 0.0);
    }

    #[test]
    fn the_examples_answer_may_be_a_worked_solution() {
        assert_eq!(reward("####", "so 2\n#### 2", "1 + 1 = 2\n#### 2", false), 1.0);
        assert_eq!(reward("####", "so 3\n#### 3", "1 + 1 = 2\n#### 2", false), 0.0);
    }
}
