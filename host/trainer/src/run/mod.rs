//! A run: all state of the training loop. `resources` opens everything that the settings name,
//! `open` starts or resumes a run with it in a `directory`, and `checkpoint` saves its state.

pub mod best;
pub mod checkpoint;
pub mod directory;
mod disk;
mod observers;
mod open;
mod progress;
pub mod provenance;
pub mod recovery_point;
mod resources;
pub mod settings;
mod states;
pub mod trained;

use std::collections::BTreeSet;
use std::path::PathBuf;

use capo_system::lock::Lock;

use crate::config::Config;
pub use crate::metrics::journal::METRICS_FILE;
use crate::stages::batch::{StepInfo, step_info};
use crate::stages::logps::Work;
pub use observers::Observers;
pub use progress::Progress;
use progress::RecoveryPoint;
pub use resources::{AbsentWeights, Resources};

/// Name of the settings file in a run's directory.
pub const CONFIG_FILE: &str = "config.toml";

/// A run, ready for its next step.
pub struct Run {
    pub resources: Resources,
    pub dir: PathBuf,
    pub progress: Progress,
    pub observers: Observers,
    /// Descriptions of settings that changed at the resume.
    pub changed: Vec<String>,
    /// The state between the last two rollouts; `None` once it can no longer be saved.
    pub recovery: Option<RecoveryPoint>,
    /// True if recovery points hold copies of the components' states.
    pub remembers: bool,
    /// Warnings of components that were already shown.
    pub warned: BTreeSet<String>,
    /// Folder to which the batch of every step is written, if any.
    pub dump: Option<PathBuf>,
    /// Held while the run is open.
    _lock: Lock,
}

impl Run {
    /// The run's settings.
    pub fn config(&self) -> &Config {
        &self.resources.config
    }

    /// Settings of the next step. Its rollout has been used `iteration` times before.
    pub fn step_info(&self, iteration: u64) -> StepInfo {
        let Resources {
            config,
            schedule,
            optimizer,
            components,
            ..
        } = &self.resources;
        let optimizer = optimizer.info(
            schedule.learning_rate(self.progress.step),
            config.train.max_grad_norm,
        );
        step_info(
            config,
            self.progress.step,
            iteration,
            components.objective.reduction(),
            optimizer,
        )
    }

    /// The settings `info` of the next step as masks and weights see them. Their learning rate is
    /// the largest rate at which the gradient will act, times the share that step controls applied
    /// last time.
    pub fn judged(&self, info: &StepInfo) -> StepInfo {
        let share = self.progress.applied.unwrap_or(1.0);
        let mut judged = *info;
        judged.optimizer.learning_rate = share
            * self
                .resources
                .schedule
                .acting_rate(info.step, info.optimizer.beta1);
        judged.step_learning_rate = Some(share * info.optimizer.learning_rate);
        judged
    }

    /// True if `train.max_completions` completions have been sampled.
    pub fn has_its_completions(&self) -> bool {
        let most = self.config().train.max_completions;
        most > 0 && self.progress.completions >= most
    }

    /// Split of forward and backward passes into micro-batches.
    pub fn work(&self) -> Work {
        let train = &self.config().train;
        Work {
            micro_batch: train.per_device_train_batch_size,
            activation_budget: train.activation_budget.saturating_mul(1 << 20),
            loss_temperature: train.loss_temperature,
        }
    }
}
