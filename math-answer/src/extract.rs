//! Search for the answer in a completion.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use crate::boxes::{self, lists};
use crate::phrases::{self, Anchor, says, words};
use crate::{environments, expression, signs};

/// Positions at which an answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Only boxed text, a formula that the text calls its answer, a line `Answer: 5`, and a last
    /// line `#### 5`.
    Anchored,
    /// Also the last formula or number, and a text that is nothing but an answer.
    Any,
}

/// Largest number of kinds of tags that are taken out of a text.
const MOST_TAGS: usize = 8;

/// Longest text between such a phrase and its formula, bytes.
const MOST_BEFORE: usize = 50;

/// Words before a formula that change its value, or say that the answer is another one.
const APART: &str = "no not nor negative minus half twice times than because since if when where";

/// Signs around an answer that belong to its sentence or its mark-up.
const AROUND: &[char] = &[
    '<', '>', '/', '=', '|', ',', ':', ';', ' ', '“', '”', '‘', '’', '«', '»', '„', '…', '。',
    '，', '、', '：', '；', '！', '？', '「', '」', '《', '》', '≈', '→', '⇒',
];

/// A text that may be a completion's answer.
pub(crate) struct Candidate {
    /// The words that are compared as text.
    pub text: String,
    /// The part of it that has its meaning.
    pub formula: String,
}

impl Candidate {
    fn new(text: &str, formula: &str) -> Self {
        Self {
            text: text.to_owned(),
            formula: formula.to_owned(),
        }
    }

    fn whole(text: &str) -> Self {
        Self::new(text, text)
    }

    /// A text without delimiters, in which `42!` may be no factorial.
    fn bare(text: &str) -> Self {
        let is_number =
            |text: &&str| !text.contains(|c: char| !(c.is_ascii_digit() || ",.-$\\".contains(c)));
        Self::new(
            text,
            text.strip_suffix('!').filter(is_number).unwrap_or(text),
        )
    }
}

/// Candidates for a completion's answer, best first. A text that takes its answer back has only
/// what it says behind that.
pub(crate) fn candidates(text: &str, places: Places) -> Vec<Candidate> {
    let mut text = text;
    let mut follows_answer = false;
    if let Some(last) = boxes::last(text) {
        let behind = &text[last.end..];
        if phrases::taken_back(behind).is_none() {
            let stands =
                !last.inside.trim().is_empty() && !phrases::is_negated(&text[..last.start]);
            return if stands {
                vec![Candidate::whole(&last.inside)]
            } else {
                Vec::new()
            };
        }
        follows_answer = true;
        text = behind.trim_start_matches(['$', ' ', '}']);
        text = text
            .strip_prefix("\\)")
            .or(text.strip_prefix("\\]"))
            .unwrap_or(text);
    }
    let text = &*without_tags(
        tagged(text)
            .filter(|_| places == Places::Any)
            .unwrap_or(text),
    );
    let text = if places == Places::Any {
        phrases::without_courtesy(text)
    } else {
        text
    };
    let fenced = fenced(text);
    let pieces = if places == Places::Any {
        with_runs(text, &fenced)
    } else {
        Vec::new()
    };
    Page {
        text,
        follows_answer,
        places,
        fenced,
        pieces,
    }
    .candidates()
}

/// A text without a box, and the formulas in it.
struct Page<'t> {
    text: &'t str,
    /// True if the text takes back an answer before it.
    follows_answer: bool,
    places: Places,
    fenced: Vec<Piece<'t>>,
    /// Those between delimiters and those without, if both count.
    pieces: Vec<Piece<'t>>,
}

impl Page<'_> {
    fn candidates(&self) -> Vec<Candidate> {
        let mut found = self.last_line();
        let anchor = self.anchor();
        if self.places == Places::Any
            && let Some(chosen) = self.chosen(anchor.as_ref())
        {
            found.push(chosen);
        }
        // Formulas count behind what takes an answer back.
        let mut from = 0;
        if let Some(anchor) = &anchor {
            let end = self.end_of_value(anchor);
            if let Some(behind) = phrases::taken_back(&self.text[end..]) {
                from = end + behind;
            } else if self.is_changed(anchor) {
                return found;
            } else {
                found.extend(self.named(anchor));
            }
        }
        if self.places == Places::Any {
            found.extend(self.last(from));
        }
        found.retain(|candidate| !candidate.text.trim().is_empty());
        found
    }

    /// The last line behind `####` as in GSM8K, which is no heading.
    fn last_line(&self) -> Vec<Candidate> {
        let line = self
            .text
            .trim_end()
            .rsplit_once("####")
            .map(|(_, last)| last)
            .filter(|last| !last.contains('\n'));
        let stands = |line: &&str| phrases::taken_back(line).is_none() && !is_changed_line(line);
        line.filter(stands)
            .map(|line| Candidate::whole(&without_remarks(line.trim_matches(['*', ' ']))))
            .into_iter()
            .collect()
    }

    /// The last phrase that names an answer. A later sentence such as `This answer is correct`
    /// names none.
    fn anchor(&self) -> Option<Anchor<'_>> {
        let anchors = phrases::anchors(self.text, self.follows_answer);
        let names = |anchor: &&Anchor<'_>| {
            let corrects = self.places == Places::Any && anchor.corrects;
            self.near(anchor).is_some()
                || (corrects || begins_line(self.text, anchor.behind)) && !anchor.rest.is_empty()
        };
        anchors
            .iter()
            .find(names)
            .or(anchors.iter().find(|anchor| !anchor.corrects))
            .copied()
    }

    /// The formula right behind a phrase.
    fn near(&self, anchor: &Anchor<'_>) -> Option<String> {
        named(
            self.text,
            (anchor.behind, anchor.rest),
            &self.fenced,
            MOST_BEFORE,
        )
    }

    /// Formulas and numbers in the rest of a phrase's line.
    fn line(&self, anchor: &Anchor<'_>) -> Vec<Piece<'_>> {
        let end = anchor.start + anchor.rest.len();
        self.pieces
            .iter()
            .filter(|piece| (anchor.behind..end).contains(&piece.start))
            .copied()
            .collect()
    }

    /// End of the first value behind a phrase.
    fn end_of_value(&self, anchor: &Anchor<'_>) -> usize {
        let mut values = Vec::new();
        runs(
            self.text,
            (anchor.start, anchor.start + anchor.rest.len()),
            &mut values,
        );
        let fenced = self
            .fenced
            .iter()
            .find(|piece| piece.start >= anchor.behind);
        let first = values
            .first()
            .into_iter()
            .chain(fenced)
            .min_by_key(|piece| piece.start);
        first
            .filter(|first| first.start <= anchor.start + MOST_BEFORE)
            .map_or(anchor.start, |first| first.end.max(anchor.start))
    }

    /// True if the words behind the value that a phrase names make another value of it.
    fn is_changed(&self, anchor: &Anchor<'_>) -> bool {
        let pieces = if self.places == Places::Any {
            &self.pieces
        } else {
            &self.fenced
        };
        let first = pieces
            .iter()
            .find(|piece| piece.start >= anchor.behind && !is_name(self.text, piece));
        first.is_some_and(|first| phrases::is_changed(&self.text[first.end..]))
            || is_changed_line(anchor.rest)
    }

    /// What a phrase names.
    fn named(&self, anchor: &Anchor<'_>) -> Vec<Candidate> {
        let mut found = Vec::new();
        let rest = anchor.rest;
        if let Some(formula) = self.near(anchor) {
            found.push(Candidate::new(
                if choice(rest).is_some() {
                    rest
                } else {
                    &formula
                },
                &formula,
            ));
        }
        if self.places == Places::Any || begins_line(self.text, anchor.behind) {
            let rest = without_option(rest);
            found.extend([rest, rest.trim_matches(AROUND)].map(Candidate::bare));
        }
        if let Some(formula) = named(
            self.text,
            (anchor.behind, rest),
            &self.line(anchor),
            usize::MAX,
        ) {
            // Words beside a formula would be its factors.
            let place = if is_prose(rest) {
                found.len() - 2
            } else {
                found.len()
            };
            found.insert(
                place,
                Candidate::new(
                    if formula.contains("\\text") {
                        &formula
                    } else {
                        rest
                    },
                    &formula,
                ),
            );
        }
        found
    }

    /// The option that the text calls right behind `anchor` and behind every formula of another
    /// sentence.
    fn chosen(&self, anchor: Option<&Anchor<'_>>) -> Option<Candidate> {
        let chosen = phrases::chosen(self.text)?;
        let behind = &self.text[chosen.end..];
        let sentence = behind
            .find(['\n'])
            .or(behind.find(". "))
            .unwrap_or(behind.len());
        let is_last = self
            .pieces
            .last()
            .is_none_or(|last| last.start < chosen.end + sentence)
            && anchor.is_none_or(|anchor| anchor.behind <= chosen.end);
        let letter = chosen.letter.to_string();
        // `B: 12`
        let named = behind
            .trim_start_matches([')', '*', ':', '.', ' '])
            .lines()
            .next()
            .unwrap_or_default();
        let named = self.pieces.iter().find(|piece| {
            piece.start >= chosen.end && named.starts_with(&self.text[piece.start..piece.end])
        });
        is_last.then(|| match named {
            Some(piece) => Candidate::new(&format!("({letter}) {}", piece.inside), piece.inside),
            None => Candidate::whole(&letter),
        })
    }

    /// The text if it is nothing but an answer, the words that there is no solution, or the last
    /// formula at `from` or behind it.
    fn last(&self, from: usize) -> Vec<Candidate> {
        let mut found = Vec::new();
        if from == 0 && self.fenced.is_empty() && is_answer(self.text.trim()) {
            found.push(Candidate::bare(self.text.trim()));
        }
        if let Some((end, phrase)) = phrases::none(self.text)
            && end >= from
            && self
                .pieces
                .last()
                .is_none_or(|last| last.start < end || phrases::explains(&self.text[end..]))
        {
            found.push(Candidate::whole(&format!(
                "\\text{{{}}}",
                phrase.trim_end_matches('s')
            )));
            return found;
        }
        let Some(last) = self.stands(from) else {
            return found;
        };
        let inside = Some(last.inside).filter(|_| !last.fenced);
        found.extend(
            inside
                .into_iter()
                .flat_map(|last| [last, last.trim_matches(AROUND)])
                .map(Candidate::whole),
        );
        let fenced = self
            .fenced
            .iter()
            .rposition(|piece| (from..=last.start).contains(&piece.start));
        found.extend(fenced.map(|place| {
            Candidate::whole(&scaled(
                self.text,
                with_neighbours(self.text, &self.fenced, place),
                &self.fenced[place],
            ))
        }));
        found
    }

    /// The last formula that no words around it deny, compare with another value, or take back.
    fn stands(&self, from: usize) -> Option<&Piece<'_>> {
        let mut end = self.text.len();
        for piece in self
            .pieces
            .iter()
            .rev()
            .take_while(|piece| piece.start >= from)
        {
            let (before, behind) = (&self.text[..piece.start], &self.text[piece.end..]);
            // `42, not 7`
            if phrases::is_negated(before) {
                end = piece.start;
                continue;
            }
            let between = self.text.get(piece.end..end).unwrap_or_default();
            let is_apart =
                end < self.text.len() && (between.contains('\n') || between.contains(". "));
            let is_compared = !piece.inside.contains('=') && phrases::is_compared(before)
                || phrases::is_supposed(before);
            let taken_back = phrases::taken_back(behind).is_some();
            return (!is_apart && !is_compared && !taken_back && !phrases::is_changed(behind))
                .then_some(piece);
        }
        None
    }
}

/// A formula with the number word behind it: `$5$ million`.
fn scaled(text: &str, formula: String, piece: &Piece<'_>) -> String {
    match phrases::scale(&text[piece.end..]) {
        Some((word, _)) => format!("{formula}\\text{{ {word}}}"),
        None => formula,
    }
}

/// True if the words behind the first number of a line make another value of it.
fn is_changed_line(line: &str) -> bool {
    let mut numbers = Vec::new();
    runs(line, (0, line.len()), &mut numbers);
    numbers
        .first()
        .is_some_and(|first| phrases::is_changed(&line[first.end..]))
}

/// A line without words in brackets at its end, and with a space between a number and its unit:
/// `42 (forty-two)`, `42pens`.
fn without_remarks(line: &str) -> Cow<'_, str> {
    static REMARK: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^(.*\S)\s*\(([^()\d\\$]*)\)\.?$").expect("the pattern is a constant")
    });
    static GLUED: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^([^\p{L}\\]*\d)(\p{L}{4,})").expect("the pattern is a constant")
    });
    let remark = REMARK.captures(line).filter(|found| {
        words(&found[2]).next().is_some()
            && !says(
                &found[2],
                "no not wrong incorrect or hundred thousand million billion hundreds thousands millions billions dozen",
            )
    });
    let line = remark
        .and_then(|found| found.get(1))
        .map_or(line, |before| before.as_str());
    GLUED.replace(line, "$1 $2")
}

/// The letter of `option B` alone.
fn without_option(rest: &str) -> &str {
    static OPTION: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^(?i:the )?(?i:option|choice|letter)\s+[*(]*([A-HJ])[*)]*[.!]?$")
            .expect("the pattern is a constant")
    });
    OPTION
        .captures(rest)
        .and_then(|found| found.get(1))
        .map_or(rest, |letter| letter.as_str())
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
        let Some(close) = CLOSE.captures(&text) else {
            break;
        };
        let (close, open) = (close[0].to_owned(), format!("<{}>", &close[1]));
        text = text.replace(&close, "\n").replace(&open, "\n").into();
    }
    text
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
        let fence =
            (0..FENCES.len()).find(|&fence| open[fence] && rest.starts_with(FENCES[fence].0));
        let fence = fence.filter(|&fence| FENCES[fence].0 != "$" || !is_price(&rest[1..]));
        let Some(fence) = fence else {
            // An escaped sign is not a delimiter.
            at += 1 + rest[1..]
                .chars()
                .next()
                .filter(|_| rest.starts_with('\\'))
                .map_or(0, char::len_utf8);
            continue;
        };
        let (begin, end) = FENCES[fence];
        let inside = &rest[begin.len()..];
        match end_of(inside, end) {
            Some(length) => {
                let (start, inside) = (at, &inside[..length]);
                at += begin.len() + length + end.len();
                if !inside.trim().is_empty() {
                    found.push(Piece {
                        start,
                        end: at,
                        inside,
                        fenced: true,
                    });
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

/// The length of the environment of lines that a text begins with: `None` if it begins with none,
/// `Some(None)` if its end is missing.
fn lines(text: &str) -> Option<Option<usize>> {
    let (name, rest) = text.strip_prefix("\\begin{")?.split_once('}')?;
    if !environments::is_lines(name.trim_end_matches('*')) {
        return None;
    }
    let end = format!("\\end{{{name}}}");
    Some(
        rest.find(&end)
            .map(|at| text.len() - rest.len() + at + end.len()),
    )
}

/// First position of `end` without a backslash before it.
fn end_of(inside: &str, end: &str) -> Option<usize> {
    let mut ends = inside.match_indices(end).map(|(at, _)| at);
    // A dollar sign before a digit is a currency's.
    let is_currency =
        |at: usize| end == "$" && inside[at + 1..].starts_with(|c: char| c.is_ascii_digit());
    ends.find(|&at| !end.starts_with('$') || !inside[..at].ends_with('\\') && !is_currency(at))
}

/// True if the text behind a dollar sign is a sum of money, and words up to the next dollar sign:
/// `$30. So $x$`, `$30. So $40$`.
fn is_price(behind: &str) -> bool {
    let next = behind
        .find('$')
        .filter(|_| behind.starts_with(|c: char| c.is_ascii_digit()));
    next.is_some_and(|next| {
        let (inside, after) = (&behind[..next], &behind[next + 1..]);
        let apart = inside.ends_with(char::is_whitespace)
            || after.starts_with(|c: char| c.is_ascii_digit());
        apart && !inside.contains('\\') && words(inside).next().is_some()
    })
}

/// The formula at `place`, with those next to it if only `,`, `and` or `or` is between them.
fn with_neighbours(text: &str, fenced: &[Piece<'_>], place: usize) -> String {
    let apart = |at: &usize| !lists(&text[fenced[*at].end..fenced[at + 1].start]);
    let first = (0..place).rev().find(apart).map_or(0, |at| at + 1);
    let last = (place..fenced.len() - 1)
        .find(apart)
        .unwrap_or(fenced.len() - 1);
    fenced[first..=last]
        .iter()
        .map(|piece| piece.inside)
        .collect::<Vec<_>>()
        .join(", ")
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

/// Mathematics without delimiters on one line: numbers, single letters, commands and signs, but no
/// part of a word.
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
        let is_glued = |start: usize, end: usize| {
            text[..start].ends_with(joins) || text[end..].starts_with(joins)
        };
        if is_glued(start, end) {
            end = start + text[start..end].trim_end_matches(AROUND).len();
            start = end - text[start..end].trim_start_matches(AROUND).len();
        }
        let glued = is_glued(start, end);
        let mut inside = text[start..end].trim_matches(['*', '_', '!', ' ', '\t']);
        // An article, a bullet or the `s` of `it's` before a number is no factor or sign.
        while let Some((first, rest)) = inside.split_once(' ')
            && (matches!(first, "a" | "A" | "I" | "-" | "*" | "+" | ">" | "=")
                || text[..start].ends_with('\''))
        {
            inside = rest;
        }
        let inside = inside.strip_suffix(" a").unwrap_or(inside);
        if !glued && inside.contains(|c: char| c.is_ascii_digit() || c == '\\') {
            found.push(Piece {
                start,
                end,
                inside,
                fenced: false,
            });
        }
    }
}

/// True if a text may be nothing but an answer: formulas with commas, or one or two words without a
/// number.
fn is_answer(line: &str) -> bool {
    let between = RUN.replace_all(line, " ");
    let formula = between
        .split([' ', ',', ';', '.'])
        .all(|word| matches!(word, "" | "and" | "or"));
    let words = match line.split_whitespace().collect::<Vec<_>>()[..] {
        [] | [_] => true,
        // `So \pi.`
        [first, second] => !(second.contains('\\') && first.chars().all(char::is_alphabetic)),
        _ => false,
    };
    formula || words && !line.contains(|c: char| c.is_ascii_digit() || c == '\n')
}

/// True if the phrase before an answer that ends at `behind` is `Answer:` at the beginning of a
/// line.
fn begins_line(text: &str, behind: usize) -> bool {
    let line = text[..behind]
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let line = line.trim_start_matches(['*', '#', '>', '_', ' ', '\t']);
    matches!(
        line.replace('*', "").as_str(),
        "answer:" | "answer :" | "final answer:"
    )
}

/// The formula that follows the phrase before an answer, behind at most `most` bytes; the rest of
/// the line if that calculates with it: `-$5$`.
fn named(
    text: &str,
    (behind, rest): (usize, &str),
    pieces: &[Piece<'_>],
    most: usize,
) -> Option<String> {
    let place = pieces
        .iter()
        .position(|piece| piece.start >= behind && !is_name(text, piece))?;
    let piece = &pieces[place];
    let before = &text[behind..piece.start];
    let is_apart =
        says(before, APART) || phrases::is_negated(before) || phrases::is_compared(before);
    if before.len() > most || before.trim().contains('\n') || is_apart {
        return None;
    }
    if calculates(text, behind, piece) {
        return Some(rest.to_owned());
    }
    // The answer was a choice or a number before it: `C, as $x = 2$`, `12 for $n = 4$`.
    static CHOICE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?-u:\b)[A-HJ-Z](?-u:\b)").expect("the pattern is a constant")
    });
    let mut numbers = Vec::new();
    runs(text, (behind, piece.start), &mut numbers);
    // That of `(C) $12$` is both.
    let leads =
        before.trim_end().ends_with('=') || !CHOICE.is_match(before) || choice(rest).is_some();
    (leads && numbers.iter().all(|number| is_name(text, number)))
        .then(|| scaled(text, with_neighbours(text, pieces, place), piece))
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
        Regex::new(r"^\s*(?:[-−–+*/·×^]|times|plus|minus)\s*[$\d\\(]")
            .expect("the pattern is a constant")
    });
    let (before, inside) = (&text[behind..piece.start], &text[piece.start..piece.end]);
    let is_bullet = before
        .rsplit_once('\n')
        .is_some_and(|(_, line)| line.trim_start() == "- ");
    let ends = !is_bullet
        && before
            .trim_end()
            .ends_with(['-', '−', '–', '+', '/', '·', '×', '^']);
    // `xy + 2`, but `about -2`
    let begins = inside.starts_with(['+', '*', '/', '^', '·', '×']) || inside.starts_with("- ");
    let continues = begins && before.trim_end().ends_with(char::is_alphanumeric);
    ends || continues || AFTER.is_match(&text[piece.end..])
}

/// True if the text behind a formula says that its value follows, or it does so itself:
/// `$n$ is 34`, `2 + 3 = 5`.
fn is_name(text: &str, piece: &Piece<'_>) -> bool {
    let behind = text[piece.end..].trim_start();
    behind.starts_with("is ") || behind.starts_with("= ") || piece.inside.ends_with('=')
}

/// The letter of a choice that its text follows: `\textbf{(D)} 12`, `D) 12`, `D. 12`, `D: 12`.
pub(crate) fn choice(text: &str) -> Option<String> {
    let bare = text.trim_start_matches(['$', ' ']);
    let bare = bare
        .strip_prefix("\\textbf")
        .or(bare.strip_prefix("\\text"))
        .unwrap_or(bare)
        .trim_start_matches('{');
    let (letter, behind) = match bare.strip_prefix('(') {
        Some(bare) => bare.split_once(')')?,
        None => bare.split_once([')', '.', ':'])?,
    };
    let is_choice = letter.len() == 1 && letter.contains(|c: char| c.is_ascii_uppercase());
    let names_one = behind.starts_with([' ', '\\', '~', '}'])
        && !behind.trim_matches(['}', ' ', '$']).is_empty();
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
        ["and" | "or" | "nor" | "isn", ..]
        | ["is", "not" | "wrong" | "incorrect" | "false", ..] => true,
        _ => CHOICE.is_match(behind),
    }
}
