//! Summary of a run in one row.

use capo_loader::component_names;
use serde::Serialize;

use super::FoundRun;
use crate::metrics::FoundRates;
use crate::metrics::names::FOUND_RATE;
use crate::terminal::{percent, words};
use crate::warnings::Settings;

/// Number of steps at either end of a run whose mean reward is told.
pub const REWARDS: usize = 10;

/// A run in one row. Unknown values are absent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the run's directory, without its parents.
    pub name: String,
    /// `running`, `finished` or `stopped`.
    pub status: &'static str,
    /// Number of optimizer steps done.
    pub step: u64,
    /// Number of optimizer steps of the whole run.
    pub max_steps: Option<u64>,
    /// Recipe that chose the components.
    pub recipe: Option<String>,
    /// Model that the run trains.
    pub model: Option<String>,
    /// Training data of the run.
    pub data: Option<String>,
    /// Seed, `train.seed`.
    pub seed: Option<u64>,
    /// Learning rate, `train.learning_rate`.
    pub learning_rate: Option<f64>,
    /// Learning rate that a step control found: the median over the steps.
    pub found_rate: Option<f64>,
    /// Ids of the run's masks, weights and step controls.
    pub components: Vec<String>,
    /// The newest held-out accuracy.
    pub accuracy: Option<f64>,
    /// The best held-out accuracy.
    pub best_accuracy: Option<f64>,
    /// The step after which the best accuracy was measured.
    pub best_step: Option<u64>,
    /// The newest mean reward of held-out prompts.
    pub held_out_reward: Option<f64>,
    /// Mean reward of the last [`REWARDS`] steps: one step's is noise.
    pub reward: Option<f64>,
    /// Rejected tokens ÷ completion tokens, of the whole run; absent without a mask.
    pub rejected: Option<f64>,
    /// Number of prompt and completion tokens so far.
    pub num_tokens: Option<f64>,
    /// Training time, in seconds.
    pub seconds: f64,
    /// Messages to the user about damaged parts.
    pub remarks: Vec<String>,
}

impl Summary {
    /// The newest quality of answers to held-out prompts: the share of right ones, else the mean
    /// reward.
    pub fn held_out(&self) -> Option<String> {
        self.accuracy
            .map(percent)
            .or_else(|| self.held_out_reward.map(|reward| format!("{reward:.3}")))
    }

    /// The learning rate that a step control found, in words.
    pub fn found_rate(&self) -> Option<String> {
        Some(words::found_rate(self.found_rate?, self.learning_rate?))
    }

    pub fn of(run: &FoundRun) -> Self {
        let step = run.lines.steps.last().copied().unwrap_or(0);
        let max_steps = run.whole("train.max_steps");
        let status = match max_steps {
            _ if run.at_work => "running",
            Some(max_steps) if step >= max_steps => "finished",
            _ => "stopped",
        };
        let Settings {
            mask,
            weight,
            step_control,
            ..
        } = &run.checked;
        let accuracies = run.lines.column("eval_accuracy");
        // The first of equally good values.
        let best = accuracies
            .numbers()
            .fold(None, |best: Option<(usize, f64)>, found| {
                best.filter(|best| best.1 >= found.1).or(Some(found))
            });
        let controls = component_names(step_control);
        let found_rate = controls.iter().map(|name| {
            let column = run.lines.column(&format!("{name}/{FOUND_RATE}"));
            FoundRates::of(column.numbers().map(|(_, rate)| rate))
        });
        Self {
            name: run.name.clone(),
            status,
            step,
            max_steps,
            recipe: run.setting("recipe"),
            model: run.setting("model.model_name_or_path"),
            data: run.setting("data.dataset_name"),
            seed: run.whole("train.seed"),
            learning_rate: run
                .settings
                .get("train.learning_rate")
                .and_then(|value| value.parse().ok()),
            found_rate: found_rate.flatten().next().map(|rates| rates.middle),
            components: [mask, weight, step_control]
                .into_iter()
                .flatten()
                .map(|one| one.id.clone())
                .collect(),
            accuracy: accuracies.numbers().next_back().map(|(_, value)| value),
            best_accuracy: best.map(|(_, value)| value),
            best_step: best.map(|(row, _)| run.lines.steps[row]),
            held_out_reward: run.lines.column("eval_reward").last(),
            reward: run
                .lines
                .column("reward")
                .ends(REWARDS)
                .map(|(_, last)| last),
            rejected: run
                .lines
                .column("mask/rejected_so_far")
                .last()
                .filter(|_| !mask.is_empty()),
            num_tokens: run.lines.column("num_tokens").last(),
            seconds: run.lines.running_sum("step_time").pop().unwrap_or(0.0),
            remarks: run.remarks.clone(),
        }
    }
}
