//! A game: the model guesses a number.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use capo_plugin::prelude::*;

/// Answers each guess with `+` if the number is larger, and with `=` if it is smaller: characters
/// that the embedded model knows. The right guess earns 1 and ends the episode.
///
/// The fields are the keys of its table in a config.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Guess {
    /// The largest number.
    #[serde(default = "most")]
    most: u64,
    /// The number of each episode.
    #[serde(skip)]
    numbers: HashMap<u64, u64>,
}

fn most() -> u64 {
    100
}

impl Environment for Guess {
    fn begin(&mut self, _ctx: &mut Ctx, episodes: &Episodes) -> Result<Vec<String>, PluginError> {
        // Episodes never outlive a rollout.
        self.numbers.clear();
        for episode in &episodes.episodes {
            self.numbers
                .insert(episode.number, 1 + episode.seed % self.most);
        }
        // Nothing follows the prompts of the dataset.
        Ok(vec![String::new(); episodes.episodes.len()])
    }

    fn respond(&mut self, _ctx: &mut Ctx, turns: &[Turn]) -> Result<Vec<Observation>, PluginError> {
        Ok(turns.iter().map(|turn| self.observe(turn)).collect())
    }

    fn validate(&self) -> Result<(), PluginError> {
        if self.most == 0 {
            return Err(PluginError::config("`most` is 0 (it must be at least 1)"));
        }
        Ok(())
    }
}

impl Guess {
    fn observe(&self, turn: &Turn) -> Observation {
        let Some(number) = self.numbers.get(&turn.episode) else {
            return Observation::of(turn).end();
        };
        let is_digit = |c: char| c.is_ascii_digit();
        let guess = turn
            .text
            .rsplit(|c| !is_digit(c))
            .find(|digits| !digits.is_empty());
        match guess.and_then(|digits| digits.parse::<u64>().ok()) {
            None => Observation::of(turn).say(" "),
            Some(guess) if guess == *number => Observation::of(turn).reward(1.0).end(),
            Some(guess) => {
                let hint = if guess < *number { "+" } else { "=" };
                let distance = guess.abs_diff(*number) as f64;
                Observation::of(turn).say(hint).metric("distance", distance)
            }
        }
    }
}

register!(
    Environment,
    Guess,
    "plugin-name.environment",
    "a game: the model guesses a number",
    {
        most = most() => "the largest number",
    }
);

#[cfg(test)]
mod tests;
