//! A run: everything that the loop works with. `open` opens it, in a `directory` of its own; `checkpoint` keeps what lasts of it.

pub mod best;
pub mod checkpoint;
pub mod directory;
pub mod estimate;
mod lock;
mod open;
mod progress;
pub mod provenance;
pub mod recovery_point;
pub mod settings;
mod states;

use std::collections::BTreeSet;
use std::path::PathBuf;

use capo_loader::registry::Components;
use capo_loader::watchdog::Watchdog;

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
use crate::stages::logps::{Needs, Work};
use lock::Lock;
pub use lock::is_at_work;
pub use open::AbsentWeights;
pub use progress::Progress;
use progress::RecoveryPoint;

/// The file that holds a run's settings, in its directory.
pub const CONFIG_FILE: &str = "config.toml";
/// The file of metrics, in a run's directory.
pub const METRICS_FILE: &str = "metrics.jsonl";

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
    /// The reward components, with their weights.
    pub rewards: Rewards,
    /// Advantage estimator, objective, masks, weights and step controls.
    pub components: Components,
    /// Inputs that the components asked for.
    pub needs: Needs,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Its learning rate over time.
    pub schedule: Schedule,
    /// The current step's numbers.
    pub metrics: Metrics,
    /// Completions with their rewards, where the config asks for them.
    pub completions: Completions,
    /// The settings that a resume takes with others than before, in words.
    pub changed: Vec<String>,
    /// The run between the last two rollouts, while it can still be saved as it was then.
    pub recovery: Option<RecoveryPoint>,
    /// True if such a point holds the components' states.
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
    /// The settings of the coming step, on a rollout that has been used `iteration` times before.
    pub fn step_info(&self, iteration: u64) -> StepInfo {
        let learning_rate = self.schedule.learning_rate(self.progress.step);
        let optimizer = self.optimizer.info(learning_rate, self.config.train.max_grad_norm);
        StepInfo::new(&self.config, self.progress.step, iteration, self.components.objective.reduction(), optimizer)
    }

    /// Completions sampled so far.
    pub fn completions_sampled(&self) -> u64 {
        self.progress.prompts.saturating_mul(self.config.rollout.num_generations as u64)
    }

    /// True if `train.max_completions` are sampled.
    pub fn has_its_completions(&self) -> bool {
        let most = self.config.train.max_completions;
        most > 0 && self.completions_sampled() >= most
    }

    /// How forward and backward passes are split.
    pub fn work(&self) -> Work {
        let train = &self.config.train;
        Work {
            micro_batch: train.per_device_train_batch_size,
            activation_budget: train.activation_budget.saturating_mul(1 << 20),
            loss_temperature: train.loss_temperature,
        }
    }
}
