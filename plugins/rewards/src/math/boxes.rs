//! The boxes of a text, and which of them are one answer.

use std::sync::LazyLock;

use ::regex::Regex;

use super::lex::closing;

/// Number of boxes that are read, from the end of a text. Unclosed boxes each search the rest of it.
const MOST_BOXES: usize = 32;

/// Commands that draw a box.
const BOXES: [&str; 3] = ["\\boxed", "\\fbox", "\\framebox"];

/// Longest text between two parts of one answer, bytes.
const MOST_BETWEEN: usize = 70;

/// Words that take back what was said before.
const BACK: &str =
    "no not wrong wait actually instead sorry but rather think hmm oops mistake incorrect correct correction should";

/// Words that lead from a step to the next one.
const THUS: &str =
    "so then thus hence therefore gives giving implies yields which because since if when sum total final answer";

/// Content of the last `\boxed{...}` or `\fbox{...}` of a text, with the boxes before it that belong to the same answer, as in
/// `\boxed{1} \quad \text{and} \quad \boxed{2}`; `None` if it has no box.
#[must_use]
pub fn boxed(text: &str) -> Option<String> {
    let boxes = boxes(text);
    let last = boxes.len().checked_sub(1)?;
    let apart = |at: &usize| !joins(&text[boxes[*at].end..boxes[at + 1].start]);
    let first = (0..last).rev().find(apart).map_or(0, |at| at + 1);
    Some(listed(&boxes[first..]))
}

/// Contents of all boxes as one list, for a dataset's answer of several parts. `None` if a word between them takes one back.
pub(super) fn every(text: &str) -> Option<String> {
    let boxes = boxes(text);
    let between = boxes.windows(2).map(|pair| &text[pair[0].end..pair[1].start]);
    (boxes.len() > 1 && !between.clone().any(|between| says(between, BACK) || between.contains('?')))
        .then(|| listed(&boxes))
}

/// True if the text between two boxes makes them parts of one answer: only layout, or names and `and`, `or` or a comma.
fn joins(between: &str) -> bool {
    // `\boxed{3} + \boxed{4} = \boxed{7}` is a calculation, and `x = \boxed{3}` has a name.
    let calculates = between.contains('=') && !between.contains(char::is_alphabetic);
    let is_layout = words(between).next().is_none() && !between.contains('?') && !calculates;
    let apart = between.contains(['?', '.', ':']) || says(between, BACK) || says(between, THUS);
    between.len() <= MOST_BETWEEN
        && !between.contains("\n\n")
        && (is_layout || !apart && (says(between, "and or") || between.contains([',', ';'])))
}

/// True if the text between two formulas of one paragraph is a comma, `and` or `or`.
pub(super) fn lists(between: &str) -> bool {
    if between.contains("\n\n") {
        return false;
    }
    let between = between.trim().trim_start_matches([',', ';']).trim();
    between.is_empty() || between == "and" || between == "or"
}

/// True if a word of `list` is between two formulas.
pub(super) fn says(between: &str, list: &str) -> bool {
    words(between).any(|word| list.split(' ').any(|known| known == word))
}

/// Words of two letters and more, in lower case and without commands.
pub(super) fn words(text: &str) -> impl Iterator<Item = String> {
    static WORD: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\\[a-zA-Z]+|\p{L}{2,}").expect("the pattern is a constant"));
    let plain = WORD.find_iter(text).filter(|word| !word.as_str().starts_with('\\'));
    plain.map(|word| word.as_str().to_lowercase())
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
        Regex::new(&format!(r"^\\(?:[dtc]?frac{argument}{argument}|[a-zA-Z]+{argument}?)"))
            .expect("the pattern is a constant")
    });
    COMMAND.find(text).map(|found| found.end())
}

fn boxes(text: &str) -> Vec<Boxed<'_>> {
    let mut boxes: Vec<Boxed<'_>> = Vec::new();
    let starts = BOXES.iter().flat_map(|command| text.match_indices(command));
    let mut starts: Vec<(usize, usize)> = starts.map(|(at, command)| (at, at + command.len())).collect();
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
            boxes.push(Boxed { start, end, inside: &inside[..length] });
        } else if let Some(length) = command(rest) {
            boxes.push(Boxed { start, end: open + length, inside: &rest[..length] });
        } else if rest.starts_with(|c: char| c.is_ascii_digit()) && rest.len() == text[behind..].len() {
            // TeX reads one sign.
            boxes.push(Boxed { start, end: open + 1, inside: &rest[..1] });
        } else if let Some(word) = rest.split_whitespace().next().filter(|_| rest.len() < text[behind..].len()) {
            // `\boxed 5`
            boxes.push(Boxed { start, end: open + word.len(), inside: word.trim_end_matches(['$', '.']) });
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
