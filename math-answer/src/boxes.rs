//! The boxes of a text, and which of them are one answer.

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
const BACK: &str = "\
    no not wrong wait actually instead sorry but rather think thought hmm oops mistake incorrect \
    correct correction should reflection guess guessed earlier before previous previously \
    initial initially originally again recheck checking corrected better meant mean now error \
    however scratch";

/// Words that lead from a step to the next one.
const THUS: &str = "\
    so then thus hence therefore gives giving implies yields which because since if when sum \
    total final answer finally consequently";

/// Words that lead from parts of a solution to its result, so that only the last one is the answer.
const CONCLUDES: &str = "\
    answer answers final finally conclude conclusion step total altogether overall result gives \
    giving yields implies";

/// Words that lead from a part of a solution to its result, unless each of the two has a name.
const LEADS: &str = "so thus hence therefore consequently";

/// Words that may stand with a comma between two parts of one answer.
const LISTS: &str = "\
    and or is are the other another one second third also as well equals text quad qquad \
    respectively mbox with";

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
    /// Position of the last box.
    pub start: usize,
    /// Position behind the last box.
    pub end: usize,
}

/// The last box of a text, with those before it that belong to the same answer.
pub(crate) fn last(text: &str) -> Option<Last> {
    let boxes = boxes(text);
    let last = boxes.len().checked_sub(1)?;
    let mut first = last;
    while first > 0 && joins(&text[boxes[first - 1].end..boxes[first].start]) {
        first -= 1;
    }
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
    let last = boxes.last()?;
    let is_list = boxes.len() > 1
        && !boxes.windows(2).any(|pair| are_apart(text, pair))
        && phrases::taken_back(&text[last.end..]).is_none();
    is_list.then(|| listed(&boxes))
}

/// True if the text between two boxes takes the first one back, or leads from it to the second as
/// its result.
fn are_apart(text: &str, pair: &[Boxed<'_>]) -> bool {
    let between = &text[pair[0].end..pair[1].start];
    let are_named = pair.iter().all(|one| {
        let before = text[..one.start].trim_end_matches(['$', ' ']);
        before.ends_with('=')
    });
    between.contains('?')
        || says(between, BACK)
        || says(between, CONCLUDES)
        || !are_named && says(between, LEADS)
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
    const ARGUMENT: &str = r"(?:\s*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}|\d)";
    let command = pattern!(
        r"^\\(?:[dtc]?frac",
        ARGUMENT,
        ARGUMENT,
        r"|[a-zA-Z]+",
        ARGUMENT,
        "?)"
    );
    command.find(text).map(|found| found.end())
}

/// The boxes of a text in order. Empty ones, and those that only say what belongs into them, count
/// only if there is no other: `I put it in \boxed{}. \boxed{5}`.
fn boxes(text: &str) -> Vec<Boxed<'_>> {
    let mut starts: Vec<(usize, usize)> = BOXES
        .iter()
        .flat_map(|command| text.match_indices(command))
        .map(|(at, command)| (at, at + command.len()))
        .collect();
    starts.sort_unstable();
    let mut boxes: Vec<Boxed<'_>> = Vec::new();
    for &(start, behind) in &starts[starts.len().saturating_sub(MOST_BOXES)..] {
        let is_inside = boxes.last().is_some_and(|before| start < before.end);
        if !is_inside {
            boxes.extend(boxed_at(text, start, behind));
        }
    }
    if boxes.iter().any(Boxed::is_filled) {
        boxes.retain(Boxed::is_filled);
    }
    boxes
}

/// The box whose command starts at `start` and ends at `behind`.
fn boxed_at(text: &str, start: usize, behind: usize) -> Option<Boxed<'_>> {
    let rest = text[behind..].trim_start();
    let open = text.len() - rest.len();
    if let Some(inside) = rest.strip_prefix('{') {
        let closed = closing(inside);
        // An unclosed box ends with its line; `\}` closes one that has no `\{`.
        let line = &inside[..inside.find(['$', '\n']).unwrap_or(inside.len())];
        let stray = line.find("\\}").filter(|_| !line.contains("\\{"));
        let length = closed.or(stray).unwrap_or(line.len());
        return Some(Boxed {
            start,
            end: open + 1 + length + usize::from(closed.is_some()),
            inside: &inside[..length],
        });
    }
    if let Some(length) = command(rest) {
        return Some(Boxed {
            start,
            end: open + length,
            inside: &rest[..length],
        });
    }
    let is_spaced = open > behind;
    if !is_spaced && rest.starts_with(|c: char| c.is_ascii_digit()) {
        // TeX reads one sign.
        return Some(Boxed {
            start,
            end: open + 1,
            inside: &rest[..1],
        });
    }
    // `\boxed 5`
    let word = rest.split_whitespace().next().filter(|_| is_spaced)?;
    Some(Boxed {
        start,
        end: open + word.len(),
        inside: word.trim_end_matches(['$', '.']),
    })
}

impl Boxed<'_> {
    fn is_filled(&self) -> bool {
        let inside = self.inside.trim_matches([' ', '\n', '.', '…']);
        !inside.is_empty()
            && words(self.inside)
                .last()
                .is_none_or(|last| last != "answer")
    }
}
