//! The reward `exact_match`: 1 for the right answer, 0 otherwise.

use capo_plugin::Completion;
use capo_plugin::prelude::*;
use math_answer::without_thoughts;

/// 1 where a completion ends with the dataset's answer, else 0.
#[component(Reward, id = "exact_match")]
struct ExactMatch {
    /// The answer is the text after the last one of these; the whole text where there is none.
    #[key(default = "=")]
    answer_separator: String,
}

impl Reward for ExactMatch {
    fn score(
        &mut self,
        _ctx: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        crate::each(rollout, rewards, |completion| self.reward(completion));
        Ok(())
    }
}

impl ExactMatch {
    /// 1.0 if the completion ended by itself and its answer equals the dataset's, else 0.0.
    ///
    /// The answer of a completion is looked for outside of its thoughts. The answer of a text is
    /// the trimmed text after its last separator, or the whole text if it has no separator. The
    /// dataset's answer is read in the same way, so a whole worked solution (as in GSM8K, separator
    /// `####`) works too.
    fn reward(&self, completion: &Completion<'_>) -> f32 {
        let said = without_thoughts(completion.text);
        let right = self.answer(&said) == self.answer(completion.answer);
        f32::from(u8::from(right && !completion.truncated))
    }

    fn answer<'a>(&self, text: &'a str) -> &'a str {
        let answer = match self.answer_separator.as_str() {
            "" => text,
            separator => text.rsplit(separator).next().unwrap_or(text),
        };
        answer.trim()
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, RolloutFixture};

    use super::*;

    fn reward(separator: &str, text: &str, answer: &str, truncated: bool) -> f32 {
        let fixture = RolloutFixture::new(&[text])
            .answers(&[answer])
            .truncated(&[truncated]);
        let table = format!("answer_separator = \"{separator}\"");
        fixture
            .score(&mut testing::reward::<ExactMatch>(&table).unwrap())
            .unwrap()
            .rewards[0]
    }

    #[test]
    fn the_text_after_the_last_separator_counts() {
        let worked = "1 + 1 = 2\n#### 2";
        let cases = [
            ("=", "10 12 14=1420", "1420", 1.0),
            ("=", "1=2= 1420 ", "1420", 1.0),
            ("=", "1420=1421", "1420", 0.0),
            ("=", "10 12 14=", "1420", 0.0),
            ("=", "10 12 14=01420", "1420", 0.0),
            // Without a separator the whole completion counts.
            ("=", " 1420", "1420", 1.0),
            ("=", "10 12 14 1420", "1420", 0.0),
            ("", "14=20", "14=20", 1.0),
            ("", "x=1420", "1420", 0.0),
            // What stands in thoughts is not the answer.
            ("=", "<think>so x=1421</think>1420", "1420", 1.0),
            ("=", "<think>so x=1420</think>\n1421", "1420", 0.0),
            ("####", "so #### 1421</think>\n1420", "#### 1420", 1.0),
            // The dataset's answer may be a worked solution.
            ("####", "so 2\n#### 2", worked, 1.0),
            ("####", "so 3\n#### 3", worked, 0.0),
        ];
        for (separator, text, answer, expected) in cases {
            assert_eq!(
                reward(separator, text, answer, false),
                expected,
                "{text:?} after {separator:?}"
            );
        }
        assert_eq!(
            reward("=", "10 12 14=1420", "1420", true),
            0.0,
            "it is truncated"
        );
    }
}
