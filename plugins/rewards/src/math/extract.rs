//! Search for the answer in a completion.

use super::boxes::{boxed, lists};
use super::lex::closing;
use super::signs;

/// Positions at which an answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Only boxed text, a formula that the text calls its answer, and a line `Answer: 5`.
    Anchored,
    /// Also the last formula or number, and a text that is nothing but an answer.
    Any,
}

/// Phrases before an answer, in lower case.
const ANCHORS: [&str; 4] = ["final answer is", "answer is", "answer:", "answer :"];

/// Longest text between such a phrase and its formula, bytes.
const MOST_BEFORE: usize = 50;

/// Candidates for a completion's answer, best first.
pub(super) fn candidates(text: &str, places: Places) -> Vec<String> {
    if let Some(boxed) = boxed(text) {
        return if boxed.trim().is_empty() { Vec::new() } else { vec![boxed] };
    }
    let fenced = fenced(text);
    let mut found = Vec::new();
    let anchor = anchor(text);
    if let Some((behind, rest)) = anchor {
        found.extend(named(text, behind, &fenced));
        if places == Places::Any || begins_line(text, behind) {
            found.push(rest.to_owned());
        }
    }
    if places == Places::Any {
        let pieces = with_runs(text, &fenced);
        if let Some((behind, rest)) = anchor {
            let end = behind + text[behind..].find(rest).map_or(0, |at| at + rest.len());
            let mut inside = pieces.iter().filter(|piece| (behind..end).contains(&piece.start));
            found.extend(inside.find(|piece| !is_name(&text[piece.end..])).map(|piece| piece.inside.to_owned()));
        }
        if fenced.is_empty() && is_answer(text.trim()) {
            found.push(text.trim().to_owned());
        }
        found.extend(pieces.last().filter(|last| !last.fenced).map(|last| last.inside.to_owned()));
        found.extend(fenced.len().checked_sub(1).map(|last| with_neighbours(text, &fenced, last)));
    }
    found.retain(|candidate| !candidate.trim().is_empty());
    found
}

/// What a dataset's text calls its answer: the rest of the line.
pub(super) fn stated(text: &str) -> Option<&str> {
    anchor(text).map(|(_, rest)| rest)
}

/// A formula, with its delimiters from `start` to `end`.
#[derive(Clone, Copy)]
struct Piece<'t> {
    start: usize,
    end: usize,
    inside: &'t str,
    /// True if it has delimiters.
    fenced: bool,
}

/// Formulas between `$`, `$$`, `\(`, `\[`, in order.
fn fenced(text: &str) -> Vec<Piece<'_>> {
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
                let (start, inside) = (at, &inside[..length]);
                at += begin.len() + length + end.len();
                if !inside.trim().is_empty() {
                    found.push(Piece { start, end: at, inside, fenced: true });
                }
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

/// The formula at `place`, with those next to it if only `,`, `and` or `or` is between them.
fn with_neighbours(text: &str, fenced: &[Piece<'_>], place: usize) -> String {
    let apart = |at: &usize| !lists(&text[fenced[*at].end..fenced[at + 1].start]);
    let first = (0..place).rev().find(apart).map_or(0, |at| at + 1);
    let last = (place..fenced.len() - 1).find(apart).unwrap_or(fenced.len() - 1);
    fenced[first..=last].iter().map(|piece| piece.inside).collect::<Vec<_>>().join(", ")
}

/// The formulas, and the mathematics without delimiters between them, in order.
fn with_runs<'t>(text: &'t str, fenced: &[Piece<'t>]) -> Vec<Piece<'t>> {
    let mut found = Vec::new();
    let ends = fenced.iter().map(|piece| piece.start).chain([text.len()]);
    let mut at = 0;
    for (place, end) in ends.enumerate() {
        runs(text, (at, end), &mut found);
        if let Some(piece) = fenced.get(place) {
            found.push(*piece);
            at = piece.end;
        }
    }
    found
}

/// Mathematics without delimiters in a part of a text: neighbouring words without letters of a language, as in `So x = 2\sqrt{3}.`
fn runs<'t>(text: &'t str, (from, to): (usize, usize), found: &mut Vec<Piece<'t>>) {
    let mut run: Option<(usize, usize)> = None;
    for (start, end) in words(text, (from, to)) {
        let word = &text[start..end];
        // An article or a bullet before a number is no factor or sign.
        let first = run.is_none() && matches!(word, "a" | "A" | "-" | "*" | "+" | ">" | "=" | "####");
        let math = is_math(word) && !first;
        if math {
            run = Some((run.map_or(start, |(first, _)| first), end));
        }
        let behind = text[end..to].trim_start_matches([' ', '\t']);
        let goes_on =
            math && !word.ends_with(['.', ',', ';', ':', '?']) && !behind.is_empty() && !behind.starts_with('\n');
        if let Some((start, end)) = run.take_if(|_| !goes_on) {
            let inside = text[start..end].trim_matches(['.', ',', ';', ':', '?', '!', '*', '_', '"', '`']);
            let inside =
                if text[start..end].starts_with('.') { &text[start..start + inside.len() + 1] } else { inside };
            if inside.contains(|c: char| c.is_ascii_digit() || c == '\\') {
                found.push(Piece { start, end, inside, fenced: false });
            }
        }
    }
}

/// Places of the words between white space in a part of a text; brackets and braces keep a word together up to the end of the line.
fn words(text: &str, (from, to): (usize, usize)) -> Vec<(usize, usize)> {
    let (mut words, mut start, mut depth) = (Vec::new(), None, 0_usize);
    for (at, c) in text[from..to].char_indices().map(|(at, c)| (from + at, c)).chain([(to, '\n')]) {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c == '\n' || c.is_whitespace() && depth == 0 {
            words.extend(start.take().map(|start| (start, at)));
            depth = 0;
        } else {
            start = start.or(Some(at));
        }
    }
    words
}

/// True for a word without letters of a language: outside commands and their texts it has single letters, functions, or a unit after
/// a number.
fn is_math(word: &str) -> bool {
    let mut rest = word;
    let mut number = false;
    while let Some(c) = rest.chars().next() {
        if let Some(behind) = rest.strip_prefix('\\') {
            let name = &behind[..behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len())];
            rest = &behind[name.len()..];
            if (signs::is_in(signs::TEXT, name) || matches!(name, "begin" | "end"))
                && let Some(inside) = rest.strip_prefix('{')
            {
                rest = &inside[closing(inside).map_or(inside.len(), |length| length + 1)..];
            }
            continue;
        }
        let run = &rest[..rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len())];
        if run.chars().count() > 1 && !signs::is_in(signs::FUNCTIONS, run) && !(number && signs::is_unit(run)) {
            return false;
        }
        number = c.is_ascii_digit();
        rest = &rest[run.len().max(c.len_utf8())..];
    }
    true
}

/// True if a text may be nothing but an answer: a formula, or one or two words without a number.
fn is_answer(line: &str) -> bool {
    let words = words(line, (0, line.len()));
    let numbers = line.contains(|c: char| c.is_ascii_digit());
    !line.contains('\n')
        && (words.iter().all(|(start, end)| is_math(&line[*start..*end])) || !numbers && words.len() <= 2)
}

/// Position behind the last phrase before an answer, and the rest of the line there.
fn anchor(text: &str) -> Option<(usize, &str)> {
    let lower = text.to_ascii_lowercase();
    let behind = ANCHORS.iter().filter_map(|anchor| lower.rfind(anchor).map(|at| at + anchor.len())).max()?;
    let rest = text[behind..].trim_start_matches([':', ' ', '\n', '*']);
    Some((behind, rest.lines().next()?.trim_end_matches([' ', '*'])))
}

/// True if the phrase before an answer that ends at `behind` is `Answer:` at the beginning of a line.
fn begins_line(text: &str, behind: usize) -> bool {
    let line = text[..behind].rsplit('\n').next().unwrap_or_default().to_ascii_lowercase();
    let line = line.trim_start_matches(['*', '#', '>', '_', ' ', '\t']);
    matches!(line, "answer:" | "answer :" | "final answer:")
}

/// The formula that follows the phrase before an answer, after a few words at most.
fn named(text: &str, behind: usize, fenced: &[Piece<'_>]) -> Option<String> {
    let place = fenced.iter().position(|piece| piece.start >= behind && !is_name(&text[piece.end..]))?;
    let before = &text[behind..fenced[place].start];
    (before.len() <= MOST_BEFORE && !before.trim().contains('\n')).then(|| with_neighbours(text, fenced, place))
}

/// True if the text behind a formula says that its value follows: `$n$ is 34`.
fn is_name(behind: &str) -> bool {
    behind.trim_start().starts_with("is ") || behind.trim_start().starts_with("= ")
}
