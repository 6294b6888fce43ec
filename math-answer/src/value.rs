//! The exact value of an expression of numbers.

use std::fmt;

use crate::Rational;
use crate::evaluate::{Evaluator, Value};
use crate::lex::Reading;
use crate::parse;

/// Why an expression has no exact value.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum NoValue {
    /// The text is not a formula, or is longer than an answer may be.
    Unreadable,
    /// The formula has variables, or is not one value: a list, an equation, words.
    NotANumber,
    /// The value is not a fraction, and this is it to about 15 digits: that of `\sqrt2`.
    Inexact(f64),
    /// The formula has no finite real value, or none within the limits on time and memory: `1/0`,
    /// `\sqrt{-1}`, `9^{9^{9^9}}`.
    Undefined,
}

impl fmt::Display for NoValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => write!(f, "the text is not a formula"),
            Self::NotANumber => write!(f, "the formula is not one number"),
            Self::Inexact(near) => write!(f, "the value is known only as about {near}"),
            Self::Undefined => write!(f, "the formula has no real value within the limits"),
        }
    }
}

impl std::error::Error for NoValue {}

/// The exact value of an expression of numbers, such as `(347 - 5) * 286` or `\frac{2024!}{2023!}`.
///
/// # Errors
///
/// The error says what kind of expression has no exact value.
///
/// ```
/// use math_answer::{NoValue, value};
///
/// assert_eq!(value("(347 - 5) * 286").unwrap().to_string(), "97812");
/// assert_eq!(value(r"\frac12 + \frac13").unwrap().to_string(), "5/6");
/// assert_eq!(value("1/2 + x"), Err(NoValue::NotANumber));
/// assert_eq!(value("1 +"), Err(NoValue::Unreadable));
/// assert_eq!(value("1/0"), Err(NoValue::Undefined));
/// assert!(matches!(value(r"\sqrt2"), Err(NoValue::Inexact(near)) if (near - 1.414).abs() < 1e-3));
/// ```
pub fn value(text: &str) -> Result<Rational, NoValue> {
    let expression = parse::parse(text, Reading::First).ok_or(NoValue::Unreadable)?;
    if !expression.is_scalar() || !expression.is_constant() {
        return Err(NoValue::NotANumber);
    }
    match Evaluator::of(&[&expression]).value(&expression) {
        Value::Exact(value) => Ok(value),
        Value::Near(near) if near.as_real().is_finite() => Err(NoValue::Inexact(near.re)),
        Value::Near(_) => Err(NoValue::Undefined),
    }
}
