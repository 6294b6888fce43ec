//! An answer that was read, and its comparison with another one.

use crate::expression::Expression;
use crate::extract::{self, Places, choice};
use crate::lex::Reading;
use crate::text::{self, bare, letters};
use crate::thoughts::said;
use crate::{boxes, canonical, compare, parse, phrases};

/// Whether a text gives the right answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The answer has the meaning of the gold answer.
    Right,
    /// The answer has another meaning, or none that is known here.
    Wrong,
    /// The text has no answer at the accepted places.
    NoAnswer,
}

impl Verdict {
    /// True for [`Verdict::Right`].
    #[must_use]
    pub fn is_right(self) -> bool {
        self == Self::Right
    }
}

/// An answer: its text, and its meaning if the text could be parsed.
///
/// ```
/// use math_answer::{Answer, Places};
///
/// let gold = Answer::gold("so it is 6 / 4\n#### 1.5");
/// let right = Answer::find(r"The answer is $\frac32$.", Places::Anchored);
/// assert!(right.is_some_and(|answer| answer.matches(&gold)));
/// ```
#[derive(Clone, Debug)]
pub struct Answer {
    text: String,
    meaning: Option<Expression>,
    /// Second meaning of a text that has two.
    other: Option<Expression>,
    /// All boxes of the text as a list, which is only compared with a gold answer of several parts.
    every_box: Option<Box<Self>>,
}

impl Answer {
    /// The answer of a completion at the accepted `places`; `None` if there is none.
    #[must_use]
    pub fn find(completion: &str, places: Places) -> Option<Self> {
        let text = &*said(completion);
        let candidates = extract::candidates(text, places);
        let mut answers = candidates
            .iter()
            .map(|candidate| Self::of(&candidate.text, &candidate.formula));
        let first = answers.next()?;
        // An answer that cannot be parsed is compared as text.
        let mut answer = if first.meaning.is_some() {
            first
        } else {
            answers
                .find(|answer| answer.meaning.is_some())
                .unwrap_or(first)
        };
        answer.every_box = boxes::every(text).map(|list| Box::new(Self::whole(&list)));
        Some(answer)
    }

    /// The dataset's answer: the whole text. In a worked solution it is the whole of what follows
    /// `####`, stands in a box, or is called the answer.
    #[must_use]
    pub fn gold(text: &str) -> Self {
        let text = text.rsplit("####").next().unwrap_or(text).trim();
        let mut gold = match boxes::boxed(text) {
            Some(boxed) => Self::whole(&boxed),
            None => Self::whole(phrases::stated(text).unwrap_or(text)),
        };
        if gold.other.is_none() {
            gold.other = choices(&bare(&gold.text));
        }
        gold
    }

    /// The answer that a whole text is.
    fn whole(text: &str) -> Self {
        Self::of(text, text)
    }

    /// The answer that a text gives by the formula in it. The second meaning is that of the whole
    /// text.
    fn of(text: &str, formula: &str) -> Self {
        let reading = if text == formula {
            Reading::Second
        } else {
            Reading::First
        };
        let meaning = parse::parse(formula, Reading::First);
        let other = parse::parse(text, reading).filter(|other| Some(other) != meaning.as_ref());
        Self {
            text: text.trim().to_owned(),
            meaning,
            other,
            every_box: None,
        }
    }

    /// True if the answer has the meaning of `gold`, which [`Answer::gold`] has read.
    #[must_use]
    pub fn matches(&self, gold: &Self) -> bool {
        let has_parts = matches!(
            &gold.meaning,
            Some(Expression::List(_) | Expression::Set(_))
        );
        self.is(gold)
            || has_parts
                && self
                    .every_box
                    .as_ref()
                    .is_some_and(|every_box| every_box.is(gold))
    }

    fn is(&self, gold: &Self) -> bool {
        !text::differ(&self.text, &gold.text)
            && (self.is_written_like(gold)
                || self.chooses(gold)
                || gold.chooses(self)
                || self.means(gold))
    }

    /// True if both texts have the same letters. Their case counts in a formula that has both cases
    /// of a letter: `R-r` is not `r-R`, but `Bob` is `bob`.
    fn is_written_like(&self, gold: &Self) -> bool {
        let text = letters(&gold.text);
        let is_cased =
            gold.meanings().any(Expression::is_cased) && !text.chars().all(char::is_alphabetic);
        !text.is_empty()
            && letters(&self.text) == text
            && (!is_cased || bare(&self.text) == bare(&gold.text))
    }

    /// True if the answer is a choice with its text, and the other one is its letter.
    fn chooses(&self, other: &Self) -> bool {
        choice(&self.text).is_some_and(|letter| letters(&other.text) == letter)
    }

    fn means(&self, gold: &Self) -> bool {
        gold.meanings()
            .any(|gold| self.meanings().any(|meaning| compare::same(gold, meaning)))
    }

    fn meanings(&self) -> impl Iterator<Item = &Expression> {
        self.meaning.iter().chain(&self.other)
    }

    /// A canonical text, equal for different spellings of a value: `1/2` for `0.5` and
    /// `\frac{1}{2}`. Answers that match may still have two texts, because a comparison computes
    /// more.
    #[must_use]
    pub fn canonical(&self) -> String {
        if let Some(letter) = choice(&self.text) {
            return letter;
        }
        match &self.meaning {
            Some(meaning) => canonical::text(meaning),
            None => letters(&self.text),
        }
    }
}

/// Several choices, written as their letters in order: `ABD` is also `A, B, D`.
fn choices(letters: &str) -> Option<Expression> {
    let are_choices = letters.len() > 1
        && letters.bytes().all(|b| b.is_ascii_uppercase())
        && letters.bytes().is_sorted();
    are_choices.then(|| {
        let symbols = letters.chars().map(|c| Expression::Symbol(c.into()));
        Expression::List(symbols.collect())
    })
}
