//! Search for the answer in a completion.

use std::borrow::Cow;
use std::ops::Range;

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

/// Longest text between the phrase that names an answer and its formula, bytes.
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
    /// The words, which are compared as text.
    pub text: String,
    /// The part of the text that has the meaning.
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
        let number = text.strip_suffix('!').filter(|number| {
            number
                .chars()
                .all(|c| c.is_ascii_digit() || ",.-$\\".contains(c))
        });
        Self::new(text, number.unwrap_or(text))
    }
}

/// Candidates for a completion's answer, best first. If the text takes an answer back, only what
/// follows counts.
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
    /// Formulas with and without delimiters, if both count.
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
        // Where a text takes an answer back, formulas count only behind that.
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

    /// The last line if `####` is before it, as in GSM8K, and not above it as a heading.
    fn last_line(&self) -> Vec<Candidate> {
        let line = self
            .text
            .trim_end()
            .rsplit_once("####")
            .map(|(_, last)| last)
            .filter(|last| !last.contains('\n') && phrases::taken_back(last).is_none())
            .filter(|last| !is_changed_line(last));
        line.map(|line| Candidate::whole(&without_remarks(line.trim_matches(['*', ' ']))))
            .into_iter()
            .collect()
    }

    /// The last phrase that names an answer. A later sentence such as `This answer is correct`
    /// names none.
    fn anchor(&self) -> Option<Anchor<'_>> {
        let anchors = phrases::anchors(self.text, self.follows_answer);
        anchors
            .iter()
            .find(|anchor| self.names(anchor))
            .or(anchors.iter().find(|anchor| !anchor.corrects))
            .copied()
    }

    /// True if an answer follows a phrase.
    fn names(&self, anchor: &Anchor<'_>) -> bool {
        let corrects = self.places == Places::Any && anchor.corrects;
        self.near(anchor).is_some()
            || (corrects || begins_line(self.text, anchor.behind)) && !anchor.rest.is_empty()
    }

    /// The formula right behind a phrase.
    fn near(&self, anchor: &Anchor<'_>) -> Option<String> {
        named(self.text, anchor, &self.fenced, MOST_BEFORE)
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
        let values = runs(self.text, anchor.start..anchor.start + anchor.rest.len());
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
            let is_choice = choice(rest).is_some();
            let text = if is_choice { rest } else { &formula };
            found.push(Candidate::new(text, &formula));
        }
        if self.places == Places::Any || begins_line(self.text, anchor.behind) {
            let rest = without_option(rest);
            found.extend([rest, rest.trim_matches(AROUND)].map(Candidate::bare));
        }
        if let Some(formula) = named(self.text, anchor, &self.line(anchor), usize::MAX) {
            // Words beside a formula would be its factors.
            let place = if is_prose(rest) {
                found.len() - 2
            } else {
                found.len()
            };
            let has_words = formula.contains("\\text");
            let text = if has_words { &formula } else { rest };
            found.insert(place, Candidate::new(text, &formula));
        }
        found
    }

    /// The option that the text calls right, if neither a phrase nor a formula of a later sentence
    /// names an answer.
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

    /// The text if it is nothing but an answer, the phrase by which it says that there is no
    /// solution, or the last formula at `from` or behind it.
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
            let before = &self.text[..piece.start];
            let behind = &self.text[piece.end..];
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
    runs(line, 0..line.len())
        .first()
        .is_some_and(|first| phrases::is_changed(&line[first.end..]))
}

/// Words that change an answer although they stand in brackets.
const MATTERS: &str = "\
    no not wrong incorrect or hundred thousand million billion hundreds thousands millions \
    billions dozen";

/// A line without words in brackets at its end, and with a space between a number and its unit:
/// `42 (forty-two)`, `42pens`.
fn without_remarks(line: &str) -> Cow<'_, str> {
    let remark = pattern!(r"^(.*\S)\s*\(([^()\d\\$]*)\)\.?$")
        .captures(line)
        .filter(|found| words(&found[2]).next().is_some() && !says(&found[2], MATTERS));
    let line = remark
        .and_then(|found| found.get(1))
        .map_or(line, |before| before.as_str());
    pattern!(r"^([^\p{L}\\]*\d)(\p{L}{4,})").replace(line, "$1 $2")
}

/// The letter of `option B` alone.
fn without_option(rest: &str) -> &str {
    pattern!(r"^(?i:the )?(?i:option|choice|letter)\s+[*(]*([A-HJ])[*)]*[.!]?$")
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
    let mut text = Cow::Borrowed(text);
    for _ in 0..MOST_TAGS {
        let Some(found) = pattern!(r"</([a-zA-Z]{1,16})>").captures(&text) else {
            break;
        };
        let close = found[0].to_owned();
        let open = format!("<{}>", &found[1]);
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

/// Delimiters of a formula. `$$` is tried before `$`.
const FENCES: [(&str, &str); 4] = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")];

/// Formulas between `$`, `$$`, `\(`, `\[`, and lines in `\begin{align}`, in order.
fn fenced(text: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    // If a delimiter is unclosed once, it is unclosed everywhere after that.
    let mut closes = FENCES.map(|_| true);
    let mut lines_end = true;
    while let Some(next) = text[at..].find(['$', '\\']) {
        at += next;
        let rest = &text[at..];
        if let Some(lines) = lines(rest).filter(|_| lines_end) {
            lines_end = lines.is_some();
            let start = at;
            at += lines.unwrap_or("\\begin".len());
            if lines.is_some() {
                found.push(Piece::fenced(text, start..at, start..at));
            }
            continue;
        }
        let Some(fence) = fence(rest, &closes) else {
            // An escaped sign is not a delimiter.
            let escaped = rest[1..].chars().next().filter(|_| rest.starts_with('\\'));
            at += 1 + escaped.map_or(0, char::len_utf8);
            continue;
        };
        let (open, close) = FENCES[fence];
        let inside = at + open.len();
        let Some(length) = end_of(&text[inside..], close) else {
            closes[fence] = false;
            at = inside;
            continue;
        };
        let end = inside + length + close.len();
        if !text[inside..inside + length].trim().is_empty() {
            found.push(Piece::fenced(text, at..end, inside..inside + length));
        }
        at = end;
    }
    found
}

/// The delimiter with which a text begins, by its place in [`FENCES`]. A dollar sign may be that of
/// a price.
fn fence(text: &str, closes: &[bool; 4]) -> Option<usize> {
    let fence =
        (0..FENCES.len()).find(|&fence| closes[fence] && text.starts_with(FENCES[fence].0))?;
    let is_price = FENCES[fence].0 == "$" && is_price(&text[1..]);
    (!is_price).then_some(fence)
}

impl<'t> Piece<'t> {
    fn fenced(text: &'t str, whole: Range<usize>, inside: Range<usize>) -> Self {
        Self {
            start: whole.start,
            end: whole.end,
            inside: &text[inside],
            fenced: true,
        }
    }
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
    if !end.starts_with('$') {
        return ends.next();
    }
    ends.find(|&at| {
        let is_escaped = inside[..at].ends_with('\\');
        let is_currency = end == "$" && inside[at + 1..].starts_with(|c: char| c.is_ascii_digit());
        !is_escaped && !is_currency
    })
}

/// True if the text behind a dollar sign is a sum of money, and words up to the next dollar sign:
/// `$30. So $x$`, `$30. So $40$`.
fn is_price(behind: &str) -> bool {
    let next = behind
        .find('$')
        .filter(|_| behind.starts_with(|c: char| c.is_ascii_digit()));
    next.is_some_and(|next| {
        let inside = &behind[..next];
        let after = &behind[next + 1..];
        let apart = inside.ends_with(char::is_whitespace)
            || after.starts_with(|c: char| c.is_ascii_digit());
        apart && !inside.contains('\\') && words(inside).next().is_some()
    })
}

/// The formula at `place`, with those next to it if only `,`, `and` or `or` is between them.
fn with_neighbours(text: &str, fenced: &[Piece<'_>], place: usize) -> String {
    let mut first = place;
    while first > 0 && is_listed(text, &fenced[first - 1], &fenced[first]) {
        first -= 1;
    }
    let mut last = place;
    while last + 1 < fenced.len() && is_listed(text, &fenced[last], &fenced[last + 1]) {
        last += 1;
    }
    let insides: Vec<&str> = fenced[first..=last]
        .iter()
        .map(|piece| piece.inside)
        .collect();
    insides.join(", ")
}

/// True if two formulas are neighbours in a list.
fn is_listed(text: &str, one: &Piece<'_>, next: &Piece<'_>) -> bool {
    lists(&text[one.end..next.start])
}

/// The formulas, and the mathematics without delimiters between them, in order.
fn with_runs<'t>(text: &'t str, fenced: &[Piece<'t>]) -> Vec<Piece<'t>> {
    let mut found = Vec::new();
    let ends = fenced.iter().map(|piece| piece.start).chain([text.len()]);
    let mut at = 0;
    for (place, end) in ends.enumerate() {
        found.extend(runs(text, at..end));
        if let Some(piece) = fenced.get(place) {
            found.push(*piece);
            at = piece.end;
        }
    }
    found
}

/// Mathematics without delimiters on one line: numbers, single letters, commands and signs, but no
/// part of a word.
fn run() -> &'static regex::Regex {
    pattern!(
        "(?:(?:",
        r"\\(?:text\w*|mbox|mathrm|operatorname|begin|end)\s?\{[^{}\n]*\}|",
        r"\\[a-zA-Z]+\d*|",
        r"\\\{[^{}\n]*\\\}|",
        r"\\[^a-zA-Z\s{}]|",
        // Members of a point or an interval.
        r"[(\[](?:[^()\[\]a-zA-Z\\\n]|\\[a-zA-Z]+)*[)\]]|",
        // `1,234.5`, `3:2`, `3x`, `12cm`
        r"(?-u:\b)\d+(?:[,:]\d+)*(?:\.\d+)?[a-zA-Z]{0,3}(?-u:\b)|",
        r"\.\d+|",
        r"(?-u:\b)(?:sqrt|sin|cos|tan|log|ln|exp|pi|percent|pct|[a-zA-Z])(?:_\w+)?(?-u:\b)|",
        r"[-+*/^_=<>|%!$~&(){}\[\]]|",
        r"[^\x00-\x7f\p{L}\s]",
        r")[ \t]*)+",
    )
}

/// Mathematics without delimiters in a part of a text, as in `So x = 2\sqrt{3}.`
fn runs(text: &str, part: Range<usize>) -> Vec<Piece<'_>> {
    let found = run().find_iter(&text[part.clone()]);
    found
        .filter_map(|found| {
            // `42 (approximately)`
            let inside = found.as_str().trim_end().trim_end_matches(" (").trim_end();
            let start = part.start + found.start();
            formula_in(text, start..start + inside.len())
        })
        .collect()
}

/// The formula in a run of mathematics, without the signs of the sentence around it. `None` if it
/// has no number and no command, or touches a word.
fn formula_in(text: &str, run: Range<usize>) -> Option<Piece<'_>> {
    let Range { mut start, mut end } = run;
    // Scripts without spaces put a number right behind a word.
    if touches_word(text, start, end) {
        end = start + text[start..end].trim_end_matches(AROUND).len();
        start = end - text[start..end].trim_start_matches(AROUND).len();
    }
    if touches_word(text, start, end) {
        return None;
    }
    let mut inside = text[start..end].trim_matches(['*', '_', '!', ' ', '\t']);
    // An article, a bullet or the `s` of `it's` before a number is not a factor or a sign.
    while let Some((first, rest)) = inside.split_once(' ')
        && (matches!(first, "a" | "A" | "I" | "-" | "*" | "+" | ">" | "=")
            || text[..start].ends_with('\''))
    {
        inside = rest;
    }
    let inside = inside.strip_suffix(" a").unwrap_or(inside);
    inside
        .contains(|c: char| c.is_ascii_digit() || c == '\\')
        .then_some(Piece {
            start,
            end,
            inside,
            fenced: false,
        })
}

/// True if a letter or a digit is right before or right behind a part of a text.
fn touches_word(text: &str, start: usize, end: usize) -> bool {
    let before = text[..start].chars().next_back();
    let behind = text[end..].chars().next();
    before
        .into_iter()
        .chain(behind)
        .any(|c| c.is_alphanumeric() && c < '\u{2e80}')
}

/// True if a text may be nothing but an answer: formulas with commas, or one or two words without a
/// number.
fn is_answer(line: &str) -> bool {
    let between = run().replace_all(line, " ");
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
fn named(text: &str, anchor: &Anchor<'_>, pieces: &[Piece<'_>], most: usize) -> Option<String> {
    let place = pieces
        .iter()
        .position(|piece| piece.start >= anchor.behind && !is_name(text, piece))?;
    let piece = &pieces[place];
    let before = &text[anchor.behind..piece.start];
    let is_apart =
        says(before, APART) || phrases::is_negated(before) || phrases::is_compared(before);
    if before.len() > most || before.trim().contains('\n') || is_apart {
        return None;
    }
    if calculates(text, anchor.behind, piece) {
        return Some(anchor.rest.to_owned());
    }
    // The answer was a choice or a number before it: `C, as $x = 2$`, `12 for $n = 4$`.
    let has_choice = pattern!(r"(?-u:\b)[A-HJ-Z](?-u:\b)").is_match(before);
    // That of `(C) $12$` is both.
    let leads = before.trim_end().ends_with('=') || !has_choice || choice(anchor.rest).is_some();
    let numbers = runs(text, anchor.behind..piece.start);
    (leads && numbers.iter().all(|number| is_name(text, number)))
        .then(|| scaled(text, with_neighbours(text, pieces, place), piece))
}

/// True if a text has words that are neither units nor functions.
fn is_prose(text: &str) -> bool {
    words(text).any(|word| {
        !(signs::is_unit(&word)
            || signs::is_in(signs::FUNCTIONS, &word)
            || expression::function(&word).is_some()
            || matches!(word.as_str(), "and" | "or"))
    })
}

/// True if a sign of a calculation stands between a formula and the text next to it.
fn calculates(text: &str, behind: usize, piece: &Piece<'_>) -> bool {
    let follows = pattern!(r"^\s*(?:[-−–+*/·×^]|times|plus|minus)\s*[$\d\\(]");
    let before = &text[behind..piece.start];
    let inside = &text[piece.start..piece.end];
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
    ends || continues || follows.is_match(&text[piece.end..])
}

/// True if a formula only names the value that follows it: `$n$ is 34`, `$n$ = 34`, `$n =$ 34`.
fn is_name(text: &str, piece: &Piece<'_>) -> bool {
    let behind = text[piece.end..].trim_start();
    behind.starts_with("is ") || behind.starts_with("= ") || piece.inside.ends_with('=')
}

/// The letter of a choice before its text: `\textbf{(D)} 12`, `D) 12`, `D. 12`, `D: 12`.
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
    let choice = pattern!(r"(?:^|[^\p{L}\p{N}])(?:\([A-Z]\)|[A-Z][).:](?:$|[^\p{L}\p{N}]))");
    let words: Vec<String> = words(behind).take(2).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["and" | "or" | "nor" | "isn", ..]
        | ["is", "not" | "wrong" | "incorrect" | "false", ..] => true,
        _ => choice.is_match(behind),
    }
}
