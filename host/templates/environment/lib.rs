//! A game: the model guesses a number.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use capo_plugin::prelude::*;

/// A game: the model guesses a number.
///
/// It answers each guess with `+` if the number is larger, and with `=` if it is smaller:
/// characters that the embedded model knows. The right guess earns 1 and ends the episode. The
/// fields with `#[key]` are the keys of its table in a config; the others are its state.
#[component(Environment, id = "plugin-name.environment")]
struct Guess {
    /// The largest number.
    #[key(default = 100, at_least = 1)]
    most: u64,
    /// The number of each episode.
    numbers: HashMap<u64, u64>,
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

#[cfg(test)]
mod tests;
