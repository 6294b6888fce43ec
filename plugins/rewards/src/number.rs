//! The reward `number`: 1 for the right number, compared exactly.

use capo_plugin::Completion;
use capo_plugin::prelude::*;
use math_answer::number;

/// 1 where a completion's number is the dataset's, else 0.
#[component(Reward, id = "number")]
struct Number {
    /// The number is the first behind the last one of these; where there is none, the one in the
    /// last `\boxed{}`, else behind `answer is`, else the last of the text.
    #[key(default = "####")]
    answer_separator: String,
    /// Largest difference that counts as right.
    #[key(default = 0.0, at_least = 0)]
    tolerance: f64,
}

impl Number {
    /// 1.0 if the completion ended by itself with the right number, else 0.0.
    fn reward(&self, completion: &Completion<'_>) -> f32 {
        let separator = &self.answer_separator;
        let answer = number::find(completion.text, separator);
        let gold = number::gold(completion.answer, separator);
        let right = answer
            .zip(gold)
            .is_some_and(|(answer, gold)| answer.is_within(&gold, self.tolerance));
        f32::from(u8::from(right && !completion.truncated))
    }
}

impl Reward for Number {
    fn score(
        &mut self,
        _: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        crate::each(rollout, rewards, |completion| self.reward(completion));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, RolloutFixture};

    use super::*;

    fn reward(table: &str, text: &str, answer: &str) -> f32 {
        let fixture = RolloutFixture::new(&[text]).answers(&[answer]);
        fixture
            .score(&mut testing::reward::<Number>(table).unwrap())
            .unwrap()
            .rewards[0]
    }

    #[test]
    fn the_separator_is_a_setting() {
        let text = "A: 2, that is 3";
        assert_eq!(reward("answer_separator = \"A:\"", text, "2"), 1.0);
        let text = "#### 2, that is 3";
        assert_eq!(reward("", text, "2"), 1.0);
        assert_eq!(reward("answer_separator = \"\"", text, "3"), 1.0);
    }

    #[test]
    fn tolerates_a_difference() {
        assert_eq!(reward("tolerance = 0.01", "3.14", "3.15"), 1.0);
        assert_eq!(reward("tolerance = 0.01", "3.14", "3.1500001"), 0.0);
        let error = testing::reward::<Number>("tolerance = -1").err().unwrap();
        insta::assert_snapshot!(error, @"`tolerance` is -1 (it must be finite, 0 or more)");
    }

    #[test]
    fn truncated_completions_earn_nothing() {
        let fixture = RolloutFixture::new(&["4"]).truncated(&[true]);
        assert_eq!(
            fixture
                .score(&mut testing::reward::<Number>("").unwrap())
                .unwrap()
                .rewards,
            [0.0]
        );
    }
}
