//! The number that a text gives as its answer, read exactly.

use std::ops::Range;

use regex::{Captures, Regex};

use crate::thoughts::said;
use crate::{Rational, boxes, phrases};

/// The number of a completion: the first one behind the last `separator`, or else the one in its
/// last `\boxed{}`, or else the one that its prose gives, without its [thoughts] and without
/// Markdown's signs for bold. An empty separator stands nowhere. `None` if the completion gives no
/// number.
///
/// ```
/// use math_answer::number;
///
/// let gold = number::gold("60 - 18 = 42 pens\n#### 42", "####");
/// assert_eq!(number::find("so there are 42 pens left", "####"), gold);
/// assert_eq!(number::find(r"\boxed{84/2}", "####"), gold);
/// assert_eq!(number::find("I do not know", "####"), None);
/// ```
///
/// [thoughts]: crate::without_thoughts
#[must_use]
pub fn find(completion: &str, separator: &str) -> Option<Rational> {
    gold(&said(completion), separator)
}

/// The number of a dataset's answer, which has no thoughts; read as [`find`] reads a completion.
#[must_use]
pub fn gold(text: &str, separator: &str) -> Option<Rational> {
    if let Some((_, behind)) = text
        .rsplit_once(separator)
        .filter(|_| !separator.is_empty())
    {
        return if phrases::taken_back(behind).is_some() {
            in_prose(behind, true)
        } else {
            behind_separator(behind)
        };
    }
    let Some(last) = boxes::last(text) else {
        return in_prose(text, false);
    };
    let behind = &text[last.end..];
    if phrases::taken_back(behind).is_some() {
        in_prose(behind, true)
    } else if phrases::is_negated(&text[..last.start]) {
        None
    } else {
        in_box(&last.inside)
    }
}

/// The first number behind a separator, on the first line that has one.
fn behind_separator(behind: &str) -> Option<Rational> {
    first(
        behind
            .trim_start_matches([':', '*', ' '])
            .lines()
            .find(|line| has_number(line))?,
    )
}

/// The only number in a box; behind an equals sign the last one counts.
fn in_box(inside: &str) -> Option<Rational> {
    let separator = pattern!(r",\s|;|\\quad|\\\\|(?-u:\b)(?:or|and)(?-u:\b)");
    let plain = plain(inside);
    if separator
        .split(&plain)
        .filter(|part| has_number(part))
        .count()
        > 1
    {
        return None;
    }
    let side = last_side(&plain);
    if is_calculation(side) {
        return calculated(side);
    }
    match numbers(side).pieces.as_slice() {
        [number] => number.value(),
        _ => None,
    }
}

/// The number that the last phrase before an answer names, if one does; otherwise the last number.
/// With `follows_answer` the text takes back an answer before it.
fn in_prose(text: &str, follows_answer: bool) -> Option<Rational> {
    let text = phrases::without_courtesy(text);
    let anchors = phrases::anchors(text, follows_answer);
    let named = anchors.iter().find_map(|anchor| {
        let sentence = sentence(anchor.rest);
        let numbers = numbers(sentence);
        let number = numbers.pieces.first()?;
        let behind = format!(
            "{}{}",
            numbers.behind(number),
            &text[anchor.start + sentence.len()..]
        );
        (!numbers.is_apart(number)).then_some((sentence, behind))
    });
    let Some((sentence, behind)) = named else {
        return last(text);
    };
    match phrases::taken_back(&behind) {
        Some(from) => last(&behind[from..]),
        None => first(sentence),
    }
}

/// The last number of a text that the words before it do not deny.
fn last(text: &str) -> Option<Rational> {
    let numbers = numbers(text);
    let number = numbers
        .pieces
        .iter()
        .rev()
        .find(|number| !phrases::is_negated(numbers.before(number)))?;
    let stands = !numbers.is_apart(number) && phrases::taken_back(numbers.behind(number)).is_none();
    number.value().filter(|_| stands)
}

/// The first number of a line, or the result of the calculation that begins with it: 42 in
/// `60-18=42 pens`.
fn first(line: &str) -> Option<Rational> {
    let plain = plain(sentence(line));
    let side = last_side(&plain);
    if is_calculation(side) {
        return calculated(side);
    }
    let numbers = numbers(side);
    let first = numbers.pieces.first()?;
    let is_part = numbers
        .pieces
        .get(1)
        .is_some_and(|next| is_sum(&numbers.text[first.end..next.start.max(first.end)]));
    let behind = numbers.behind(first);
    first.value().filter(|_| {
        !is_part && !phrases::is_changed(behind) && phrases::taken_back(behind).is_none()
    })
}

fn has_number(text: &str) -> bool {
    !numbers(text).pieces.is_empty()
}

/// A line up to the end of its first sentence, or to the words that explain it.
fn sentence(line: &str) -> &str {
    let ends = pattern!(
        r"(?i)[.!]\s+\p{L}|",
        r"[,;:]?\s+(?:because|since|as|which|where|that is|i\.e\.)(?-u:\b)|",
        r"\s-\s+\p{L}",
    );
    let digit = line
        .find(|c: char| narrow(c).is_ascii_digit())
        .unwrap_or(line.len());
    ends.find_iter(line)
        .map(|found| found.start())
        .find(|end| *end > digit)
        .map_or(line, |end| &line[..end])
}

/// A formula without commands of layout, currency signs and remarks in brackets: `42 (forty-two)`.
fn plain(text: &str) -> String {
    let words = pattern!(r"\\(?:text\w*|mbox|mathrm|operatorname)\s*\{([^{}]*)\}");
    let remark = pattern!(r"([\p{L}0-9%}])\s+\([^()]*\)");
    let times = pattern!(r"([0-9])\s*[x×]\s*([0-9])");
    let script = pattern!(r"\s+([\^_])");
    let text: String = text.chars().map(narrow).collect();
    let text = words.replace_all(&text, " $1 ");
    let text = remark.replace_all(&text, "$1");
    let text = times.replace_all(&text, "$1*$2");
    let text = script.replace_all(&text, "$1");
    let bare = [
        "\\left",
        "\\right",
        "\\displaystyle",
        "\\$",
        "$",
        "€",
        "£",
        "\\!",
        "\\,",
    ];
    bare.iter().fold(text.replace("{,}", ","), |text, command| {
        text.replace(command, "")
    })
}

/// The part of a calculation behind its last equals sign that is before a number.
fn last_side(text: &str) -> &str {
    let text = text
        .rfind("\\approx")
        .map(|at| &text[at..])
        .filter(|side| has_number(side))
        .unwrap_or(text);
    text.rsplit(['=', '≈'])
        .find(|side| has_number(side))
        .unwrap_or(text)
}

/// True if a text is nothing but a calculation, and more than a number or a fraction.
fn is_calculation(text: &str) -> bool {
    let calculation = pattern!(
        r"^(?:[-+*/^()0-9{}.|√÷·−–\s\[\]]|",
        r"\\(?:[cdt]?frac|sqrt|times|cdot|div|binom|dbinom|log|ln|pi|[ ;:])|[0-9]_\{?[0-9])+$",
    );
    let number = pattern!(r"^\s*[-−–]?\s*[0-9.]+(?:\s*/\s*[0-9]+|\s+[0-9]+/[0-9]+)?[\s.]*$");
    let text = separated(text.trim().trim_end_matches('.'));
    !number.is_match(&text)
        && calculation.is_match(&text)
        && text.contains(|c: char| c.is_ascii_digit())
}

/// The value of a calculation. `5-7` may be a range, so it has none.
fn calculated(text: &str) -> Option<Rational> {
    let text = separated(text.trim().trim_end_matches('.'));
    let value = crate::value(&text).ok()?;
    let may_be_range = text
        .chars()
        .all(|c| c.is_ascii_digit() || c.is_whitespace() || matches!(c, '-' | '–' | '−'));
    (!may_be_range || !value.is_negative()).then_some(value)
}

/// The digits without the commas that separate thousands.
fn separated(text: &str) -> String {
    pattern!(r"[0-9]{1,3}(?:,[0-9]{3})+")
        .replace_all(text, |found: &Captures<'_>| found[0].replace(',', ""))
        .into_owned()
}

/// True if the text between two numbers makes them parts of one value: `2 hours 30 minutes`,
/// `60 pens - 18 pens`.
fn is_sum(between: &str) -> bool {
    let sign = pattern!(r"^\s*(?:\p{L}+\s*)?(?:[-+*/−–×÷·(]|\\times|\\cdot|\\div)\s*$");
    let unit = pattern!(
        r"(?i)^\s*(?:hours?|hrs?|h|days?|weeks?|months?|years?|minutes?|mins?|",
        r"feet|foot|ft|yards?|miles?|pounds?|lbs?|km|m|kg|meters?|metres?|liters?|",
        r"dollars?|euros?)\s*,?\s*(?:and\s+)?$",
    );
    sign.is_match(between) || unit.is_match(between)
}

/// Digits with thousands separators, a fraction, an exponent, or a whole denominator.
const NUMBER: &str = r"(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?:/[0-9]+)?";

/// The text with fractions as `1/2` and mixed numbers as improper fractions.
fn with_plain_fractions(text: &str) -> String {
    // `\frac{1}{2}`, `\frac12`, and with a digit before it the `2\frac{1}{2}` of a mixed number.
    let fraction = pattern!(
        r"([0-9][ \t]*)?\\[cdt]?frac\s*(?:\{\s*([-−–‑－]?[0-9.,]*[0-9])\s*\}|([0-9]))\s*",
        r"(?:\{\s*([0-9]+)\s*\}|([0-9]))",
    );
    let plain = fraction.replace_all(text, |found: &Captures<'_>| {
        let before = found.get(1).map_or(String::new(), |digit| {
            format!("{} ", digit.as_str().trim_end())
        });
        format!("{before}{}/{}", part(found, 2, 3), part(found, 4, 5))
    });
    let mixed = pattern!(r"([0-9][0-9,]*) +([0-9]+)/([0-9]+)");
    mixed
        .replace_all(&plain, |found: &Captures<'_>| {
            let before = &plain[..found.get_match().start()];
            let improper = improper(found).filter(|_| !before.ends_with(['/', '.']));
            improper.unwrap_or_else(|| found[0].to_owned())
        })
        .into_owned()
}

/// The text of the one of two groups that has matched.
fn part<'t>(found: &Captures<'t>, one: usize, other: usize) -> &'t str {
    let part = found.get(one).or(found.get(other));
    part.map_or("", |part| part.as_str())
}

/// The improper fraction of a mixed number such as `2 1/2`.
fn improper(mixed: &Captures<'_>) -> Option<String> {
    let [whole, above, below] =
        [1, 2, 3].map(|group| mixed[group].replace(',', "").parse::<u128>().ok());
    let above = above?;
    let below = below?;
    let sum = whole?.checked_mul(below)?.checked_add(above)?;
    (above < below).then(|| format!("{sum}/{below}"))
}

/// The ASCII character for a full-width digit, point or sign. Digits of other scripts are not read.
fn narrow(c: char) -> char {
    match c {
        '０'..='９' => char::from(b'0' + (u32::from(c) - u32::from('０')) as u8),
        '．' => '.',
        '／' => '/',
        '＝' => '=',
        '％' => '%',
        _ => c,
    }
}

/// A number of a text.
struct Piece {
    start: usize,
    end: usize,
    /// As it is written; empty for a power.
    written: String,
    /// `None` if it is too long to be an answer, or has no exact value. The value of a root is
    /// computed by [`Piece::value`].
    value: Option<Rational>,
    is_root: bool,
}

impl Piece {
    /// A time or a ratio, which takes the place of a number and has no value.
    fn without_value(range: Range<usize>) -> Self {
        Self {
            start: range.start,
            end: range.end,
            written: String::new(),
            value: None,
            is_root: false,
        }
    }

    fn value(&self) -> Option<Rational> {
        if self.is_root {
            crate::value(&self.written).ok()
        } else {
            self.value.clone()
        }
    }
}

/// The numbers of a text in order, and the text as it is read.
struct Numbers {
    text: String,
    pieces: Vec<Piece>,
}

impl Numbers {
    fn before(&self, piece: &Piece) -> &str {
        &self.text[..piece.start]
    }

    fn behind(&self, piece: &Piece) -> &str {
        &self.text[piece.end..]
    }

    /// True if the words before a number deny it, or calculate with it.
    fn is_apart(&self, piece: &Piece) -> bool {
        phrases::is_negated(self.before(piece)) || phrases::is_compared(self.before(piece))
    }
}

/// A root, an exponent or an index, times of day and ratios, and numbers.
fn token() -> &'static Regex {
    pattern!(
        r"(?P<root>(?:\\sqrt|√|(?-u:\b)sqrt)\s*(?:\[[^\]]*\])?\s*",
        r"(?:\{[^{}]*\}|\([^()]*\)|[0-9.]+))|",
        r"(?P<script>[\^_]\s*(?:\{[^{}]*\}|\([^()]*\)|[-+−–]?[0-9]+|\\circ))|",
        r"(?P<ratio>[0-9]+(?::[0-9]+)+)|",
        "(?P<number>",
        NUMBER,
        ")",
    )
}

/// The numbers of a text in order. Exponents belong to their base, so that `10^6` is one number and
/// the 2 of `cm^2` is not one. A root belongs to the number before it.
fn numbers(text: &str) -> Numbers {
    let text = as_read(text);
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = 0;
    while let Some(found) = token().captures_at(&text, at) {
        let whole = found.get_match();
        at = whole.end();
        let before = &text[..whole.start()];
        if found.name("root").is_some() {
            join_root(&text, &mut pieces, whole.range());
        } else if found.name("script").is_some() {
            let has_base =
                before.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '}' | ')' | '%'));
            if has_base {
                join_script(&text, &mut pieces, whole.range());
            } else {
                // The sign of `_42_` is Markdown's.
                at = whole.start() + 1;
            }
        } else if found.name("ratio").is_some() {
            pieces.push(Piece::without_value(whole.range()));
        } else if !is_glued(before) && !is_ordinal(&text[at..]) {
            let (scale, length) = scale(&text[at..]);
            at += length;
            let range = whole.start()..at;
            pieces.extend(scaled(separate(before, whole.as_str()), &scale, range));
        }
    }
    Numbers { text, pieces }
}

/// The text with plain digits, fractions and exponents, and without separators of thousands other
/// than commas.
fn as_read(text: &str) -> String {
    let text: String = text.chars().map(narrow).collect();
    let text = text
        .replace("{,}", ",")
        .replace("\\,", "")
        .replace("\\!", "");
    with_plain_scripts(&with_plain_fractions(&grouped(&text)))
}

/// The numbers with these spellings, of which a number word multiplies the last.
fn scaled(written: Vec<String>, scale: &Rational, range: Range<usize>) -> Vec<Piece> {
    let last = written.len().saturating_sub(1);
    let mut pieces = Vec::with_capacity(written.len());
    for (place, written) in written.into_iter().enumerate() {
        let mut value = value(&written);
        if place == last {
            value = value.and_then(|value| value.times(scale));
        }
        pieces.push(Piece {
            start: range.start,
            end: range.end,
            written,
            value,
            is_root: false,
        });
    }
    pieces
}

/// Makes a root a part of the number that it multiplies, or a number of its own.
fn join_root(text: &str, pieces: &mut Vec<Piece>, range: Range<usize>) {
    if let Some(last) = pieces.last_mut()
        && matches!(
            text[last.end..range.start].trim(),
            "" | "*" | "·" | "\\cdot" | "\\times"
        )
    {
        last.end = range.end;
        last.value = None;
        last.is_root = false;
        return;
    }
    let written = text[range.clone()].to_owned();
    pieces.push(Piece {
        start: range.start,
        end: range.end,
        written,
        value: None,
        is_root: true,
    });
}

/// Makes an exponent a part of the number before it. The exponents of `m^2` and `(a+2)^2` belong to
/// no number.
fn join_script(text: &str, pieces: &mut Vec<Piece>, range: Range<usize>) {
    let Some(exponent) = text[range.clone()].strip_prefix('^') else {
        return;
    };
    let Some(last) = pieces.last_mut() else {
        return;
    };
    let between = &text[last.end..range.start];
    if between.is_empty() && exponent.contains("\\circ") {
        last.end = range.end;
    } else if between.is_empty() {
        let written = std::mem::take(&mut last.written);
        let exponent = exponent
            .trim()
            .trim_matches(['{', '}', '(', ')', ' '])
            .replace(['−', '–'], "-");
        last.value = power(&written, &exponent).filter(|_| !last.is_root);
        last.end = range.end;
        last.is_root = false;
        if written == "10" {
            join_power_of_ten(text, pieces);
        }
    } else if between.chars().all(|c| c == ')') {
        last.value = None;
        last.is_root = false;
    }
}

/// The power of a number as it is written. The sign before it does not belong to the base.
fn power(written: &str, exponent: &str) -> Option<Rational> {
    let exponent: i64 = exponent.parse().ok()?;
    let is_negative = written.starts_with('-');
    let power = value(written.trim_start_matches('-'))?.power(exponent)?;
    Some(if is_negative { power.negated() } else { power })
}

/// Makes the power of ten of `1.5 \times 10^3` a part of the number before it.
fn join_power_of_ten(text: &str, pieces: &mut Vec<Piece>) {
    let [.., number, power] = pieces.as_mut_slice() else {
        return;
    };
    if !matches!(
        text[number.end..power.start].trim(),
        "*" | "·" | "×" | "x" | "\\cdot" | "\\times"
    ) {
        return;
    }
    number.value = number
        .value
        .as_ref()
        .zip(power.value.as_ref())
        .and_then(|(number, power)| number.times(power));
    number.end = power.end;
    pieces.pop();
}

/// True if the number behind `before` is a part of a word, such as `H2O` or `A4`; a currency may
/// stand before it, and scripts without spaces.
fn is_glued(before: &str) -> bool {
    let rest = before.trim_end_matches(|c: char| c.is_alphabetic() && c < '\u{2e80}');
    let run = &before[rest.len()..];
    let is_currency = matches!(
        run,
        "Rs" | "RM" | "R" | "US" | "USD" | "EUR" | "GBP" | "CHF" | "kr" | "Rp" | "HK"
    );
    !(run.is_empty()
        || is_currency
        || rest.ends_with('\\')
        || run == "x" && rest.ends_with(|c: char| c.is_ascii_digit()))
}

/// True if a number is followed by the end of `1st`, `2nd`, `3rd`, `4th`.
fn is_ordinal(behind: &str) -> bool {
    ["st", "nd", "rd", "th"].iter().any(|end| {
        behind
            .strip_prefix(end)
            .is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    })
}

/// What the words behind a number multiply it by, and the length of these words: `2 million`, `5k`.
fn scale(behind: &str) -> (Rational, usize) {
    let mut product = Rational::whole(1);
    let mut at = 0;
    let glued = behind
        .chars()
        .next()
        .filter(|_| !behind.chars().nth(1).is_some_and(char::is_alphanumeric));
    if let Some(thousands) = glued.and_then(|c| match c {
        'k' | 'K' => Some(1_000),
        'M' => Some(1_000_000),
        _ => None,
    }) {
        return (Rational::whole(thousands), 1);
    }
    while let Some((word, length)) = phrases::scale(&behind[at..]) {
        let factor = match word.to_lowercase().as_str() {
            "dozen" => 12,
            "hundred" => 100,
            "thousand" => 1_000,
            "million" => 1_000_000,
            "billion" => 1_000_000_000,
            _ => 1_000_000_000_000,
        };
        let Some(next) = product.times(&Rational::whole(factor)) else {
            break;
        };
        product = next;
        at += length;
    }
    (product, at)
}

/// The text without apostrophes and narrow spaces between thousands: `12'345`.
fn grouped(text: &str) -> String {
    pattern!(r"[0-9]{1,3}(?:['’\u{202f}\u{2009}\u{a0}][0-9]{3})+(?-u:\b)")
        .replace_all(text, |found: &Captures<'_>| {
            found[0]
                .chars()
                .filter(char::is_ascii_digit)
                .collect::<String>()
        })
        .into_owned()
}

/// The text with `^{2}` for superscripts.
fn with_plain_scripts(text: &str) -> String {
    pattern!("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
        .replace_all(text, |found: &Captures<'_>| {
            let plain: String = found[0].chars().filter_map(superscript).collect();
            format!("^{{{plain}}}")
        })
        .into_owned()
}

/// What a superscript writes.
fn superscript(c: char) -> Option<char> {
    let at = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻".chars().position(|sign| sign == c)?;
    "0123456789-".chars().nth(at)
}

/// True if a minus after `before` is a sign and neither subtracts nor begins a point of a list.
/// `touches` tells that no space follows it.
fn is_sign(before: &str, touches: bool) -> bool {
    let operand = before.trim_end();
    let begins_line = before.trim_end_matches(' ').ends_with('\n');
    let spaced = operand.len() < before.len();
    let letters = operand
        .chars()
        .rev()
        .take_while(|c| c.is_alphabetic())
        .count();
    match operand.chars().next_back() {
        _ if begins_line => touches,
        // `x - 3` subtracts, and the minus of `covid-19` joins, but that of `it is -3` is a sign.
        Some(last) if last.is_alphabetic() => letters > 1 && spaced && touches,
        Some(last) if last.is_numeric() || matches!(last, ')' | ']' | '}') => false,
        _ => true,
    }
}

/// One number after `before`, or several if its commas do not separate thousands.
fn separate(before: &str, number: &str) -> Vec<String> {
    let bare = before.trim_end_matches(['$', '€', '£', '\\', ' ']);
    let touches = !before[bare.len()..].contains(' ');
    let minus = bare
        .strip_suffix(['-', '−', '–', '‑', '－'])
        .is_some_and(|before| is_sign(before, touches));
    let sign = if minus { "-" } else { "" };
    let number = number.trim_end_matches(',');
    let (digits, rest) = number.split_at(
        number
            .find(|c: char| !c.is_ascii_digit() && c != ',')
            .unwrap_or(number.len()),
    );
    let groups: Vec<&str> = digits.split(',').collect();
    let thousands = groups[0].len() <= 3 && groups[1..].iter().all(|group| group.len() == 3);
    if thousands || groups.len() == 1 {
        return vec![format!("{sign}{}{rest}", groups.concat())];
    }
    let mut parts: Vec<String> = groups.into_iter().map(str::to_owned).collect();
    if let Some(first) = parts.first_mut() {
        first.insert_str(0, sign);
    }
    if let Some(last) = parts.last_mut() {
        last.push_str(rest);
    }
    parts
}

fn value(number: &str) -> Option<Rational> {
    match number.split_once('/') {
        None => Rational::decimal(number),
        Some((above, below)) => {
            Rational::decimal(above)?.times(&Rational::decimal(below)?.inverse()?)
        }
    }
}
