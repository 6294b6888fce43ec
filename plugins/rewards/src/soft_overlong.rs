//! The reward `soft_overlong`: a penalty that grows over the last tokens before the length limit.
//!
//! Yu et al., *DAPO: An Open-Source LLM Reinforcement Learning System at Scale*, arXiv 2503.14476, equation 13; TRL,
//! `get_soft_overlong_punishment`.

use capo_plugin::prelude::*;

/// Lengths in tokens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SoftOverlong {
    max_completion_len: Option<usize>,
    soft_punish_cache: usize,
}

impl SoftOverlong {
    /// Penalty: 0 up to `longest - cache` tokens, −1 above `longest`, and linear in between.
    fn penalty(&self, longest: usize, length: usize) -> f32 {
        let free = longest.saturating_sub(self.soft_punish_cache);
        match length {
            _ if length > longest => -1.0,
            _ if length <= free => 0.0,
            _ => ((free as f64 - length as f64) / self.soft_punish_cache as f64) as f32,
        }
    }

    /// With a longer cache the penalty would not reach −1.
    fn too_long(&self, limit: &str, longest: usize) -> PluginError {
        let cache = self.soft_punish_cache;
        PluginError::config(format!("`soft_punish_cache` is {cache}, above {limit}, {longest} (take fewer tokens)"))
    }
}

impl Reward for SoftOverlong {
    fn score(&mut self, _: &mut Ctx<'_>, rollout: &Rollout<'_>, rewards: &mut [f32]) -> Result<(), PluginError> {
        let longest = self.max_completion_len.unwrap_or(rollout.max_completion_length);
        // With no limit at all there is nothing to punish.
        if longest > 0 && self.soft_punish_cache > longest {
            return Err(self.too_long("the run's `max_completion_length`", longest));
        }
        crate::each(rollout, rewards, |completion| self.penalty(longest, completion.ids.len()));
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        match self.max_completion_len {
            Some(longest) if self.soft_punish_cache > longest => Err(self.too_long("`max_completion_len`", longest)),
            _ => Ok(()),
        }
    }
}

register!(Reward, SoftOverlong, "soft_overlong", "0 down to -1 over the last tokens before the length limit", {
    max_completion_len = None::<usize> => "longer completions get -1, tokens; absent: the run's `max_completion_length`",
    soft_punish_cache => "tokens before it over which the penalty grows",
});

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{self, RolloutFixture};

    use super::*;

    #[test]
    fn the_limit_of_the_run_is_the_default() {
        let fixture = RolloutFixture::new(&["12345678", "1234567890"]);
        let mut reward = testing::reward::<SoftOverlong>("soft_punish_cache = 4").unwrap();
        assert_eq!(fixture.score(&mut reward).unwrap().rewards, [-0.5, -1.0]);
        let mut reward = testing::reward::<SoftOverlong>("soft_punish_cache = 4\nmax_completion_len = 9").unwrap();
        assert_eq!(fixture.score(&mut reward).unwrap().rewards, [-0.75, -1.0]);
    }

    #[test]
    fn a_cache_beyond_the_limit_is_refused() {
        let error = testing::reward::<SoftOverlong>("soft_punish_cache = 10\nmax_completion_len = 9").err().unwrap();
        insta::assert_snapshot!(error, @"`soft_punish_cache` is 10, above `max_completion_len`, 9 (take fewer tokens)");
        let mut reward = testing::reward::<SoftOverlong>("soft_punish_cache = 10").unwrap();
        let error = RolloutFixture::new(&["12345678"]).score(&mut reward).err().unwrap().to_string();
        assert!(error.contains("above the run's `max_completion_length`, "), "{error}");
    }
}
