//! A run: everything that the loop works with. `open` opens it, in a `directory` of its own; `checkpoint` keeps what lasts of it.

pub mod best;
pub mod checkpoint;
pub mod directory;
pub mod estimate;
mod lock;
pub mod moment;
mod open;
pub mod provenance;
mod records;
pub mod settings;
mod states;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use capo_loader::registry::Components;
use capo_loader::watchdog::Watchdog;
use capo_plugin::Inputs;
use serde::{Deserialize, Serialize};

use crate::benchmark::Benchmark;
use crate::config::Config;
use crate::data::{Dataset, Example, Tokenizer};
use crate::metrics::Metrics;
use crate::metrics::completions::Completions;
use crate::model::frozen::Reference;
use crate::model::{ModelFiles, Policy};
use crate::optim::Optimizer;
use crate::reward::Rewards;
use crate::schedule::Schedule;
use crate::stages::batch::StepInfo;
use crate::stages::score::{Needs, Work};
use best::Best;
use lock::Lock;
pub use lock::is_at_work;
use moment::Moment;
pub use open::AbsentWeights;
use records::Records;

/// The file that holds a run's settings, in its directory.
pub const CONFIG_FILE: &str = "config.toml";
/// The file of metrics, in a run's directory.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// How far a run has come: what a checkpoint says besides weights and components' state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Optimizer steps done, skipped ones included.
    pub step: u64,
    /// Training prompts consumed.
    pub prompts: u64,
    /// Prompt and completion tokens processed.
    pub num_tokens: u64,
    /// Completion tokens that reached the masks.
    pub completion_tokens: u64,
    /// Of those, rejected ones.
    pub rejected_tokens: u64,
    /// Steps without an update.
    pub skipped_steps: u64,
    /// Held-out accuracy before step 0.
    pub accuracy_before: Option<f64>,
    /// The newest held-out accuracy since.
    pub accuracy: Option<f64>,
    /// The mean reward of held-out prompts before step 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_reward_before: Option<f64>,
    /// The newest since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_reward: Option<f64>,
    /// The best evaluation, where a metric says which it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
}

impl Progress {
    /// The share of completion tokens so far that masks rejected.
    #[must_use]
    pub fn rejected_share(&self) -> f64 {
        self.rejected_tokens as f64 / self.completion_tokens.max(1) as f64
    }
}

/// A run, ready for its next step.
pub struct Run {
    /// Its settings.
    pub config: Config,
    /// Where it writes.
    pub dir: PathBuf,
    /// How far it has come.
    pub progress: Progress,
    /// The policy in training.
    pub policy: Policy,
    /// The model that the policy is compared with, where a component asked for it.
    pub reference: Option<Reference>,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// The model's own files, for what is copied along with its weights.
    pub model_files: ModelFiles,
    /// Training prompts.
    pub dataset: Dataset,
    /// Held-out prompts.
    pub held_out: Vec<Example>,
    /// Benchmarks that it is measured on.
    pub benchmarks: Vec<Benchmark>,
    /// What completions earn.
    pub rewards: Rewards,
    /// Advantage estimator, objective, masks, weights and step controls.
    pub components: Components,
    /// What they asked for.
    pub needs: Needs,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Its learning rate over time.
    pub schedule: Schedule,
    /// The current step's numbers.
    pub metrics: Metrics,
    /// Completions with their rewards, where the config asks for them.
    pub completions: Completions,
    /// How far both had come at each checkpoint.
    pub records: Records,
    /// The settings that a resume takes with others than before, in words.
    pub changed: Vec<String>,
    /// The last moment between two rollouts, while the run can still be saved as it was then.
    pub moment: Option<Moment>,
    /// Whether such a moment holds the components' states.
    pub remembers: bool,
    /// Held while the run is open; none before it has a directory.
    lock: Option<Lock>,
    /// Components' warnings already shown.
    pub warned: BTreeSet<String>,
    /// Ends the process where a component does not come back.
    pub watchdog: Watchdog,
    /// Where the batch of every step is written, if anywhere.
    pub dump: Option<PathBuf>,
}

impl Run {
    /// From now on writes the batch of every step to `dir`, last layer and rollout's context included.
    ///
    /// # Errors
    ///
    /// When the disk refuses.
    pub fn dump_batches(&mut self, dir: Option<&Path>) -> Result<()> {
        if let Some(dir) = dir {
            directory::ready_for_batches(dir, self.progress.step)?;
            self.needs = self.needs.with(Inputs::LAST_LAYER | Inputs::ROLLOUT_CONTEXT | Inputs::SAMPLER_TOP_K);
            self.dump = Some(dir.to_owned());
        }
        Ok(())
    }

    /// The settings of the coming step, on a rollout that has been used `iteration` times before.
    #[must_use]
    pub fn step_info(&self, iteration: u64) -> StepInfo {
        let learning_rate = self.schedule.learning_rate(self.progress.step);
        let optimizer = self.optimizer.info(learning_rate, self.config.train.max_grad_norm);
        StepInfo::new(&self.config, self.progress.step, iteration, self.components.objective.reduction(), optimizer)
    }

    /// Completions sampled so far.
    #[must_use]
    pub fn completions_sampled(&self) -> u64 {
        self.progress.prompts.saturating_mul(self.config.rollout.num_generations as u64)
    }

    /// Whether `train.max_completions` are sampled.
    #[must_use]
    pub fn has_its_completions(&self) -> bool {
        let most = self.config.train.max_completions;
        most > 0 && self.completions_sampled() >= most
    }

    /// How forward and backward passes are split.
    #[must_use]
    pub fn work(&self) -> Work {
        let train = &self.config.train;
        Work {
            micro_batch: train.per_device_train_batch_size,
            activation_budget: train.activation_budget.saturating_mul(1 << 20),
            loss_temperature: train.loss_temperature,
        }
    }
}
