//! A reward for right answers that are short.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// 1 minus a price per token for a right answer, at least 0.1; 0 for other answers.
///
/// The fields with `#[key]` are the keys of its table in a config.
#[component(Reward, id = "plugin-name.reward")]
struct Brevity {
    /// Price of a token, reward units.
    #[key(default = 0.01, at_least = 0)]
    price: f32,
    /// The answer is the text after the last separator.
    #[key(default = "=")]
    answer_separator: String,
}

impl Reward for Brevity {
    fn score(
        &mut self,
        ctx: &mut Ctx,
        rollout: &Rollout,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        let mut right = 0;
        for (reward, completion) in rewards.iter_mut().zip(&rollout.completions) {
            let answer = completion.text.rsplit(&self.answer_separator).next();
            if answer.map(str::trim) == Some(completion.answer) && !completion.truncated {
                *reward = (1.0 - self.price * completion.ids.len() as f32).max(0.1);
                right += 1;
            }
        }
        ctx.record("right", f64::from(right) / rewards.len() as f64);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
