//! Rewards of completions: a weighted sum of reward components.

mod reward_model;
mod seen;

pub use reward_model::RewardModel;

use std::ops::Range;

use anyhow::{Result, bail, ensure};
use capo_loader::registry::Registry;
use capo_loader::watchdog::Watchdog;
use capo_loader::{ComponentConfig, component_names};
use capo_plugin::{RewardHandle, Rollout, Sink};
use serde::Serialize;
use toml::{Table, Value};

/// Id of the reward that reads the environment's.
pub const OF_ENVIRONMENT: &str = "environment";

/// One `[[reward]]` table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RewardConfig {
    #[serde(rename = "use")]
    pub id: String,
    /// Finite factor of the reward in the sum (TRL: an entry of `reward_weights`).
    pub weight: f64,
    /// All other keys, which the component reads.
    #[serde(flatten)]
    pub table: Table,
}

impl RewardConfig {
    /// The reward `exact_match` with its default settings.
    pub fn exact_match() -> Self {
        Self {
            id: "exact_match".into(),
            weight: 1.0,
            table: Table::new(),
        }
    }

    /// Name of the model that a reward reads; `None` for a reward that reads no model.
    pub fn model_name(&self) -> Option<&str> {
        self.table
            .get("model_name_or_path")
            .filter(|_| self.id == RewardModel::ID)?
            .as_str()
    }

    /// Mutable name of the model that a reward reads; `None` for a reward that reads no model.
    pub fn model_name_or_path(&mut self) -> Option<&mut String> {
        let name = self
            .table
            .get_mut("model_name_or_path")
            .filter(|_| self.id == RewardModel::ID)?;
        if let Value::String(name) = name {
            Some(name)
        } else {
            None
        }
    }
}

/// True for the built-in rewards that compare an answer with the dataset's. Every row must then
/// have an answer. A plugin's reward reports a missing answer by itself.
pub fn reads_answer(id: &str) -> bool {
    ["exact_match", "number", "math"].contains(&id)
}

/// Names of the rewards in reports: `ID`, or `ID#2` for the second use of a component.
pub fn names(configs: &[RewardConfig]) -> Vec<String> {
    let mut components = Vec::new();
    for config in configs {
        components.push(ComponentConfig {
            id: config.id.clone(),
            table: Table::new(),
        });
    }
    component_names(&components)
}

/// The rewards of B completions, reward units.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// `[B]`: the weighted sum over reward components.
    pub total: Vec<f32>,
    /// `[B]` for each component: its name and its own rewards before weighting.
    pub per_reward: Vec<(String, Vec<f32>)>,
}

impl Scored {
    /// The rewards of the completions `rows` only.
    pub fn part(&self, rows: Range<usize>) -> Self {
        let per_reward = self
            .per_reward
            .iter()
            .map(|(id, rewards)| (id.clone(), rewards[rows.clone()].to_vec()));
        Self {
            total: self.total[rows.clone()].to_vec(),
            per_reward: per_reward.collect(),
        }
    }

    /// True if the completions' rewards differ, so that an advantage can be computed from them.
    ///
    /// Usually the sums must differ. An advantage estimator that sees `each` reward also uses a
    /// difference that cancels in the sum; rewards of weight 0 do not count.
    pub fn differ(&self, configs: &[RewardConfig], each: bool) -> bool {
        let mut parts = self.per_reward.iter().zip(configs);
        differ(&self.total)
            || each && parts.any(|((_, rewards), config)| config.weight != 0.0 && differ(rewards))
    }

    /// Appends the rewards of more completions, by the same components.
    pub fn append(&mut self, more: Self) {
        self.total.extend(more.total);
        if self.per_reward.is_empty() {
            self.per_reward = more.per_reward;
            return;
        }
        for ((_, rewards), (_, more)) in self.per_reward.iter_mut().zip(more.per_reward) {
            rewards.extend(more);
        }
    }
}

fn differ(rewards: &[f32]) -> bool {
    rewards.iter().any(|reward| *reward != rewards[0])
}

/// The reward components of a run, in the order of their tables.
pub struct Rewards {
    components: Vec<Weighted>,
}

/// A reward component with its factor in the sum.
struct Weighted {
    component: RewardHandle,
    weight: f64,
    /// True for a model that scores texts. It reads a whole episode, as the chat template writes
    /// it; other rewards read the last turn.
    reads_all: bool,
}

impl Rewards {
    /// Checks the tables and builds their components. A model that scores texts runs on `device`,
    /// unless its table names another device.
    pub fn build(
        registry: &Registry,
        configs: &[RewardConfig],
        device: &str,
        watchdog: &Watchdog,
    ) -> Result<Self> {
        let mut components = Vec::new();
        for (config, name) in configs.iter().zip(names(configs)) {
            let id = &config.id;
            let weight = config.weight;
            ensure!(
                weight.is_finite(),
                "`weight` of reward `{id}` is {weight}, expected a finite number"
            );
            let mut table = config.table.clone();
            if id == RewardModel::ID {
                table.entry("device").or_insert_with(|| device.into());
            }
            let component = ComponentConfig {
                id: id.clone(),
                table,
            };
            let component = registry.create(&component, watchdog)?.renamed(&name);
            components.push(Weighted {
                component,
                weight,
                reads_all: id == RewardModel::ID,
            });
        }
        Ok(Rewards { components })
    }

    /// Computes the rewards of a rollout's completions. `episodes` holds the whole text of each
    /// episode; it is empty without an environment.
    pub fn score(
        &mut self,
        sink: &mut dyn Sink,
        rollout: &Rollout<'_>,
        episodes: &[&str],
    ) -> Result<Scored> {
        let count = rollout.completions.len();
        let mut total = vec![0f32; count];
        let mut per_reward = Vec::with_capacity(self.components.len());
        let mut whole = rollout.clone();
        for (view, episode) in whole.completions.iter_mut().zip(episodes) {
            view.text = episode;
        }
        for Weighted {
            component,
            weight,
            reads_all,
        } in &mut self.components
        {
            let mut rewards = vec![0f32; count];
            component.score(
                sink,
                if *reads_all { &whole } else { rollout },
                &mut rewards,
            )?;
            for (sum, reward) in total.iter_mut().zip(&rewards) {
                *sum += (*weight * f64::from(*reward)) as f32;
            }
            per_reward.push((component.id().to_owned(), rewards));
        }
        if let Some((completion, sum)) = total.iter().enumerate().find(|(_, sum)| !sum.is_finite())
        {
            bail!(
                "the weighted sum of rewards is {sum} at completion {completion} (lower a `weight`)"
            );
        }
        Ok(Scored { total, per_reward })
    }

    pub fn components(&self) -> impl Iterator<Item = &RewardHandle> {
        self.components.iter().map(|weighted| &weighted.component)
    }

    pub fn components_mut(&mut self) -> impl Iterator<Item = &mut RewardHandle> {
        self.components
            .iter_mut()
            .map(|weighted| &mut weighted.component)
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::{Records, RolloutFixture};
    use host_data::Preset;
    use host_model::device::CPU;

    use super::*;

    fn exact_match(weight: f64) -> RewardConfig {
        RewardConfig {
            weight,
            ..RewardConfig::exact_match()
        }
    }

    fn build(tables: &[RewardConfig]) -> Result<Rewards> {
        Rewards::build(&Registry::open(&[]).unwrap(), tables, CPU, &Watchdog::off())
    }

    #[test]
    fn a_second_use_of_a_component_has_another_name() {
        let table = toml::toml! { answer_separator = "" };
        let whole = RewardConfig {
            table,
            ..exact_match(0.5)
        };
        let fixture = RolloutFixture::new(&["1+3=4", "4"]);
        let mut rewards = build(&[exact_match(1.0), whole]).unwrap();
        let scored = rewards
            .score(&mut Records::default(), &fixture.rollout(), &[])
            .unwrap();
        assert_eq!(scored.total, [1.0, 1.5]);
        let names: Vec<&str> = scored
            .per_reward
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(
            (names, scored.per_reward[1].1.as_slice()),
            (vec!["exact_match", "exact_match#2"], &[0.0, 1.0][..])
        );
    }

    #[test]
    fn the_reward_of_verl_data_reads_the_line_after_answer() {
        let reward = RewardConfig {
            id: Preset::Verl.reward().into(),
            ..exact_match(1.0)
        };
        let texts = ["We add.\nAnswer: 58", "We add.\nAnswer: 57", "We add 58."];
        let fixture = RolloutFixture::new(&texts).answers(&["58"; 3]);
        let scored = build(&[reward])
            .unwrap()
            .score(&mut Records::default(), &fixture.rollout(), &[])
            .unwrap();
        assert_eq!(scored.total, [1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_difference_that_cancels_in_the_sum_counts_with_each_reward() {
        let two = [exact_match(1.0), exact_match(1.0)];
        let of = |a: [f32; 2], b: [f32; 2]| Scored {
            total: vec![a[0] + b[0], a[1] + b[1]],
            per_reward: [a, b]
                .map(|rewards| (String::new(), rewards.to_vec()))
                .into(),
        };
        let seen = |scored: Scored, configs: &[RewardConfig]| {
            [false, true].map(|each| scored.differ(configs, each))
        };
        assert_eq!(seen(of([1.0, 0.0], [0.0, 1.0]), &two), [false, true]);
        assert_eq!(seen(of([1.0, 1.0], [0.0, 0.0]), &two), [false, false]);
        assert_eq!(seen(of([1.0, 0.0], [0.0, 0.0]), &two), [true, true]);
        let unweighted = [exact_match(0.0), exact_match(0.0)];
        assert_eq!(
            seen(of([1.0, 0.0], [0.0, 1.0]), &unweighted),
            [false, false]
        );
    }

    #[test]
    fn weights_only_the_totals() {
        let fixture = RolloutFixture::new(&["1+3=4", "0=0", "4"]);
        let score = |weight: f64| {
            build(&[exact_match(weight)]).unwrap().score(
                &mut Records::default(),
                &fixture.rollout(),
                &[],
            )
        };
        let scored = score(2.5).unwrap();
        assert_eq!(scored.total, [2.5, 0.0, 2.5]);
        assert_eq!(
            scored.per_reward,
            [("exact_match".to_string(), vec![1.0, 0.0, 1.0])]
        );
        assert_eq!(
            score(1e39).unwrap_err().to_string(),
            "the weighted sum of rewards is inf at completion 0 (lower a `weight`)"
        );
    }
}
