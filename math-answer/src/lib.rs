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
mod grade;
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
pub use grade::{extract, grade};
pub use rational::Rational;
pub use thoughts::without_thoughts;
pub use value::{NoValue, value};

/// The examples of the page are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
