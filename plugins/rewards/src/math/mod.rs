//! The reward `math`, and what it stands on: the answer of a text, and whether two answers say the same.
//!
//! A text's answer is read as simple LaTeX ([`extract`]) and compared by value ([`verify`]): numbers exactly, formulas at several fixed
//! points, sets without order. Nothing takes more than a fixed time and memory for each kilobyte of text, whatever the text: lengths, depths,
//! sizes of numbers and the work of a comparison are limited.

mod canonical;
mod commands;
mod compare;
mod complex;
mod evaluate;
mod expression;
mod extract;
mod lex;
mod parse;
mod rational;
mod reward;
mod signs;
#[cfg(test)]
mod tests;
mod units;

pub use extract::Places;
pub(crate) use rational::Rational;

use expression::Expression;

/// An answer: its text, and what it says where that is understood.
#[derive(Clone, Debug)]
pub struct Answer {
    text: String,
    says: Option<Expression>,
}

impl Answer {
    /// The answer of `text` at the `places` that count; none where there is none.
    #[must_use]
    pub fn of(text: &str, places: Places) -> Option<Self> {
        let candidates = extract::candidates(text, places);
        let read = candidates.iter().find_map(|candidate| {
            let says = parse::parse(candidate)?;
            Some(Self { text: candidate.clone(), says: Some(says) })
        });
        // An answer that cannot be parsed is still compared as text.
        read.or_else(|| candidates.into_iter().next().map(|text| Self { text, says: None }))
    }

    /// The dataset's answer: the best place that there is, or the whole text. Where that is not understood, nothing else of the text is
    /// taken for it.
    #[must_use]
    pub fn gold(text: &str) -> Self {
        let text = text.rsplit("####").next().unwrap_or(text).trim();
        let text = extract::candidates(text, Places::Any).into_iter().next().unwrap_or_else(|| text.to_owned());
        Self { says: parse::parse(&text), text }
    }

    /// True if it says what `gold` says.
    #[must_use]
    pub fn matches(&self, gold: &Self) -> bool {
        let same = || Some(compare::same(gold.says.as_ref()?, self.says.as_ref()?));
        letters(&self.text) == letters(&gold.text) || same().unwrap_or(false)
    }

    /// One text for answers that are written alike: `1/2` for `0.5` and `\frac{1}{2}`.
    #[must_use]
    pub fn canonical(&self) -> String {
        self.says.as_ref().map_or_else(|| letters(&self.text), canonical::text)
    }
}

/// The answer of a text, wherever it stands, as one text for answers that are written alike; none where there is none.
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

/// True if the answer of a text, wherever it stands, is the dataset's.
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

/// A text without what sets its look: spaces, dollars, `\text`, `\left`, case; of mere words and choices braces and brackets too.
fn letters(text: &str) -> String {
    let mut bare = text.trim().trim_end_matches('.').to_lowercase();
    for command in ["\\left", "\\right", "\\textbf", "\\text", "\\mathrm", "\\!", "\\,", "\\;", "\\ "] {
        bare = bare.replace(command, "");
    }
    bare.retain(|c| !c.is_whitespace() && c != '$');
    let words: String = bare.chars().filter(|c| !matches!(c, '{' | '}')).collect();
    let choice = words.trim_start_matches('(').trim_end_matches(')');
    match () {
        () if choice.chars().count() == 1 && choice.chars().all(char::is_alphabetic) => choice.to_owned(),
        () if words.chars().all(char::is_alphabetic) => words,
        () => bare,
    }
}
