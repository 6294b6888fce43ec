//! Rewards of completions: a weighted sum of built-in reward functions.

mod exact_match;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::data::Example;
use exact_match::ExactMatch;

/// Every name that `use` accepts.
const NAMES: [&str; 1] = [ExactMatch::NAME];

/// One `[[reward]]` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardConfig {
    /// The reward function: `exact_match`.
    #[serde(rename = "use")]
    pub name: String,
    /// The factor before summing (TRL: an entry of `reward_weights`); finite.
    #[serde(default = "default_weight")]
    pub weight: f64,
    /// The answer is the text after the last one of these; empty compares whole texts.
    #[serde(default = "default_separator")]
    pub answer_separator: String,
}

impl RewardConfig {
    /// `exact_match` with its default settings.
    #[must_use]
    pub fn exact_match() -> Self {
        Self { name: ExactMatch::NAME.into(), weight: default_weight(), answer_separator: default_separator() }
    }
}

fn default_weight() -> f64 {
    1.0
}

fn default_separator() -> String {
    "=".into()
}

/// A sampled completion as reward functions see it.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// Its text without special tokens.
    pub text: &'a str,
    /// Whether it reached the length limit before an end token.
    pub truncated: bool,
}

/// The rewards of B completions, reward units.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// `[B]`, the weighted sum over reward functions.
    pub total: Vec<f32>,
    /// Each function's name and its own rewards before weighting, `[B]`.
    pub per_reward: Vec<(String, Vec<f32>)>,
}

/// The reward functions of a run, in the order of their tables.
#[derive(Clone, Debug)]
pub struct Rewards {
    functions: Vec<(ExactMatch, f64)>,
}

impl Rewards {
    /// Checks the tables and makes their functions.
    ///
    /// Errors: no table, an unknown name, a name used twice, a weight that is not finite.
    pub fn build(configs: &[RewardConfig]) -> Result<Self> {
        ensure!(
            !configs.is_empty(),
            "no reward is given (add a `[[reward]]` table with `use = \"{}\"`)",
            ExactMatch::NAME
        );
        let mut functions = Vec::new();
        for (index, config) in configs.iter().enumerate() {
            let name = &config.name;
            if !NAMES.contains(&name.as_str()) {
                let hint = capo_plugin::nearest(name, NAMES).map_or_else(
                    || format!("known: `{}`", NAMES.join("`, `")),
                    |near| format!("did you mean `{near}`?"),
                );
                bail!("unknown reward `{name}` ({hint})");
            }
            ensure!(
                configs[..index].iter().all(|other| other.name != *name),
                "reward `{name}` is given twice (keep one `[[reward]]` table)"
            );
            ensure!(
                config.weight.is_finite(),
                "`weight` of reward `{name}` is {}, expected a finite number",
                config.weight
            );
            functions.push((ExactMatch::new(&config.answer_separator), config.weight));
        }
        Ok(Rewards { functions })
    }

    /// The rewards of `completions`, `[B]`, given the example that each one answers, `[B]`; other lengths are an error.
    pub fn score(&self, completions: &[Completion<'_>], examples: &[&Example]) -> Result<Scored> {
        let (found, expected) = (examples.len(), completions.len());
        ensure!(found == expected, "{found} examples for {expected} completions");
        let mut total = vec![0f32; completions.len()];
        let mut per_reward = Vec::with_capacity(self.functions.len());
        for (function, weight) in &self.functions {
            let rewards: Vec<f32> = completions
                .iter()
                .zip(examples)
                .map(|(completion, example)| function.reward(completion, example))
                .collect();
            for (sum, reward) in total.iter_mut().zip(&rewards) {
                *sum += (weight * f64::from(*reward)) as f32;
            }
            per_reward.push((ExactMatch::NAME.to_string(), rewards));
        }
        Ok(Scored { total, per_reward })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Columns, Dataset};

    fn config(text: &str) -> Result<RewardConfig, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn a_table_needs_only_its_name_and_refuses_unknown_keys() {
        let table = config("use = 'exact_match'").unwrap();
        assert_eq!((table.weight, table.answer_separator.as_str()), (1.0, "="));
        assert_eq!(config("use = 'exact_match'\nweight = 0.5\nanswer_separator = '####'").unwrap().weight, 0.5);
        assert!(config("use = 'exact_match'\nwieght = 2.0").unwrap_err().to_string().contains("wieght"));
    }

    #[test]
    fn bad_tables_are_named() {
        let table = |text: &str| config(text).unwrap();
        let error = |tables: &[RewardConfig]| Rewards::build(tables).unwrap_err().to_string();
        assert_eq!(error(&[]), "no reward is given (add a `[[reward]]` table with `use = \"exact_match\"`)");
        assert_eq!(
            error(&[table("use = 'exakt_match'")]),
            "unknown reward `exakt_match` (did you mean `exact_match`?)"
        );
        let good = table("use = 'exact_match'");
        assert!(error(&[good.clone(), good]).starts_with("reward `exact_match` is given twice"));
        assert!(
            error(&[table("use = 'exact_match'\nweight = inf")]).starts_with("`weight` of reward `exact_match` is inf")
        );
    }

    #[test]
    fn totals_are_weighted_and_parts_are_not() {
        let rewards = Rewards::build(&[config("use = 'exact_match'\nweight = 2.5").unwrap()]).unwrap();
        let example = Dataset::open("embedded:arithmetic", None, &Columns::default(), 0).unwrap().train(0);
        let right = Completion { text: example.target(), truncated: false };
        let wrong = Completion { text: "0=0", truncated: false };
        let scored = rewards.score(&[right, wrong, right], &[&example; 3]).unwrap();
        assert_eq!(scored.total, [2.5, 0.0, 2.5]);
        assert_eq!(scored.per_reward, [("exact_match".to_string(), vec![1.0, 0.0, 1.0])]);
        let error = rewards.score(&[right], &[&example; 3]).unwrap_err().to_string();
        assert_eq!(error, "3 examples for 1 completions");
    }
}
