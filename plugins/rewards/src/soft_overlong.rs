//! The reward `soft_overlong`: a penalty that grows over the last tokens before the length limit.
//!
//! Yu et al., *DAPO: An Open-Source LLM Reinforcement Learning System at Scale*, arXiv 2503.14476,
//! equation 13; TRL, `get_soft_overlong_punishment`.

use capo_plugin::prelude::*;

/// 0 down to -1 over the last tokens before the length limit.
#[component(Reward, id = "soft_overlong")]
struct SoftOverlong {
    /// Longer completions get -1, tokens; when absent the run's `max_completion_length`.
    #[key]
    max_completion_len: Option<usize>,
    /// Tokens before the limit over which the penalty grows; at most all of them.
    #[key]
    soft_punish_cache: usize,
}

impl SoftOverlong {
    /// Penalty: 0 up to `longest - cache` tokens, −1 above `longest`, and linear in between.
    fn penalty(&self, longest: usize, length: usize) -> f32 {
        // A benchmark's limit may be shorter than the run's.
        let cache = self.soft_punish_cache.min(longest);
        let free = longest - cache;
        match length {
            _ if length > longest => -1.0,
            _ if length <= free => 0.0,
            _ => ((free as f64 - length as f64) / cache as f64) as f32,
        }
    }
}

impl Reward for SoftOverlong {
    fn score(
        &mut self,
        _: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        let longest = self
            .max_completion_len
            .unwrap_or(rollout.max_completion_length);
        crate::each(rollout, rewards, |completion| {
            self.penalty(longest, completion.ids.len())
        });
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        match self.max_completion_len {
            Some(longest) if self.soft_punish_cache > longest => Err(PluginError::config(format!(
                "`soft_punish_cache` is {}, above `max_completion_len`, {longest} (take fewer \
                 tokens)",
                self.soft_punish_cache
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, RolloutFixture};

    use super::*;

    #[test]
    fn defaults_to_the_limit_of_the_run() {
        let fixture = RolloutFixture::new(&["12345678", "1234567890"]);
        let mut reward = testing::reward::<SoftOverlong>("soft_punish_cache = 4").unwrap();
        assert_eq!(fixture.score(&mut reward).unwrap().rewards, [-0.5, -1.0]);
        let mut reward =
            testing::reward::<SoftOverlong>("soft_punish_cache = 4\nmax_completion_len = 9")
                .unwrap();
        assert_eq!(fixture.score(&mut reward).unwrap().rewards, [-0.75, -1.0]);
    }

    #[test]
    fn refuses_a_cache_beyond_the_limit() {
        let error =
            testing::reward::<SoftOverlong>("soft_punish_cache = 10\nmax_completion_len = 9")
                .err()
                .unwrap();
        insta::assert_snapshot!(error, @"`soft_punish_cache` is 10, above `max_completion_len`, 9 (take fewer tokens)");
    }

    #[test]
    fn cuts_the_cache_to_the_limit_of_a_run() {
        let fixture = RolloutFixture::new(&["1", "12345678", "1234567890"]);
        let mut reward = testing::reward::<SoftOverlong>("soft_punish_cache = 512").unwrap();
        assert_eq!(
            fixture.score(&mut reward).unwrap().rewards,
            [-0.1, -0.8, -1.0]
        );
    }
}
