//! A reward for right answers that are short.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// A right answer earns 1 minus a price per token, at least 0.1; other answers earn 0.
///
/// The fields are the keys of its table in a config.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Brevity {
    /// Price of a token, reward units.
    #[serde(default = "price")]
    price: f32,
    /// The answer is the text after the last separator.
    #[serde(default = "answer_separator")]
    answer_separator: String,
}

fn price() -> f32 {
    0.01
}

fn answer_separator() -> String {
    "=".into()
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

register!(
    Reward,
    Brevity,
    "plugin-name.reward",
    "1 for a right answer, minus a price per token",
    {
        price = price() => "what a token costs, reward units",
        answer_separator = answer_separator() => "the answer is the text after the last one of these",
    }
);

#[cfg(test)]
mod tests;
