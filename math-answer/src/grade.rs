//! Verdicts and answers of whole texts.

use crate::answer::{Answer, Verdict};
use crate::extract::Places;

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
