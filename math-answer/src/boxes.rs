//! The boxes of a text, and which of them are one answer.

use std::sync::LazyLock;

use regex::Regex;

use crate::lex::closing;
use crate::phrases::{self, says, words};

/// Number of boxes that are read, from the end of a text. Unclosed boxes each search the rest of
/// it.
const MOST_BOXES: usize = 32;

/// Commands that draw a box.
const BOXES: [&str; 3] = ["\\boxed", "\\fbox", "\\framebox"];

/// Longest text between two parts of one answer, bytes.
const MOST_BETWEEN: usize = 70;

/// Words that take back what was said before.
const BACK: &str = "no not wrong wait actually instead sorry but rather think thought hmm oops mistake incorrect correct correction should reflection guess \
    guessed earlier before previous previously initial initially originally again recheck checking corrected better meant mean now error however scratch";

/// Words that lead from a step to the next one.
const THUS: &str = "so then thus hence therefore gives giving implies yields which because since if when sum total final answer finally consequently";

/// Words that lead from parts of a solution to its result, so that only the last one is the answer.
const CONCLUDES: &str = "answer answers final finally conclude conclusion step total altogether overall result gives giving yields implies";

/// Words that lead from a part of a solution to its result, unless each of the two has a name.
const LEADS: &str = "so thus hence therefore consequently";

/// Words that may stand with a comma between two parts of one answer.
const LISTS: &str = "and or is are the other another one second third also as well equals text quad qquad respectively mbox with";

/// Content of the last `\boxed{...}` or `\fbox{...}` of a text, with the boxes before it that
/// belong to the same answer, as in `\boxed{1} \quad \text{and} \quad \boxed{2}`; `None` if it has
/// no box.
#[must_use]
pub fn boxed(text: &str) -> Option<String> {
    last(text).map(|last| last.inside)
}

/// The boxes that are one answer, at the end of a text.
pub(crate) struct Last {
    /// Their contents as a list.
    pub inside: String,
    /// Position of the last of them.
    pub start: usize,
    /// Position behind it.
    pub end: usize,
}

/// The last box of a text, with those before it that belong to the same answer.
pub(crate) fn last(text: &str) -> Option<Last> {
    let boxes = boxes(text);
    let last = boxes.len().checked_sub(1)?;
    let apart = |at: &usize| !joins(&text[boxes[*at].end..boxes[at + 1].start]);
    let first = (0..last).rev().find(apart).map_or(0, |at| at + 1);
    Some(Last {
        inside: listed(&boxes[first..]),
        start: boxes[last].start,
        end: boxes[last].end,
    })
}

/// Contents of all boxes as one list, for a dataset's answer of several parts. `None` if the words
/// between them take one back, or say that the last box is the result of the others.
pub(crate) fn every(text: &str) -> Option<String> {
    let boxes = boxes(text);
    let is_named = |one: &Boxed<'_>| {
        text[..one.start]
            .trim_end_matches(['$', ' '])
            .ends_with('=')
    };
    let apart = |pair: &[Boxed<'_>]| {
        let between = &text[pair[0].end..pair[1].start];
        let named = pair.iter().all(is_named);
        between.contains('?')
            || says(between, BACK)
            || says(between, CONCLUDES)
            || !named && says(between, LEADS)
    };
    let stands = || {
        boxes
            .last()
            .is_some_and(|last| phrases::taken_back(&text[last.end..]).is_none())
    };
    (boxes.len() > 1 && !boxes.windows(2).any(apart) && stands()).then(|| listed(&boxes))
}

/// True if the text between two boxes makes them parts of one answer: only layout, or names and
/// `and`, `or` or a comma.
fn joins(between: &str) -> bool {
    // `\boxed{3} + \boxed{4} = \boxed{7}` is a calculation, and `x = \boxed{3}` has a name.
    let calculates = between.contains('=') && !between.contains(char::is_alphabetic);
    let is_layout = words(between).next().is_none() && !between.contains('?') && !calculates;
    let apart = between.contains(['?', '.', ':']) || says(between, BACK) || says(between, THUS);
    let is_list = between.contains([',', ';'])
        && words(between).all(|word| LISTS.split(' ').any(|known| known == word));
    between.len() <= MOST_BETWEEN
        && !between.contains("\n\n")
        && (is_layout || !apart && (says(between, "and or") || is_list))
}

/// True if the text between two formulas of one paragraph is a comma, `and` or `or`.
pub(crate) fn lists(between: &str) -> bool {
    if between.contains("\n\n") {
        return false;
    }
    let between = between.trim().trim_start_matches([',', ';']).trim();
    between.is_empty() || between == "and" || between == "or"
}

struct Boxed<'t> {
    start: usize,
    end: usize,
    inside: &'t str,
}

/// Contents without repetition. The space after a comma keeps `4` and `300` apart.
fn listed(boxes: &[Boxed<'_>]) -> String {
    let mut insides: Vec<&str> = boxes.iter().map(|one| one.inside.trim()).collect();
    insides.dedup();
    insides.join(", ")
}

/// The length of a command without braces around it, with its arguments: `\frac{1}{2}`, `\sqrt2`.
fn command(text: &str) -> Option<usize> {
    static COMMAND: LazyLock<Regex> = LazyLock::new(|| {
        let argument = r"(?:\s*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}|\d)";
        Regex::new(&format!(
            r"^\\(?:[dtc]?frac{argument}{argument}|[a-zA-Z]+{argument}?)"
        ))
        .expect("the pattern is a constant")
    });
    COMMAND.find(text).map(|found| found.end())
}

fn boxes(text: &str) -> Vec<Boxed<'_>> {
    let mut boxes: Vec<Boxed<'_>> = Vec::new();
    let starts = BOXES.iter().flat_map(|command| text.match_indices(command));
    let mut starts: Vec<(usize, usize)> = starts
        .map(|(at, command)| (at, at + command.len()))
        .collect();
    starts.sort_unstable();
    for &(start, behind) in &starts[starts.len().saturating_sub(MOST_BOXES)..] {
        if boxes.last().is_some_and(|before| start < before.end) {
            continue;
        }
        let rest = text[behind..].trim_start();
        let open = text.len() - rest.len();
        if let Some(inside) = rest.strip_prefix('{') {
            let closed = closing(inside);
            // An unclosed box ends with its line; `\}` closes one that has no `\{`.
            let line = &inside[..inside.find(['$', '\n']).unwrap_or(inside.len())];
            let stray = line.find("\\}").filter(|_| !line.contains("\\{"));
            let length = closed.or(stray).unwrap_or(line.len());
            let end = open + 1 + length + usize::from(closed.is_some());
            boxes.push(Boxed {
                start,
                end,
                inside: &inside[..length],
            });
        } else if let Some(length) = command(rest) {
            boxes.push(Boxed {
                start,
                end: open + length,
                inside: &rest[..length],
            });
        } else if rest.starts_with(|c: char| c.is_ascii_digit())
            && rest.len() == text[behind..].len()
        {
            // TeX reads one sign.
            boxes.push(Boxed {
                start,
                end: open + 1,
                inside: &rest[..1],
            });
        } else if let Some(word) = rest
            .split_whitespace()
            .next()
            .filter(|_| rest.len() < text[behind..].len())
        {
            // `\boxed 5`
            boxes.push(Boxed {
                start,
                end: open + word.len(),
                inside: word.trim_end_matches(['$', '.']),
            });
        }
    }
    // `I put it in \boxed{}. \boxed{5}`; so does one that only says what belongs into it.
    let is_filled = |one: &Boxed<'_>| {
        !one.inside.trim_matches([' ', '\n', '.', '…']).is_empty()
            && words(one.inside).last().is_none_or(|last| last != "answer")
    };
    if boxes.iter().any(is_filled) {
        boxes.retain(is_filled);
    }
    boxes
}
