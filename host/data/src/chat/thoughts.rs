//! The thoughts in a model's turn: the marks round them, as its chat template and its tokenizer
//! have them.

use std::sync::LazyLock;

use regex::Regex;

use super::tags::tags;
use super::{Chat, Messages};
use crate::Tokenizer;
use crate::exact::Json;

/// Texts in place of those of a conversation, which are easy to find in what a template writes.
const ANSWER: &str = "Zanswered";
const THOUGHT: &str = "Zthought";

/// How thoughts are marked in a model's turns.
#[derive(Clone, Debug)]
pub struct Thoughts {
    marks: Vec<Marks>,
    /// True if the prompt begins a thought, so that a turn has only its end.
    is_open: bool,
}

/// The texts before and after a thought.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Marks {
    pub(super) open: String,
    pub(super) close: String,
}

/// A mark in a text.
pub(super) enum Mark<'a> {
    /// A thought begins, which ends with `close`.
    Open {
        close: &'a str,
    },
    Close,
}

impl Default for Thoughts {
    /// The marks that most models have.
    fn default() -> Self {
        Self {
            marks: vec![Marks {
                open: "<think>".into(),
                close: "</think>".into(),
            }],
            is_open: false,
        }
    }
}

impl Thoughts {
    /// The marks that the template writes round a thought, those that its text or an added token of
    /// the tokenizer names, and `<think>`.
    pub(super) fn of(chat: Option<&Chat>, tokenizer: &Tokenizer) -> Self {
        let added = tokenizer.inner.get_added_tokens_decoder();
        let added = added.values().flat_map(|token| tags(&token.content));
        let tags: Vec<String> = added
            .chain(chat.iter().flat_map(|chat| chat.tags.iter().cloned()))
            .collect();
        let mut named: Vec<Marks> = tags.iter().filter_map(|tag| ended_by(tag, &tags)).collect();
        named.sort();
        let mut marks = Self::default().marks;
        for pair in chat.and_then(written_by).into_iter().chain(named) {
            if !marks.contains(&pair) {
                marks.push(pair);
            }
        }
        let is_open = chat.is_some_and(|chat| {
            let asked = chat.prompt(&Messages::user(ANSWER)).unwrap_or_default();
            let end = asked.rsplit_once(ANSWER).map_or("", |(_, end)| end);
            marks
                .iter()
                .any(|Marks { open, close }| end.rfind(open.as_str()) > end.rfind(close.as_str()))
        });
        Self { marks, is_open }
    }

    /// Thoughts with these marks.
    #[cfg(test)]
    pub(super) fn with(open: &str, close: &str, is_open: bool) -> Self {
        Self {
            marks: vec![Marks {
                open: open.into(),
                close: close.into(),
            }],
            is_open,
        }
    }

    pub(super) fn marks(&self) -> &[Marks] {
        &self.marks
    }

    /// True if the prompt begins a thought, so that a turn has only its end.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// All marks, which are special tokens of some tokenizers.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        self.marks
            .iter()
            .flat_map(|Marks { open, close }| [open.as_str(), close.as_str()])
    }

    /// The first mark in `text`, its place, and what follows it.
    pub(super) fn first<'a>(&'a self, text: &'a str) -> Option<(usize, Mark<'a>, &'a str)> {
        let all = self.marks.iter().flat_map(|Marks { open, close }| {
            [
                (open.as_str(), Mark::Open { close }),
                (close.as_str(), Mark::Close),
            ]
        });
        let placed = all.filter_map(|(word, mark)| {
            let place = text.find(word)?;
            Some((place, mark, &text[place + word.len()..]))
        });
        placed.min_by_key(|(place, ..)| *place)
    }

    /// Text behind the thought that the prompt began; `None` if the thought has no end yet.
    pub(super) fn after_open<'a>(&self, text: &'a str) -> Option<&'a str> {
        if !self.is_open {
            return Some(text);
        }
        let ends = self
            .marks
            .iter()
            .filter_map(|Marks { close, .. }| text.find(close.as_str()).map(|at| at + close.len()));
        ends.min().map(|end| &text[end..])
    }

    /// Text behind the thoughts with which a turn begins; empty if one has no end yet.
    pub(super) fn after_all<'a>(&'a self, turn: &'a str) -> &'a str {
        let Some(mut rest) = self.after_open(turn) else {
            return "";
        };
        let mut has_thought = self.is_open;
        loop {
            rest = rest.trim_start();
            match self.first(rest) {
                Some((0, Mark::Open { close }, inside)) => {
                    has_thought = true;
                    let Some((_, after)) = inside.split_once(close) else {
                        return "";
                    };
                    rest = after;
                }
                // The thought before it has no beginning. A mark inside of JSON is a text like any
                // other.
                Some((_, Mark::Close, after)) if !has_thought && !rest.starts_with('{') => {
                    has_thought = true;
                    rest = after;
                }
                _ => return rest,
            }
        }
    }

    /// True if `text` is a thought in which nothing is thought, or empty.
    pub(super) fn is_blank(&self, text: &str) -> bool {
        let text = text.trim();
        text.is_empty()
            || self.marks.iter().any(|Marks { open, close }| {
                text.strip_prefix(open.as_str())
                    .and_then(|rest| rest.strip_suffix(close.as_str()))
                    .is_some_and(|inside| inside.trim().is_empty())
            })
    }
}

/// The marks of which `tag` is the second, if it is the end of a thought.
fn ended_by(tag: &str, all: &[String]) -> Option<Marks> {
    let open = if tag.contains('/') {
        Some(tag.replacen('/', "", 1))
    } else {
        const WORDS: [(&str, &str); 4] = [
            ("END", "START"),
            ("END", "BEGIN"),
            ("end", "start"),
            ("end", "begin"),
        ];
        let others = WORDS
            .iter()
            .filter(|(end, _)| tag.contains(end))
            .map(|(end, begin)| tag.replacen(end, begin, 1));
        others.into_iter().find(|open| all.contains(open))
    };
    Some(Marks {
        open: open?,
        close: tag.to_owned(),
    })
}

/// The tags that the template writes round the thought of a message that has one in a field of its
/// own.
fn written_by(chat: &Chat) -> Option<Marks> {
    static ENDS_IN_TAG: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(<[^<>\s]+>|\[[^\[\]\s]+\])\s*$").expect("the pattern is a constant")
    });
    static BEGINS_WITH_TAG: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^\s*(<[^<>\s]+>|\[[^\[\]\s]+\])").expect("the pattern is a constant")
    });
    let said = [
        ("role", "assistant"),
        ("content", ANSWER),
        ("reasoning_content", THOUGHT),
    ];
    let said = said.map(|(key, text)| (key.to_owned(), Json::from(text)));
    let asked = Messages::user("asked");
    let thought = asked
        .clone()
        .and_message(&Json::Object(said.into_iter().collect()))
        .ok()?;
    // A template may refuse such a message.
    let thought = chat.write(&thought, false).ok()?;
    let plain = chat.write(&asked.and("assistant", ANSWER), false).ok()?;
    let (before, after) = thought.split_once(THOUGHT)?;
    let (between, _) = after.split_once(ANSWER)?;
    let marks = Marks {
        open: ENDS_IN_TAG.captures(before)?[1].to_owned(),
        close: BEGINS_WITH_TAG.captures(between)?[1].to_owned(),
    };
    // Tags that stand before every answer do not mark thoughts.
    let is_own = !plain.contains(&marks.open) && !plain.contains(&marks.close);
    is_own.then_some(marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_the_tags_of_thoughts() {
        let text = "<think> [/THINK] {{ m['reasoning_content'] }} <|begin_of_thought|> <|end_of_thought|> <seed:think></seed:think> \
            <|START_THINKING|><|END_THINKING|> ◁/think▷ <|end_of_reasoning|> <tool_call>";
        let tags = tags(text);
        let pairs: Vec<String> = tags
            .iter()
            .filter_map(|tag| ended_by(tag, &tags))
            .map(|Marks { open, close }| format!("{open} {close}"))
            .collect();
        assert_eq!(
            pairs,
            [
                "[THINK] [/THINK]",
                "<|begin_of_thought|> <|end_of_thought|>",
                "<seed:think> </seed:think>",
                "<|START_THINKING|> <|END_THINKING|>",
                "◁think▷ ◁/think▷",
            ]
        );
    }

    #[test]
    fn finds_the_text_behind_thoughts() {
        let closed = Thoughts::default();
        let open = Thoughts {
            is_open: true,
            ..Thoughts::default()
        };
        for (thoughts, turn, expected) in [
            (&closed, "{\"a\": 1}", "{\"a\": 1}"),
            (&closed, "\n<think>\na</think>\n<think>b</think> c", "c"),
            (&closed, "a</think>b", "b"),
            (&closed, "<think>a", ""),
            (&closed, "{\"a\": \"</think>\"}", "{\"a\": \"</think>\"}"),
            (&closed, "a <think>", "a <think>"),
            (&open, "a</think>\n\nb", "b"),
            (&open, "a", ""),
            (&open, "a</think>b</think>c", "b</think>c"),
        ] {
            assert_eq!(thoughts.after_all(turn), expected, "{turn}");
        }
        assert!(
            closed.is_blank("<think>\n\n</think>\n")
                && closed.is_blank("")
                && !closed.is_blank("<think>a</think>")
        );
    }
}
