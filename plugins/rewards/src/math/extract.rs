//! Search for the answer in a completion.

use std::borrow::Cow;
use std::sync::LazyLock;

use ::regex::Regex;

use super::boxes::{boxed, lists, says};
use super::choice;

/// Positions at which an answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Only boxed text, a formula that the text calls its answer, a line `Answer: 5`, and a last line `#### 5`.
    Anchored,
    /// Also the last formula or number, and a text that is nothing but an answer.
    Any,
}

/// Phrases before an answer, in lower case.
const ANCHORS: [&str; 5] = ["final answer is", "answer is", "answer:", "answer :", "answer**:"];

/// Largest number of such phrases that are read, from the end of a text.
const MOST_ANCHORS: usize = 8;

/// Largest number of kinds of tags that are taken out of a text.
const MOST_TAGS: usize = 8;

/// Longest text between such a phrase and its formula, bytes.
const MOST_BEFORE: usize = 50;

/// Words before a formula that change its value, or say that the answer is another one.
const APART: &str = "no not nor negative minus half twice times than because since if when where";

/// Signs around an answer that belong to its sentence or its mark-up.
const AROUND: &[char] = &[
    '<', '>', '/', '=', '|', ',', ':', ';', ' ', '“', '”', '‘', '’', '«', '»', '„', '…', '。', '，', '、', '：', '；',
    '！', '？', '「', '」', '《', '》', '≈', '→', '⇒',
];

/// Candidates for a completion's answer, best first.
pub(super) fn candidates(text: &str, places: Places) -> Vec<String> {
    if let Some(boxed) = boxed(text) {
        return if boxed.trim().is_empty() { Vec::new() } else { vec![boxed] };
    }
    let text = &without_tags(tagged(text).filter(|_| places == Places::Any).unwrap_or(text));
    let fenced = fenced(text);
    let mut found = Vec::new();
    // A last line as in GSM8K, and no heading.
    if let Some((_, last)) = text.trim_end().rsplit_once("####").filter(|(_, last)| !last.contains('\n')) {
        found.push(last.trim_matches(['*', ' ']).to_owned());
    }
    let anchors = anchors(text);
    // A later sentence such as `This answer is correct` names no other answer.
    let names =
        |anchor: &&_| named(text, **anchor, &fenced).is_some() || begins_line(text, anchor.0) && !anchor.1.is_empty();
    let anchor = anchors.iter().find(names).or(anchors.first()).copied();
    if let Some((behind, rest)) = anchor {
        found.extend(named(text, (behind, rest), &fenced));
        if places == Places::Any || begins_line(text, behind) {
            found.extend([rest.to_owned(), rest.trim_matches(AROUND).to_owned()]);
        }
    }
    if places == Places::Any {
        let pieces = with_runs(text, &fenced);
        if let Some((behind, rest)) = anchor {
            let end = behind + text[behind..].find(rest).map_or(0, |at| at + rest.len());
            let mut inside = pieces.iter().filter(|piece| (behind..end).contains(&piece.start));
            found.extend(inside.find(|piece| !is_name(text, piece)).map(|piece| piece.inside.to_owned()));
        }
        if fenced.is_empty() && is_answer(text.trim()) {
            found.push(text.trim().to_owned());
        }
        let last = pieces.last().filter(|last| !last.fenced).map(|last| last.inside);
        found.extend(last.into_iter().flat_map(|last| [last.to_owned(), last.trim_matches(AROUND).to_owned()]));
        found.extend(fenced.len().checked_sub(1).map(|last| with_neighbours(text, &fenced, last)));
    }
    found.retain(|candidate| !candidate.trim().is_empty());
    found
}

/// What a completion says behind its thoughts, if that is anything.
pub(super) fn said(text: &str) -> &str {
    text.rsplit_once("</think>").map(|(_, said)| said).filter(|said| !said.trim().is_empty()).unwrap_or(text)
}

/// The text between the last tags `<answer>` and `</answer>`, if there is any.
fn tagged(text: &str) -> Option<&str> {
    let (_, inside) = text.rsplit_once("</answer>")?.0.rsplit_once("<answer>")?;
    Some(inside).filter(|inside| !inside.trim().is_empty())
}

/// The text without tags that are closed in it: `<answer>7</answer>` is 7, and `a<b>c` stays.
fn without_tags(text: &str) -> Cow<'_, str> {
    static CLOSE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"</([a-zA-Z]{1,16})>").expect("the pattern is a constant"));
    let mut text = Cow::Borrowed(text);
    for _ in 0..MOST_TAGS {
        let Some(close) = CLOSE.captures(&text) else { break };
        let (close, open) = (close[0].to_owned(), format!("<{}>", &close[1]));
        text = text.replace(&close, "\n").replace(&open, "\n").into();
    }
    text
}

/// The rest of the line behind the words by which a dataset's text names its answer.
pub(super) fn stated(text: &str) -> Option<&str> {
    anchors(text).first().map(|(_, rest)| *rest)
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
    // A dollar sign before a digit is a currency's.
    let is_currency = |at: usize| end == "$" && inside[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    ends.find(|&at| !end.starts_with('$') || !inside[..at].ends_with('\\') && !is_currency(at))
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

/// Mathematics without delimiters on one line: numbers, single letters, commands and signs, but no part of a word.
static RUN: LazyLock<Regex> = LazyLock::new(|| {
    let parts = [
        r"\\(?:text\w*|mbox|mathrm|operatorname|begin|end)\s?\{[^{}\n]*\}",
        r"\\[a-zA-Z]+\d*",
        r"\\\{[^{}\n]*\\\}",
        r"\\[^a-zA-Z\s{}]",
        // Members of a point or an interval.
        r"[(\[](?:[^()\[\]a-zA-Z\\\n]|\\[a-zA-Z]+)*[)\]]",
        // `1,234.5`, `3:2`, `3x`, `12cm`
        r"(?-u:\b)\d+(?:[,:]\d+)*(?:\.\d+)?[a-zA-Z]{0,3}(?-u:\b)",
        r"\.\d+",
        r"(?-u:\b)(?:sqrt|sin|cos|tan|log|ln|exp|pi|percent|pct|[a-zA-Z])(?:_\w+)?(?-u:\b)",
        r"[-+*/^_=<>|%!$~&(){}\[\]]",
        r"[^\x00-\x7f\p{L}\s]",
    ];
    Regex::new(&format!(r"(?:(?:{})[ \t]*)+", parts.join("|"))).expect("the pattern is a constant")
});

/// Mathematics without delimiters in a part of a text, as in `So x = 2\sqrt{3}.`
fn runs<'t>(text: &'t str, (from, to): (usize, usize), found: &mut Vec<Piece<'t>>) {
    for run in RUN.find_iter(&text[from..to]) {
        let (mut start, mut end) = (from + run.start(), from + run.start() + run.as_str().trim_end().len());
        // Scripts without spaces put a number right behind a word.
        let joins = |c: char| c.is_alphanumeric() && c < '\u{2e80}';
        let is_glued = |start: usize, end: usize| text[..start].ends_with(joins) || text[end..].starts_with(joins);
        if is_glued(start, end) {
            end = start + text[start..end].trim_end_matches(AROUND).len();
            start = end - text[start..end].trim_start_matches(AROUND).len();
        }
        let glued = is_glued(start, end);
        let mut inside = text[start..end].trim_matches(['*', '_', '!', ' ', '\t']);
        // An article, a bullet or the `s` of `it's` before a number is no factor or sign.
        while let Some((first, rest)) = inside.split_once(' ')
            && (matches!(first, "a" | "A" | "I" | "-" | "*" | "+" | ">" | "=") || text[..start].ends_with('\''))
        {
            inside = rest;
        }
        let inside = inside.strip_suffix(" a").unwrap_or(inside);
        if !glued && inside.contains(|c: char| c.is_ascii_digit() || c == '\\') {
            found.push(Piece { start, end, inside, fenced: false });
        }
    }
}

/// True if a text may be nothing but an answer: formulas with commas, or one or two words without a number.
fn is_answer(line: &str) -> bool {
    let between = RUN.replace_all(line, " ");
    let formula = between.split([' ', ',', ';', '.']).all(|word| matches!(word, "" | "and" | "or"));
    formula || !line.contains(|c: char| c.is_ascii_digit() || c == '\n') && line.split_whitespace().count() <= 2
}

/// Positions behind the last phrases before an answer, and the rest of the line at each; the last comes first.
fn anchors(text: &str) -> Vec<(usize, &str)> {
    let lower = text.to_ascii_lowercase();
    let mut ends = Vec::new();
    for anchor in ANCHORS {
        ends.extend(lower.rmatch_indices(anchor).take(MOST_ANCHORS).map(|(at, _)| at + anchor.len()));
    }
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.dedup();
    let rest = |behind: usize| {
        let rest = text[behind..].trim_start_matches([':', ' ', '\n', '*']);
        rest.lines().next().unwrap_or_default().trim_end_matches([' ', '*'])
    };
    ends.into_iter().take(MOST_ANCHORS).map(|behind| (behind, rest(behind))).collect()
}

/// True if the phrase before an answer that ends at `behind` is `Answer:` at the beginning of a line.
fn begins_line(text: &str, behind: usize) -> bool {
    let line = text[..behind].rsplit('\n').next().unwrap_or_default().to_ascii_lowercase();
    let line = line.trim_start_matches(['*', '#', '>', '_', ' ', '\t']);
    matches!(line.replace('*', "").as_str(), "answer:" | "answer :" | "final answer:")
}

/// The formula that follows the phrase before an answer, after a few words at most; the rest of the line if that calculates with it: `-$5$`.
fn named(text: &str, (behind, rest): (usize, &str), fenced: &[Piece<'_>]) -> Option<String> {
    let place = fenced.iter().position(|piece| piece.start >= behind && !is_name(text, piece))?;
    let (before, after) = (&text[behind..fenced[place].start], &text[fenced[place].end..]);
    if before.len() > MOST_BEFORE || before.trim().contains('\n') || says(before, APART) {
        return None;
    }
    if calculates(before, after) {
        return Some(rest.to_owned());
    }
    // The answer was a choice or a number before it: `C, as $x = 2$`, `12 for $n = 4$`.
    static CHOICE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?-u:\b)[A-HJ-Z](?-u:\b)").expect("the pattern is a constant"));
    let mut numbers = Vec::new();
    runs(text, (behind, fenced[place].start), &mut numbers);
    // That of `(C) $12$` is both.
    let leads = before.trim_end().ends_with('=') || !CHOICE.is_match(before) || choice(rest).is_some();
    (leads && numbers.iter().all(|number| is_name(text, number))).then(|| with_neighbours(text, fenced, place))
}

/// True if a sign of a calculation stands between a formula and the text next to it.
fn calculates(before: &str, after: &str) -> bool {
    static AFTER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^\s*(?:[-−–+*/·×^]|times|plus|minus)\s*[$\d\\(]").expect("the pattern is a constant")
    });
    let is_bullet = before.rsplit_once('\n').is_some_and(|(_, line)| line.trim_start() == "- ");
    !is_bullet && before.trim_end().ends_with(['-', '−', '–', '+', '/', '·', '×', '^']) || AFTER.is_match(after)
}

/// True if the text behind a formula says that its value follows, or it does so itself: `$n$ is 34`, `2 + 3 = 5`.
fn is_name(text: &str, piece: &Piece<'_>) -> bool {
    let behind = text[piece.end..].trim_start();
    behind.starts_with("is ") || behind.starts_with("= ") || piece.inside.ends_with('=')
}
