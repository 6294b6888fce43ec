//! The observers of a run's records, which write them down: metrics, warnings, `metrics.jsonl`,
//! TensorBoard and the completions' log.

use std::path::Path;

use anyhow::Result;
use capo_loader::LoadedPlugin;
use capo_system::terminal;

use crate::config::Config;
use crate::metrics::completions::Completions;
use crate::metrics::journal::{self, Journal, METRICS_FILE};
use crate::metrics::lines::Lines;
use crate::metrics::{Line, Metrics, Tensorboard};
use crate::warnings::{Setup, Watch};

/// The observers of a run.
pub struct Observers {
    /// Metrics of the current step.
    pub metrics: Metrics,
    /// Checks of every step for warnings.
    pub watch: Watch,
    /// Log of completions and their rewards, if the config asks for it.
    pub completions: Completions,
    journal: Journal,
    tensorboard: Option<Tensorboard>,
}

impl Observers {
    /// Begins the files of the run in `dir`, or continues them after `step`. `first` is the first
    /// step that trackers get.
    pub(super) fn open(
        dir: &Path,
        config: &Config,
        plugins: Vec<LoadedPlugin>,
        step: u64,
        first: u64,
    ) -> Result<Self> {
        let path = dir.join(METRICS_FILE);
        journal::cut(&path, step)?;
        let mut completions =
            Completions::new(dir, &config.logging, config.sizes.steps_per_rollout);
        completions.cut(step)?;
        let mut watch = Watch::new(Setup::of(config.into(), plugins));
        // If the lines cannot be read, a warning may appear twice.
        let lines = Lines::read(&path).unwrap_or_default();
        if let Some(missing) = lines.missing(step) {
            terminal::warn(&format!("`{}`: {missing}", path.display()));
        }
        for (step, values) in lines.rows() {
            watch.recall(step, &values);
        }
        Ok(Self {
            metrics: Metrics::default(),
            watch,
            completions,
            journal: Journal::new(path),
            tensorboard: Tensorboard::begin(dir, first, config)?,
        })
    }

    /// Checks a step's line for warnings, adds their metrics to it, and writes it. Returns the
    /// warnings.
    pub fn line(&mut self, line: &mut Line) -> Result<Vec<String>> {
        let found = self.watch.step(line.step, &line.values);
        line.values
            .extend(found.iter().map(|finding| (finding.metric(), 1.0)));
        let mut warnings = self.journal.append(line)?;
        warnings.extend(self.completions.lost());
        warnings.extend(
            found
                .iter()
                .map(|finding| format!("step {}: {}", line.step, finding.line())),
        );
        if let Some(tensorboard) = &mut self.tensorboard {
            tensorboard.write(line)?;
        }
        Ok(warnings)
    }
}
