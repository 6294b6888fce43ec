//! The reward `math` and its basis: the answer of a text, and the comparison of two answers by
//! meaning.
//!
//! A text's answer is read as simple LaTeX ([`extract`]) and compared by value ([`verify`]):
//! numbers exactly, formulas at several fixed points, sets without order. Time and memory per
//! kilobyte of text are bounded for every text: lengths, depths, sizes of numbers and the work of a
//! comparison have limits.

mod boxes;
mod breaks;
mod calculus;
mod canonical;
mod commands;
mod compare;
mod complex;
mod environments;
mod evaluate;
mod expression;
mod extract;
mod factorials;
mod joints;
mod label;
mod lex;
mod parse;
mod postfix;
mod rational;
mod relation;
mod reward;
mod signs;
mod tails;
#[cfg(test)]
mod tests;
mod token;

pub use boxes::boxed;
pub(crate) use boxes::last as last_box;
pub use extract::Places;
pub(crate) use rational::Rational;

use std::sync::LazyLock;

use ::regex::Regex;

use evaluate::{Evaluator, Value};
use expression::Expression;
use extract::choice;
use lex::Reading;

/// An answer: its text, and its meaning if the text could be parsed.
#[derive(Clone, Debug)]
pub struct Answer {
    text: String,
    says: Option<Expression>,
    /// The second meaning of a text that has two.
    other: Option<Expression>,
    /// All boxes of the text as a list; only a dataset's answer of several parts is compared with
    /// it.
    every: Option<Box<Self>>,
}

impl Answer {
    /// The answer of a completion at the accepted `places`, or `None`.
    #[must_use]
    pub fn of(text: &str, places: Places) -> Option<Self> {
        let text = &*extract::said(text);
        let candidates = extract::candidates(text, places);
        let mut answers = candidates
            .iter()
            .map(|candidate| Self::new(&candidate.text, &candidate.formula));
        let first = answers.next()?;
        // An answer that cannot be parsed is compared as text.
        let answer = if first.says.is_some() {
            first
        } else {
            answers
                .find(|answer| answer.says.is_some())
                .unwrap_or(first)
        };
        Some(Self {
            every: boxes::every(text).map(|list| Box::new(Self::whole(&list))),
            ..answer
        })
    }

    /// The dataset's answer: the whole text, or in a worked solution the whole of what follows
    /// `####`, is boxed, or is called the answer.
    #[must_use]
    pub fn gold(text: &str) -> Self {
        let text = text.rsplit("####").next().unwrap_or(text).trim();
        let gold = match boxes::boxed(text) {
            Some(boxed) => Self::whole(&boxed),
            None => Self::whole(extract::stated(text).unwrap_or(text)),
        };
        // Several choices: `ABD` is also `A, B, D`.
        let letters = bare(&gold.text);
        let rise = letters.len() > 1
            && letters.bytes().all(|b| b.is_ascii_uppercase())
            && letters.bytes().is_sorted();
        let choices = || {
            Expression::List(
                letters
                    .chars()
                    .map(|c| Expression::Symbol(c.into()))
                    .collect(),
            )
        };
        Self {
            other: gold.other.or_else(|| rise.then(choices)),
            ..gold
        }
    }

    /// The answer that a whole text is.
    fn whole(text: &str) -> Self {
        Self::new(text, text)
    }

    /// The answer that a text is by a formula in it; the whole text's meaning is its second one.
    fn new(text: &str, formula: &str) -> Self {
        let says = parse::parse(formula, Reading::First);
        let other = parse::parse(
            text,
            if text == formula {
                Reading::Second
            } else {
                Reading::First
            },
        );
        let other = other.filter(|other| Some(other) != says.as_ref());
        Self {
            says,
            other,
            text: text.trim().to_owned(),
            every: None,
        }
    }

    /// True if the answer has the same meaning as `gold`.
    #[must_use]
    pub fn matches(&self, gold: &Self) -> bool {
        let several = || matches!(&gold.says, Some(Expression::List(_) | Expression::Set(_)));
        self.is(gold)
            || self
                .every
                .as_ref()
                .is_some_and(|every| several() && every.is(gold))
    }

    fn is(&self, gold: &Self) -> bool {
        if [half_of_day, clocks, capitals].iter().any(|read| {
            read(&self.text)
                .zip(read(&gold.text))
                .is_some_and(|(one, other)| one != other)
        }) {
            return false;
        }
        let chosen = |one: &Self, other: &Self| {
            choice(&one.text).is_some_and(|letter| letters(&other.text) == letter)
        };
        let same = || {
            gold.meanings()
                .any(|gold| self.meanings().any(|says| compare::same(gold, says)))
        };
        let text = letters(&gold.text);
        // `R-r` is not `r-R`, but `Bob` is `bob`.
        let cased =
            gold.meanings().any(Expression::is_cased) && !text.chars().all(char::is_alphabetic);
        let written = || !cased || bare(&self.text) == bare(&gold.text);
        !text.is_empty() && letters(&self.text) == text && written()
            || chosen(self, gold)
            || chosen(gold, self)
            || same()
    }

    fn meanings(&self) -> impl Iterator<Item = &Expression> {
        self.says.iter().chain(&self.other)
    }

    /// A canonical text, equal for different spellings of a value: `1/2` for `0.5` and
    /// `\frac{1}{2}`.
    #[must_use]
    pub fn canonical(&self) -> String {
        choice(&self.text).unwrap_or_else(|| {
            self.says
                .as_ref()
                .map_or_else(|| letters(&self.text), canonical::text)
        })
    }
}

/// The answer of a text, wherever it is, as a canonical text; `None` if there is none.
///
/// ```
/// use capo_rewards::math;
///
/// assert_eq!(math::extract(r"so it is $\boxed{\frac{3}{6}}$").as_deref(), Some("1/2"));
/// assert_eq!(math::extract("so it is 0.5"), math::extract("1/2"));
/// ```
#[must_use]
pub fn extract(text: &str) -> Option<String> {
    Answer::of(text, Places::Any).map(|answer| answer.canonical())
}

/// True if the answer of a text, wherever it is, has the meaning of the dataset's answer.
///
/// ```
/// use capo_rewards::math;
///
/// assert!(math::verify(r"$x \in \{1, 2\}$", r"The roots are $2$ and $1$: \boxed{2, 1}"));
/// ```
#[must_use]
pub fn verify(gold: &str, answer: &str) -> bool {
    Answer::of(answer, Places::Any).is_some_and(|answer| answer.matches(&Answer::gold(gold)))
}

/// The exact value of an expression of numbers, as a whole number or a fraction. `None` if it has
/// none, or none within the limits on time and memory.
///
/// ```
/// use capo_rewards::math;
///
/// assert_eq!(math::value("(347 - 5) * 286").as_deref(), Some("97812"));
/// assert_eq!(math::value("1/2 + x"), None);
/// ```
#[must_use]
pub fn value(text: &str) -> Option<String> {
    let says =
        parse::parse(text, Reading::First).filter(|says| says.is_scalar() && says.is_constant())?;
    match Evaluator::of(&[&says]).value(&says) {
        Value::Exact(value) => Some(value.to_string()),
        Value::Near(_) => None,
    }
}

/// Commands that mark words and layout.
const LAYOUT: [&str; 7] = [
    "\\displaystyle",
    "\\left",
    "\\right",
    "\\textbf",
    "\\text",
    "\\mathrm",
    "\\!",
];

/// Commands that are white space.
const SPACES: [&str; 4] = ["\\,", "\\:", "\\;", "\\ "];

/// The text without layout and case; commands keep their case.
fn letters(text: &str) -> String {
    let mut command = false;
    let lower = |c: char| {
        command = c == '\\' || command && c.is_ascii_alphabetic();
        if command {
            c.into()
        } else {
            c.to_lowercase().collect::<String>()
        }
    };
    bare(text).chars().map(lower).collect()
}

/// The text without layout: spaces, dollars, `\text`, `\left`. A text without other commands also
/// loses its braces, and a choice its brackets. A text that is too long for an answer stays as it
/// is.
fn bare(text: &str) -> String {
    if text.len() > lex::MOST_BYTES {
        return text.to_owned();
    }
    let bare = LAYOUT
        .iter()
        .fold(text.to_owned(), |bare, command| bare.replace(command, ""));
    let bare = SPACES
        .iter()
        .fold(bare, |bare, command| bare.replace(command, " "));
    // White space between two numbers stays, and that of `2.5e - 6`.
    let parts = bare
        .split(|c: char| c.is_whitespace() || matches!(c, '$' | '~'))
        .filter(|part| !part.is_empty());
    let joined = parts.fold(String::new(), |joined, part| {
        let is_digit = |c: char| c.is_ascii_digit();
        let digits = joined.ends_with(is_digit) && part.starts_with(is_digit);
        let exponent = joined
            .strip_suffix(['e', 'E'])
            .is_some_and(|before| before.ends_with(is_digit));
        joined + if digits || exponent { " " } else { "" } + part
    });
    let bare = joined.trim_end_matches('.');
    let words: String = bare.chars().filter(|c| !matches!(c, '{' | '}')).collect();
    let words = words.trim_end_matches('.');
    let choice = words.trim_start_matches('(').trim_end_matches(')');
    match () {
        () if choice.chars().count() == 1 && choice.chars().all(char::is_alphabetic) => {
            choice.to_owned()
        }
        () if !words.contains(['\\', '^', '_']) => words.to_owned(),
        () => bare.to_owned(),
    }
}

/// The times of day in a text; as a ratio, `4:30` would be `2:15`.
fn clocks(text: &str) -> Option<String> {
    static CLOCK: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?:^|[^:.\d])0?(\d|1\d|2[0-3]):([0-5]\d)(?:[^:\d]|$)")
            .expect("the pattern is a constant")
    });
    let times: String = CLOCK
        .captures_iter(text)
        .map(|found| format!("{}:{} ", &found[1], &found[2]))
        .collect();
    (!times.is_empty()).then_some(times)
}

/// Three capitals or more, which say an order and no product. An angle is the same from either end.
fn capitals(text: &str) -> Option<String> {
    let text = text.trim_start_matches(['$', ' ']);
    let angle = text.strip_prefix("\\angle");
    let name = bare(angle.unwrap_or(text));
    let back = || name.chars().rev().collect();
    (name.len() > 2 && name.bytes().all(|b| b.is_ascii_uppercase())).then(|| {
        if angle.is_some() {
            name.clone().min(back())
        } else {
            name.clone()
        }
    })
}

/// `a` or `p` of a time such as `10 a.m.`, which the comparison of values leaves out as a unit.
fn half_of_day(text: &str) -> Option<String> {
    static HALF: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?i)\d[^\p{L}\p{N}]*(?:\\text\s*\{\s*)?([ap])\.?\s?m\b")
            .expect("the pattern is a constant")
    });
    HALF.captures(text).map(|found| found[1].to_lowercase())
}
