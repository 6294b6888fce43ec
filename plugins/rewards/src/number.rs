//! The reward `number`: 1 for the right number, compared exactly.

use std::sync::LazyLock;

use ::regex::{Captures, Regex};
use capo_plugin::Completion;
use capo_plugin::prelude::*;

use crate::math::{self, Rational};

/// Position of the answer in a text, and the tolerance.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Number {
    #[serde(default = "separator")]
    answer_separator: String,
    #[serde(default)]
    tolerance: f64,
}

fn separator() -> String {
    "####".into()
}

impl Number {
    /// 1.0 if the completion ended by itself with the right number, else 0.0.
    fn reward(&self, completion: &Completion<'_>) -> f32 {
        let right = || {
            let difference = self.answer(completion.text)?.add(&self.answer(completion.answer)?.negated())?;
            Some(difference.magnitude() <= Rational::decimal(&format!("{:e}", self.tolerance))?)
        };
        f32::from(u8::from(!completion.truncated && right().unwrap_or(false)))
    }

    /// The first number after the separator; otherwise the last number in the last box; otherwise the last number in the text.
    fn answer(&self, text: &str) -> Option<Rational> {
        let separator = self.answer_separator.as_str();
        match text.rsplit_once(separator).filter(|_| !separator.is_empty()) {
            Some((_, behind)) => numbers(behind).next()?,
            None => numbers(math::boxed(text).as_deref().unwrap_or(text)).last()?,
        }
    }
}

/// Digits with thousands separators, a fraction, an exponent, or a whole denominator.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?(?:/[0-9]+)?")
        .expect("the pattern is a constant")
});

/// A fraction in TeX, with a digit that stands before it: `\frac{1}{2}`, `\frac12`, the `2\frac{1}{2}` of a mixed number.
static FRACTION: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"([0-9][ \t]*)?\\[cdt]?frac\s*(?:\{\s*([-−–‑－]?[0-9.,]*[0-9])\s*\}|([0-9]))\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))",
    )
    .expect("the pattern is a constant")
});

/// A mixed number, such as `2 1/2`.
static MIXED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"([0-9][0-9,]*) +([0-9]+)/([0-9]+)").expect("the pattern is a constant"));

/// The text with fractions as `1/2` and mixed numbers as improper fractions.
fn with_plain_fractions(text: &str) -> String {
    let part = |found: &Captures<'_>, places: [usize; 2]| {
        places.iter().find_map(|&place| found.get(place)).map_or("", |part| part.as_str()).to_owned()
    };
    let plain = FRACTION.replace_all(text, |found: &Captures<'_>| {
        let before = found.get(1).map_or(String::new(), |digit| format!("{} ", digit.as_str().trim_end()));
        format!("{before}{}/{}", part(found, [2, 3]), part(found, [4, 5]))
    });
    let improper = |found: &Captures<'_>| {
        if plain[..found.get_match().start()].ends_with(['/', '.']) {
            return None;
        }
        let [whole, above, below] = [1, 2, 3].map(|place| found[place].replace(',', "").parse::<u128>().ok());
        let (above, below) = (above?, below?);
        let above = whole?.checked_mul(below)?.checked_add(above).filter(|_| above < below)?;
        Some(format!("{above}/{below}"))
    };
    MIXED
        .replace_all(&plain, |found: &Captures<'_>| improper(found).unwrap_or_else(|| found[0].to_owned()))
        .into_owned()
}

/// A full-width digit as those of ASCII; the digits of no other script are read.
fn narrow(c: char) -> char {
    if ('０'..='９').contains(&c) { char::from(b'0' + (u32::from(c) - u32::from('０')) as u8) } else { c }
}

/// The numbers of a text in order; `None` for a number that is too long to be an answer, or divided by 0.
fn numbers(text: &str) -> impl DoubleEndedIterator<Item = Option<Rational>> {
    let text: String = text.chars().map(narrow).collect();
    let text = with_plain_fractions(&text.replace("{,}", ",").replace("\\,", "").replace("\\!", ""));
    let found: Vec<String> =
        NUMBER.find_iter(&text).flat_map(|found| separate(&text[..found.start()], found.as_str())).collect();
    found.into_iter().map(|number| value(&number))
}

/// True if a minus after `before` is a sign and neither subtracts nor begins a point of a list. `touches` tells that no space follows it.
fn is_sign(before: &str, touches: bool) -> bool {
    let operand = before.trim_end();
    let begins_line = before.trim_end_matches(' ').ends_with('\n');
    let spaced = operand.len() < before.len();
    let letters = operand.chars().rev().take_while(|c| c.is_alphabetic()).count();
    match operand.chars().next_back() {
        _ if begins_line => touches,
        // `x - 3` subtracts, and the minus of `covid-19` joins; that of `it is -3` is a sign.
        Some(last) if last.is_alphabetic() => letters > 1 && spaced && touches,
        Some(last) if last.is_numeric() || matches!(last, ')' | ']' | '}') => false,
        _ => true,
    }
}

/// One number after `before`, or several if its commas do not separate thousands.
fn separate(before: &str, number: &str) -> Vec<String> {
    let bare = before.trim_end_matches(['$', '€', '£', '\\', ' ']);
    let touches = !before[bare.len()..].contains(' ');
    let minus = bare.strip_suffix(['-', '−', '–', '‑', '－']).is_some_and(|before| is_sign(before, touches));
    let sign = if minus { "-" } else { "" };
    let number = number.trim_end_matches(',');
    let (digits, rest) =
        number.split_at(number.find(|c: char| !c.is_ascii_digit() && c != ',').unwrap_or(number.len()));
    let groups: Vec<&str> = digits.split(',').collect();
    let thousands = groups[0].len() <= 3 && groups[1..].iter().all(|group| group.len() == 3);
    if thousands || groups.len() == 1 {
        return vec![format!("{sign}{}{rest}", groups.concat())];
    }
    let last = groups.len() - 1;
    let part = |at: usize| [if at == 0 { sign } else { "" }, groups[at], if at == last { rest } else { "" }].concat();
    (0..=last).map(part).collect()
}

fn value(number: &str) -> Option<Rational> {
    match number.split_once('/') {
        None => Rational::decimal(number),
        Some((above, below)) => Rational::decimal(above)?.times(&Rational::decimal(below)?.inverse()?),
    }
}

impl Reward for Number {
    fn score(&mut self, _: &mut Ctx<'_>, rollout: &Rollout<'_>, rewards: &mut [f32]) -> Result<(), PluginError> {
        crate::each(rollout, rewards, |completion| self.reward(completion));
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        if (0.0..=1e300).contains(&self.tolerance) {
            return Ok(());
        }
        Err(PluginError::config(format!("`tolerance` is {} (it must be finite and 0 or more)", self.tolerance)))
    }
}

register!(Reward, Number, "number", "1 where a completion's number is the dataset's, else 0", {
    answer_separator = separator() => "the number is the first behind the last one of these; where there is none, the last in the last `\\boxed{}`, else of the text",
    tolerance = 0.0 => "largest difference that counts as right",
});

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, RolloutFixture};

    use super::*;

    fn reward(table: &str, text: &str, answer: &str) -> f32 {
        let fixture = RolloutFixture::new(&[text]).answers(&[answer]);
        fixture.score(&mut testing::reward::<Number>(table).unwrap()).unwrap().rewards[0]
    }

    #[test]
    fn numbers_are_the_same_however_they_are_written() {
        for line in include_str!("../golden/numbers.txt").lines().filter(|line| !line.starts_with('#')) {
            let [same, text, answer] = line.split(" | ").collect::<Vec<_>>().try_into().unwrap();
            assert_eq!(reward("", text, answer), f32::from(same == "yes"), "{line}");
        }
        for text in ["", &"9".repeat(100_000)] {
            assert_eq!(reward("", text, text), 0.0);
        }
    }

    #[test]
    fn the_place_of_the_number() {
        assert_eq!(reward("", "1 + 1 = 2\n#### 2 apples of 5", "so 2\n#### 2"), 1.0);
        assert_eq!(reward("", "so \\boxed{x = 2} of 5", "2"), 1.0);
        assert_eq!(reward("", "2, no: 3", "2"), 0.0);
        // What stands on a line of its own goes with no number of the line above; `- 3` is a point of a list there.
        for (text, answer) in [("10\n-3", "-3"), ("so\n- 3", "3"), ("Step 5\n\\frac{1}{2}", "0.5"), ("2\n1/2", "0.5")] {
            assert_eq!(reward("", text, answer), 1.0, "{text}");
        }
        assert_eq!(reward("answer_separator = \"A:\"", "A: 2, that is 3", "2"), 1.0);
        assert_eq!(reward("answer_separator = \"\"", "#### 2, that is 3", "3"), 1.0);
    }

    #[test]
    fn a_difference_may_be_tolerated() {
        assert_eq!(reward("tolerance = 0.01", "3.14", "3.15"), 1.0);
        assert_eq!(reward("tolerance = 0.01", "3.14", "3.1500001"), 0.0);
        let error = testing::reward::<Number>("tolerance = -1").err().unwrap();
        insta::assert_snapshot!(error, @"`tolerance` is -1 (it must be finite and 0 or more)");
    }

    #[test]
    fn a_truncated_completion_earns_nothing() {
        let fixture = RolloutFixture::new(&["4"]).truncated(&[true]);
        assert_eq!(fixture.score(&mut testing::reward::<Number>("").unwrap()).unwrap().rewards, [0.0]);
    }
}
