//! The reward `math`: 1 if a completion's answer has the meaning of the dataset's answer.
//!
//! TRL has `accuracy_reward`, and open-r1 had its predecessor, both with Hugging Face's
//! `math-verify`.

use capo_plugin::prelude::*;
use math_answer::{Answer, Places};

/// 1 where a completion's answer says mathematically what the dataset's says.
#[component(Reward, id = "math")]
struct Math {
    /// Accept only `\boxed{}`, a formula behind `answer is` (both as TRL), a line `Answer: 5` and a
    /// last line `#### 5`; false: also the last formula or number.
    #[key(default = true)]
    anchored: bool,
}

impl Reward for Math {
    fn score(
        &mut self,
        _: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        let places = if self.anchored {
            Places::Anchored
        } else {
            Places::Any
        };
        let mut rewards = rewards.iter_mut();
        // A group shares one prompt and therefore one answer.
        for group in rollout
            .completions
            .chunk_by(|one, next| one.answer == next.answer)
        {
            let gold = Answer::gold(group[0].answer);
            for (completion, reward) in group.iter().zip(rewards.by_ref()) {
                let answer = Answer::find(completion.text, places);
                let right = answer.is_some_and(|answer| answer.matches(&gold));
                *reward = f32::from(u8::from(right));
            }
        }
        Ok(())
    }
}
