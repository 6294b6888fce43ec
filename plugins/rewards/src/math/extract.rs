//! Search for the answer in a text.

use super::lex::closing;

/// Positions at which an answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Only boxed text, and a formula that the text calls its answer.
    Anchored,
    /// Also the last formula, the last number, and a text that is nothing but an answer.
    Any,
}

/// Texts between two boxes that belong together.
const BETWEEN: [&str; 4] = [",", "and", "or", ", and"];

/// Phrases before an answer, in lower case.
const ANCHORS: [&str; 4] = ["final answer is", "answer is", "answer:", "answer :"];

/// Candidates for a text's answer, best first.
pub(super) fn candidates(text: &str, places: Places) -> Vec<String> {
    if let Some(boxed) = boxed(text) {
        return if boxed.trim().is_empty() { Vec::new() } else { vec![boxed] };
    }
    let formulas = formulas(text);
    let mut found: Vec<String> = anchored(text, &formulas).into_iter().collect();
    if places == Places::Any {
        found.extend(after_anchor(text).map(str::to_owned));
        found.extend(formulas.last().map(|formula| formula.inside.to_owned()));
        let line = text.trim();
        if formulas.is_empty() && is_answer(line) {
            found.push(line.to_owned());
        }
        found.extend(last_number(text).map(str::to_owned));
    }
    found.retain(|candidate| !candidate.trim().is_empty());
    found
}

/// Contents of the last `\boxed{...}` or `\fbox{...}`, with the boxes right before it: `\boxed{1} and \boxed{2}`.
fn boxed(text: &str) -> Option<String> {
    let mut boxes: Vec<(usize, usize, &str)> = Vec::new();
    let starts = text.match_indices("\\boxed").chain(text.match_indices("\\fbox"));
    let mut starts: Vec<(usize, usize)> = starts.map(|(at, command)| (at, at + command.len())).collect();
    starts.sort_unstable();
    // Only the last few boxes are examined, so that unclosed boxes do not each search the whole text.
    for &(at, behind) in starts.iter().rev().take(8).rev() {
        if boxes.last().is_some_and(|(_, end, _)| at < *end) {
            continue;
        }
        let rest = text[behind..].trim_start();
        let open = text.len() - rest.len();
        if let Some(inside) = rest.strip_prefix('{') {
            // An unclosed box ends with its line.
            let closed = closing(inside);
            let length = closed.unwrap_or_else(|| inside.find(['$', '\n']).unwrap_or(inside.len()));
            boxes.push((at, open + 1 + length + usize::from(closed.is_some()), &inside[..length]));
        } else if let Some(word) = rest.split_whitespace().next().filter(|_| rest.len() < text[behind..].len()) {
            // `\boxed 5`
            boxes.push((at, open + word.len(), word.trim_end_matches(['$', '.'])));
        }
    }
    let (mut start, _, last) = *boxes.last()?;
    let mut together = vec![last];
    for &(at, end, inside) in boxes.iter().rev().skip(1) {
        let between = text[end..start].trim_matches([' ', '$', '\n']);
        if !BETWEEN.contains(&between) {
            break;
        }
        together.push(inside);
        start = at;
    }
    together.reverse();
    Some(together.join(","))
}

/// A formula between its delimiters.
struct Formula<'t> {
    start: usize,
    inside: &'t str,
}

/// Formulas between `$`, `$$`, `\(`, `\[`, in order.
fn formulas(text: &str) -> Vec<Formula<'_>> {
    const FENCES: [(&str, &str); 4] = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")];
    let (mut found, mut at) = (Vec::new(), 0);
    // If a delimiter is unclosed once, it is unclosed everywhere after that.
    let mut open = FENCES.map(|_| true);
    while let Some(next) = text[at..].find(['$', '\\']) {
        at += next;
        let rest = &text[at..];
        let fence = (0..FENCES.len()).find(|&fence| open[fence] && rest.starts_with(FENCES[fence].0));
        let Some(fence) = fence else {
            // An escaped sign is not a delimiter.
            at += 1 + rest[1..].chars().next().filter(|_| rest.starts_with('\\')).map_or(0, char::len_utf8);
            continue;
        };
        let (begin, end) = FENCES[fence];
        let inside = &rest[begin.len()..];
        match end_of(inside, end) {
            Some(length) => {
                if !inside[..length].trim().is_empty() {
                    found.push(Formula { start: at, inside: &inside[..length] });
                }
                at += begin.len() + length + end.len();
            }
            None => {
                open[fence] = false;
                at += begin.len();
            }
        }
    }
    found
}

/// First position of `end` without a backslash before it.
fn end_of(inside: &str, end: &str) -> Option<usize> {
    let mut ends = inside.match_indices(end).map(|(at, _)| at);
    ends.find(|&at| !end.starts_with('$') || !inside[..at].ends_with('\\'))
}

/// The formula that follows the last phrase before an answer.
fn anchored(text: &str, formulas: &[Formula<'_>]) -> Option<String> {
    let behind = text.len() - after_anchor(text)?.len();
    let first = formulas.iter().find(|formula| formula.start >= behind)?;
    // Only a few short words may come in between.
    (text[behind..first.start].len() <= 20).then(|| first.inside.to_owned())
}

/// The rest of the line after the last phrase before an answer.
fn after_anchor(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    let behind = ANCHORS.iter().filter_map(|anchor| lower.rfind(anchor).map(|at| at + anchor.len())).max()?;
    let rest = text[behind..].trim_start_matches([':', ' ', '\n', '*']);
    rest.lines().next()
}

/// True if a text may be nothing but an answer: a formula, or one or two words without a number.
fn is_answer(line: &str) -> bool {
    let word = |run: &str| match run.len() {
        0 | 1 => false,
        2 => matches!(run, "so" | "it" | "is" | "we" | "he" | "of" | "to" | "in" | "as" | "at" | "by"),
        _ => !matches!(run, "and" | "sin" | "cos" | "tan" | "log" | "sqrt"),
    };
    // The first letters after a backslash are a command.
    let plain = |part: &str| part.split(|c: char| !c.is_alphabetic()).any(word);
    let command = |part: &str| plain(part.trim_start_matches(|c: char| c.is_ascii_alphabetic()));
    let mut parts = line.split('\\');
    let words = plain(parts.next().unwrap_or_default()) || parts.any(command);
    let numbers = line.contains(|c: char| c.is_ascii_digit());
    let short = line.split_whitespace().count() <= 2;
    !line.contains('\n') && (line.contains("\\text") || !words || !numbers && short)
}

/// The last number, with its sign, fraction and separators.
fn last_number(text: &str) -> Option<&str> {
    let number = |c: char| c.is_ascii_digit();
    let end = text.rfind(number)? + 1;
    let part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '/');
    let start =
        text[..end].rfind(|c: char| !part(c)).map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    let start = start + text[start..end].len() - text[start..end].trim_start_matches([',', '/']).len();
    let signed = text[..start].ends_with('-') && !text[..start - 1].ends_with(|c: char| c.is_alphanumeric());
    Some(&text[start - usize::from(signed)..end])
}
