//! Finds the answer in a text about mathematics, and compares it with a known answer by meaning.
//!
//! The text is a worked solution, such as a language model writes it; the known answer comes from a
//! dataset and is called gold here. Both are read as LaTeX or plain text. Numbers are compared
//! exactly, formulas at several fixed points, and sets without their order.
//!
//! ```
//! use math_answer::{Places, Verdict, grade};
//!
//! let solution = r"The roots are $2$ and $1$, so the answer is \boxed{\{2, \frac{3}{3}\}}.";
//! assert_eq!(grade(r"$x \in \{1, 2\}$", solution, Places::Anchored), Verdict::Right);
//! assert_eq!(grade("3", solution, Places::Anchored), Verdict::Wrong);
//! assert_eq!(grade("3", "I do not know.", Places::Anchored), Verdict::NoAnswer);
//! ```
//!
//! | function | returns |
//! |---|---|
//! | [`grade`] | whether a text's answer has the meaning of a gold answer |
//! | [`extract`] | a text's answer in a canonical form, which is one text for many spellings |
//! | [`Answer`] | an answer that is kept, for comparing it more than once |
//! | [`number::find`] | the number that a text gives, for datasets whose answers are numbers |
//! | [`value`] | the exact value of an expression of numbers |
//! | [`boxed`] | what stands in the last box of a text, unread |
//! | [`without_thoughts`] | a text without what stands between tags such as `<think>` |
//!
//! No text makes these functions panic, and every text comes to an end: the time and the memory for
//! a kilobyte of text are bounded, because lengths, depths, sizes of numbers and the work of a
//! comparison have limits.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[macro_use]
mod pattern;

mod answer;
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
pub mod number;
mod parse;
mod phrases;
mod postfix;
mod rational;
mod relation;
mod signs;
mod tails;
mod text;
mod thoughts;
mod token;
mod value;

pub use answer::{Answer, Verdict};
pub use boxes::boxed;
pub use extract::Places;
pub use rational::Rational;
pub use thoughts::without_thoughts;
pub use value::{NoValue, value};

/// The examples of the page are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The answer of a text at the accepted `places`, in a [canonical](Answer::canonical) form; `None`
/// if there is none.
///
/// ```
/// use math_answer::{Places, extract};
///
/// let half = Some("1/2".to_owned());
/// assert_eq!(extract(r"so it is $\boxed{\frac{3}{6}}$", Places::Anchored), half);
/// assert_eq!(extract("so it is 0.5", Places::Any), half);
/// assert_eq!(extract("so it is 0.5", Places::Anchored), None);
/// ```
#[must_use]
pub fn extract(text: &str, places: Places) -> Option<String> {
    Answer::find(text, places).map(|answer| answer.canonical())
}

/// Whether the answer of `text` at the accepted `places` has the meaning of `gold`.
///
/// To grade several texts against one gold answer, read it once with [`Answer::gold`].
#[must_use]
pub fn grade(gold: &str, text: &str, places: Places) -> Verdict {
    match Answer::find(text, places) {
        None => Verdict::NoAnswer,
        Some(answer) if answer.matches(&Answer::gold(gold)) => Verdict::Right,
        Some(_) => Verdict::Wrong,
    }
}

/// What a completion says: without its thoughts, and without Markdown's signs for bold.
fn said(completion: &str) -> String {
    phrases::without_bold(&without_thoughts(completion))
}
