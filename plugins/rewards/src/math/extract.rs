//! Search for the answer in a completion.

use std::borrow::Cow;
use std::sync::LazyLock;

use ::regex::Regex;

use super::boxes::{boxed, lists, says, words};
use super::{environments, expression, signs};

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

/// A text that may be a completion's answer.
pub(super) struct Candidate {
    /// The words that are compared as text.
    pub text: String,
    /// The part of it that has its meaning.
    pub formula: String,
}

impl Candidate {
    fn new(text: &str, formula: &str) -> Self {
        Self { text: text.to_owned(), formula: formula.to_owned() }
    }

    fn whole(text: &str) -> Self {
        Self::new(text, text)
    }

    /// A text without delimiters, in which `42!` may be no factorial.
    fn bare(text: &str) -> Self {
        let is_number = |text: &&str| !text.contains(|c: char| !(c.is_ascii_digit() || ",.-$\\".contains(c)));
        Self::new(text, text.strip_suffix('!').filter(is_number).unwrap_or(text))
    }
}

/// Candidates for a completion's answer, best first.
pub(super) fn candidates(text: &str, places: Places) -> Vec<Candidate> {
    if let Some(boxed) = boxed(text) {
        return if boxed.trim().is_empty() { Vec::new() } else { vec![Candidate::whole(&boxed)] };
    }
    let text = &without_tags(tagged(text).filter(|_| places == Places::Any).unwrap_or(text));
    let fenced = fenced(text);
    let pieces = if places == Places::Any { with_runs(text, &fenced) } else { Vec::new() };
    let mut found = Vec::new();
    // A last line as in GSM8K, and no heading.
    if let Some((_, last)) = text.trim_end().rsplit_once("####").filter(|(_, last)| !last.contains('\n')) {
        found.push(Candidate::whole(last.trim_matches(['*', ' '])));
    }
    let anchors = anchors(text);
    let near = |anchor| named(text, anchor, &fenced, MOST_BEFORE);
    // A later sentence such as `This answer is correct` names no other answer.
    let names = |anchor: &&_| near(**anchor).is_some() || begins_line(text, anchor.0) && !anchor.1.is_empty();
    let anchor = anchors.iter().find(names).or(anchors.first()).copied();
    if let Some((behind, rest)) = anchor {
        if let Some(formula) = near((behind, rest)) {
            found.push(Candidate::new(if choice(rest).is_some() { rest } else { &formula }, &formula));
        }
        if places == Places::Any || begins_line(text, behind) {
            found.extend([rest, rest.trim_matches(AROUND)].map(Candidate::bare));
        }
        let end = behind + text[behind..].find(rest).map_or(0, |at| at + rest.len());
        let line: Vec<Piece<'_>> =
            pieces.iter().filter(|piece| (behind..end).contains(&piece.start)).copied().collect();
        if let Some(formula) = named(text, (behind, rest), &line, usize::MAX) {
            // Words beside a formula would be its factors.
            let place = if is_prose(rest) { found.len() - 2 } else { found.len() };
            found.insert(place, Candidate::new(if formula.contains("\\text") { &formula } else { rest }, &formula));
        }
    }
    if places == Places::Any {
        if fenced.is_empty() && is_answer(text.trim()) {
            found.push(Candidate::bare(text.trim()));
        }
        let last = pieces.last().filter(|last| !last.fenced).map(|last| last.inside);
        found.extend(last.into_iter().flat_map(|last| [last, last.trim_matches(AROUND)]).map(Candidate::whole));
        found.extend(fenced.len().checked_sub(1).map(|last| Candidate::whole(&with_neighbours(text, &fenced, last))));
    }
    found.retain(|candidate| !candidate.text.trim().is_empty());
    found
}

/// The text behind a completion's thoughts, if there is any, without Markdown's signs for bold: `**42**` is 42, and `2**3` stays.
pub(super) fn said(text: &str) -> Cow<'_, str> {
    static BOLD: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(^|[\s=:({])\*\*([^*\s](?:(?:\*?[^*\n])*[^*\s])?)\*\*\B").expect("the pattern is a constant")
    });
    let said = text.rsplit_once("</think>").map(|(_, said)| said).filter(|said| !said.trim().is_empty());
    BOLD.replace_all(said.unwrap_or(text), "$1$2")
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

/// Formulas between `$`, `$$`, `\(`, `\[`, and lines in `\begin{align}`, in order.
fn fenced(text: &str) -> Vec<Piece<'_>> {
    const FENCES: [(&str, &str); 4] = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")];
    let (mut found, mut at) = (Vec::new(), 0);
    // If a delimiter is unclosed once, it is unclosed everywhere after that.
    let (mut open, mut whole) = (FENCES.map(|_| true), true);
    while let Some(next) = text[at..].find(['$', '\\']) {
        at += next;
        let rest = &text[at..];
        if let Some(lines) = lines(rest).filter(|_| whole) {
            whole = lines.is_some();
            let length = lines.unwrap_or("\\begin".len());
            found.extend(lines.map(|length| Piece {
                start: at,
                end: at + length,
                inside: &rest[..length],
                fenced: true,
            }));
            at += length;
            continue;
        }
        let fence = (0..FENCES.len()).find(|&fence| open[fence] && rest.starts_with(FENCES[fence].0));
        let fence = fence.filter(|&fence| FENCES[fence].0 != "$" || !is_price(&rest[1..]));
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

/// The length of the environment of lines that a text begins with: `None` if it begins with none, `Some(None)` if its end is missing.
fn lines(text: &str) -> Option<Option<usize>> {
    let (name, rest) = text.strip_prefix("\\begin{")?.split_once('}')?;
    if !environments::is_lines(name.trim_end_matches('*')) {
        return None;
    }
    let end = format!("\\end{{{name}}}");
    Some(rest.find(&end).map(|at| text.len() - rest.len() + at + end.len()))
}

/// First position of `end` without a backslash before it.
fn end_of(inside: &str, end: &str) -> Option<usize> {
    let mut ends = inside.match_indices(end).map(|(at, _)| at);
    // A dollar sign before a digit is a currency's.
    let is_currency = |at: usize| end == "$" && inside[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    ends.find(|&at| !end.starts_with('$') || !inside[..at].ends_with('\\') && !is_currency(at))
}

/// True if the text behind a dollar sign is a sum of money, and words up to the next dollar sign: `$30. So $x$`, `$30. So $40$`.
fn is_price(behind: &str) -> bool {
    let next = behind.find('$').filter(|_| behind.starts_with(|c: char| c.is_ascii_digit()));
    next.is_some_and(|next| {
        let (inside, after) = (&behind[..next], &behind[next + 1..]);
        let apart = inside.ends_with(char::is_whitespace) || after.starts_with(|c: char| c.is_ascii_digit());
        apart && !inside.contains('\\') && words(inside).next().is_some()
    })
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
        // `42 (approximately)`
        let inside = run.as_str().trim_end().trim_end_matches(" (").trim_end();
        let (mut start, mut end) = (from + run.start(), from + run.start() + inside.len());
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
    let words = match line.split_whitespace().collect::<Vec<_>>()[..] {
        [] | [_] => true,
        // `So \pi.`
        [first, second] => !(second.contains('\\') && first.chars().all(char::is_alphabetic)),
        _ => false,
    };
    formula || words && !line.contains(|c: char| c.is_ascii_digit() || c == '\n')
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

/// The formula that follows the phrase before an answer, behind at most `most` bytes; the rest of the line if that calculates with it: `-$5$`.
fn named(text: &str, (behind, rest): (usize, &str), pieces: &[Piece<'_>], most: usize) -> Option<String> {
    let place = pieces.iter().position(|piece| piece.start >= behind && !is_name(text, piece))?;
    let piece = &pieces[place];
    let before = &text[behind..piece.start];
    if before.len() > most || before.trim().contains('\n') || says(before, APART) {
        return None;
    }
    if calculates(text, behind, piece) {
        return Some(rest.to_owned());
    }
    // The answer was a choice or a number before it: `C, as $x = 2$`, `12 for $n = 4$`.
    static CHOICE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?-u:\b)[A-HJ-Z](?-u:\b)").expect("the pattern is a constant"));
    let mut numbers = Vec::new();
    runs(text, (behind, piece.start), &mut numbers);
    // That of `(C) $12$` is both.
    let leads = before.trim_end().ends_with('=') || !CHOICE.is_match(before) || choice(rest).is_some();
    (leads && numbers.iter().all(|number| is_name(text, number))).then(|| with_neighbours(text, pieces, place))
}

/// True if a text has words that are neither units nor functions.
fn is_prose(text: &str) -> bool {
    let is_known = |word: &str| {
        signs::is_unit(word)
            || signs::is_in(signs::FUNCTIONS, word)
            || expression::function(word).is_some()
            || matches!(word, "and" | "or")
    };
    words(text).any(|word| !is_known(&word))
}

/// True if a sign of a calculation stands between a formula and the text next to it.
fn calculates(text: &str, behind: usize, piece: &Piece<'_>) -> bool {
    static AFTER: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^\s*(?:[-−–+*/·×^]|times|plus|minus)\s*[$\d\\(]").expect("the pattern is a constant")
    });
    let (before, inside) = (&text[behind..piece.start], &text[piece.start..piece.end]);
    let is_bullet = before.rsplit_once('\n').is_some_and(|(_, line)| line.trim_start() == "- ");
    let ends = !is_bullet && before.trim_end().ends_with(['-', '−', '–', '+', '/', '·', '×', '^']);
    // `xy + 2`, but `about -2`
    let begins = inside.starts_with(['+', '*', '/', '^', '·', '×']) || inside.starts_with("- ");
    let continues = begins && before.trim_end().ends_with(char::is_alphanumeric);
    ends || continues || AFTER.is_match(&text[piece.end..])
}

/// True if the text behind a formula says that its value follows, or it does so itself: `$n$ is 34`, `2 + 3 = 5`.
fn is_name(text: &str, piece: &Piece<'_>) -> bool {
    let behind = text[piece.end..].trim_start();
    behind.starts_with("is ") || behind.starts_with("= ") || piece.inside.ends_with('=')
}

/// The letter of a choice that its text follows: `\textbf{(D)} 12`, `D) 12`, `D. 12`, `D: 12`.
pub(super) fn choice(text: &str) -> Option<String> {
    let bare = text.trim_start_matches(['$', ' ']);
    let bare = bare.strip_prefix("\\textbf").or(bare.strip_prefix("\\text")).unwrap_or(bare).trim_start_matches('{');
    let (letter, behind) = match bare.strip_prefix('(') {
        Some(bare) => bare.split_once(')')?,
        None => bare.split_once([')', '.', ':'])?,
    };
    let is_choice = letter.len() == 1 && letter.contains(|c: char| c.is_ascii_uppercase());
    let names_one = behind.starts_with([' ', '\\', '~', '}']) && !behind.trim_matches(['}', ' ', '$']).is_empty();
    (is_choice && names_one && !is_taken_back(behind)).then(|| letter.to_lowercase())
}

/// True if the text behind a choice names another one or denies it: `(A) or (B)`, `(A) is wrong`.
fn is_taken_back(behind: &str) -> bool {
    static CHOICE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?:^|[^\p{L}\p{N}])(?:\([A-Z]\)|[A-Z][).:](?:$|[^\p{L}\p{N}]))")
            .expect("the pattern is a constant")
    });
    let words: Vec<String> = words(behind).take(2).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["and" | "or" | "nor" | "isn", ..] | ["is", "not" | "wrong" | "incorrect" | "false", ..] => true,
        _ => CHOICE.is_match(behind),
    }
}
