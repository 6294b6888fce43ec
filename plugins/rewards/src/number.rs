//! The reward `number`: 1 for the right number, compared exactly.

use std::sync::LazyLock;

use ::regex::Regex;
use capo_plugin::Completion;
use capo_plugin::prelude::*;

use crate::math::Rational;

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
            None => {
                let boxed = text
                    .rsplit_once("\\boxed{")
                    .map(|(_, inside)| inside.split_once('}').map_or(inside, |(inside, _)| inside));
                numbers(boxed.unwrap_or(text)).last()?
            }
        }
    }
}

/// Digits with thousands separators, a fraction, an exponent, or a whole denominator.
static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?:/\d+)?").expect("the pattern is a constant")
});

/// The numbers of a text in order; `None` for a number that is too long to be an answer, or divided by 0.
fn numbers(text: &str) -> impl DoubleEndedIterator<Item = Option<Rational>> {
    let text = text.replace("{,}", ",").replace("\\,", "").replace("\\!", "");
    let found: Vec<String> =
        NUMBER.find_iter(&text).flat_map(|found| separate(&text[..found.start()], found.as_str())).collect();
    found.into_iter().map(|number| value(&number))
}

/// One number after `before`, or several if its commas do not separate thousands.
fn separate(before: &str, number: &str) -> Vec<String> {
    let bare = before.trim_end_matches(['$', '€', '£', '\\', ' ']);
    let unsigned = bare.strip_suffix(['-', '−']);
    let minus = unsigned.is_some_and(|before| !before.trim_end().ends_with(|c: char| c.is_alphanumeric() || c == ')'));
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
    groups.iter().enumerate().map(|(i, group)| format!("{group}{}", if i == last { rest } else { "" })).collect()
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
