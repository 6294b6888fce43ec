//! Applies masks and weights to recorded batches, to try out thresholds without training.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capo_plugin::{BatchBuffer, Inputs, MaskHandle, OptimizerKind, Sink};

use crate::batch_file::{self, Outcome};
use crate::decision::{Deciders, Decision};
use crate::sound;
use crate::upload::Device;
use crate::warning::WarningSink;
use crate::watchdog::Watchdog;

/// Settings of the optimizer that replace the recorded ones: a mask's decisions may depend on them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OptimizerSettings {
    /// `train.learning_rate`: learning rate.
    pub learning_rate: Option<f64>,
    /// `train.adam_beta1`: decay rate of the first moment.
    pub adam_beta1: Option<f64>,
    /// `train.adam_beta2`: decay rate of the second moment.
    pub adam_beta2: Option<f64>,
    /// `train.adam_epsilon`: term added to the root of the second moment.
    pub adam_epsilon: Option<f64>,
}

impl OptimizerSettings {
    /// Reads the batch of the file `path`, with these settings.
    ///
    /// # Errors
    ///
    /// When the file is not a batch, a setting is out of its range, or a setting of Adam is given
    /// for another optimizer.
    pub fn read(&self, path: &Path) -> Result<BatchBuffer> {
        let mut batch = batch_file::read(path)?;
        if *self != Self::default() {
            self.apply(&mut batch)
                .with_context(|| format!("batch file `{}` with `--set`", path.display()))?;
        }
        Ok(batch)
    }

    fn apply(&self, batch: &mut BatchBuffer) -> Result<()> {
        let optimizer = &mut batch.scalars.optimizer;
        let adam = [
            ("train.adam_beta1", self.adam_beta1, &mut optimizer.beta1),
            ("train.adam_beta2", self.adam_beta2, &mut optimizer.beta2),
            ("train.adam_epsilon", self.adam_epsilon, &mut optimizer.eps),
        ];
        for (key, value, place) in adam {
            ensure!(
                value.is_none() || optimizer.kind != OptimizerKind::SGD,
                "it was recorded with the optimizer `sgd`, which has no `{key}` (leave it out)"
            );
            *place = value.unwrap_or(*place);
        }
        if let Some(learning_rate) = self.learning_rate {
            optimizer.learning_rate = learning_rate;
            batch.scalars.step_learning_rate = None;
        }
        sound::check(batch)
    }
}

/// Collects the reports of masks and weights on one batch.
struct Collector<'a> {
    outcome: Outcome,
    warnings: WarningSink<'a>,
}

impl Sink for Collector<'_> {
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        Some(&mut self.warnings)
    }

    fn record(&mut self, component: &str, name: &str, value: f64) {
        self.outcome
            .numbers
            .insert(format!("{component}/{name}"), value);
    }

    fn record_tokens(&mut self, component: &str, name: &str, values: &[f32]) {
        self.outcome
            .tokens
            .insert(format!("{component}/{name}"), values.to_vec());
    }
}

/// One batch of a replay. Its text form is a line for a person.
pub struct Replayed<'a> {
    /// The batch's file.
    pub path: &'a Path,
    /// File to which the result was written; `None` if it was not written.
    pub target: Option<&'a Path>,
    /// The recorded batch.
    pub batch: &'a BatchBuffer,
    /// Effect of the masks and weights.
    pub outcome: Outcome,
}

impl std::fmt::Display for Replayed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.batch.completion_tokens();
        let token_mask = &self.outcome.token_mask;
        let rejected = tokens
            - token_mask
                .iter()
                .map(|&token| u64::from(token))
                .sum::<u64>();
        let rate = 100.0 * rejected as f64 / tokens.max(1) as f64;
        let mean = self
            .outcome
            .weights
            .as_deref()
            .map_or_else(String::new, |weights| mean_weight(weights, tokens));
        let step = self.batch.scalars.step;
        let file = self.target.unwrap_or(self.path).display();
        write!(
            f,
            "step {step:>4}  rejected {rejected} of {tokens} ({rate:.2}%){mean}  {file}"
        )
    }
}

/// What masks and weights are replayed on.
pub struct Replay<'a> {
    /// The batch files, in order.
    pub batches: &'a [PathBuf],
    /// Settings of the optimizer that replace those of the files. Advantages and losses are those
    /// of the files.
    pub optimizer: OptimizerSettings,
    /// The device in whose memory the components find the large arrays; `None` is host memory.
    pub device: Option<&'a Device>,
    /// The folder for the results, a file per batch of the same name; `None` writes none.
    pub out: Option<&'a Path>,
}

impl Replay<'_> {
    /// Applies masks and weights, with their state, to the batch files, and calls `each` with the
    /// result of every file.
    ///
    /// # Errors
    ///
    /// When a file is not a batch or lacks an input of a component, two files have one name, a
    /// component returns an error, or a device fails.
    pub fn run(
        &self,
        deciders: &mut Deciders,
        watchdog: &Watchdog,
        each: &mut dyn FnMut(Replayed<'_>),
    ) -> Result<()> {
        check_any(deciders)?;
        let targets = self.targets()?;
        let mut warned = BTreeSet::new();
        for (path, target) in self.batches.iter().zip(&targets) {
            let batch = self.optimizer.read(path)?;
            let mut sink = Collector {
                outcome: Outcome::default(),
                warnings: WarningSink {
                    warned: &mut warned,
                    watchdog,
                },
            };
            let decision = replay_step(deciders, &mut sink, path, self.device, &batch)?;
            let weights = (!deciders.weights.is_empty()).then_some(decision.token_weights);
            let outcome = Outcome {
                token_mask: decision.token_mask,
                weights,
                ..sink.outcome
            };
            if let (Some(target), Some(out)) = (target, self.out) {
                // The folder is made only when there is a result: a file that is no batch leaves
                // nothing.
                std::fs::create_dir_all(out)
                    .with_context(|| format!("cannot make `{}`", out.display()))?;
                batch_file::write_outcome(target, batch.scalars.dims, &outcome)?;
            }
            each(Replayed {
                path,
                target: target.as_deref(),
                batch: &batch,
                outcome,
            });
        }
        Ok(())
    }

    /// The file for each batch's result; `None` if results are not written.
    fn targets(&self) -> Result<Vec<Option<PathBuf>>> {
        let Some(out) = self.out else {
            return Ok(vec![None; self.batches.len()]);
        };
        let mut targets = Vec::new();
        for path in self.batches {
            let target = Some(target(path, out)?);
            if let Some(Some(twice)) = targets.iter().find(|known| **known == target) {
                bail!(
                    "two batch files would be written to `{}` (give each its own name)",
                    Path::display(twice)
                );
            }
            targets.push(target);
        }
        Ok(targets)
    }
}

/// Checks that there is a mask or a weight to replay.
///
/// # Errors
///
/// When there is neither a mask nor a weight.
pub fn check_any(deciders: &Deciders) -> Result<()> {
    ensure!(
        !deciders.masks.is_empty() || !deciders.weights.is_empty(),
        "there is no mask to replay (name one under `[[mask]]`, or a weight under `[[weight]]`)"
    );
    Ok(())
}

/// Applies masks and weights to one batch of the file `path`, with its large arrays on `device` if
/// there is one. Their calls can read the context that was recorded with the batch. The step counts
/// as taken if any token is kept.
///
/// # Errors
///
/// When the batch lacks an input of a component, a component returns an error, or a device fails.
pub fn replay_step(
    deciders: &mut Deciders,
    sink: &mut dyn Sink,
    path: &Path,
    device: Option<&Device>,
    batch: &BatchBuffer,
) -> Result<Decision> {
    let view = batch.view();
    check_inputs(asked(deciders), batch)
        .with_context(|| format!("batch file `{}`", path.display()))?;
    let upload = device.map(|device| device.upload(&view)).transpose()?;
    let view = upload.as_ref().map_or(view, |upload| upload.view(view));
    let decision = deciders.decide(sink, &view)?;
    deciders.step_end(sink, &view, &decision, decision.tokens() > 0)?;
    Ok(decision)
}

/// The ids of masks and weights, each with the inputs that it asks for.
fn asked(deciders: &Deciders) -> impl Iterator<Item = (&str, Inputs)> {
    let masks = deciders.masks.iter().map(|mask| (mask.id(), mask.inputs()));
    let weights = &deciders.weights;
    masks.chain(weights.iter().map(|weight| (weight.id(), weight.inputs())))
}

/// The file in the folder `out` for the result of the batch file `path`.
fn target(path: &Path, out: &Path) -> Result<PathBuf> {
    let name = path
        .file_name()
        .with_context(|| format!("`{}` is not a file", path.display()))?;
    let target = out.join(name);
    ensure!(
        target
            .canonicalize()
            .ok()
            .is_none_or(|target| path.canonicalize().ok() != Some(target)),
        "`{}` would be overwritten by its own result (choose another `--out`)",
        path.display()
    );
    Ok(target)
}

/// Part of a line: the mean weight over all completion tokens, with rejected tokens as 0.
fn mean_weight(weights: &[f32], tokens: u64) -> String {
    format!(
        "  mean weight {:.3}",
        weights.iter().map(|&weight| f64::from(weight)).sum::<f64>() / tokens.max(1) as f64
    )
}

/// Refuses a batch of the file `path` that lacks an input of `mask`.
///
/// # Errors
///
/// When an input is missing; the message names all that are missing.
pub fn check_held(mask: &MaskHandle, path: &Path, batch: &BatchBuffer) -> Result<()> {
    check_inputs([(mask.id(), mask.inputs())].into_iter(), batch)
        .with_context(|| format!("batch file `{}`", path.display()))
}

/// Refuses a batch that lacks an input of a component; `asked` pairs each component's id with its
/// inputs.
fn check_inputs<'a>(
    asked: impl Iterator<Item = (&'a str, Inputs)>,
    batch: &BatchBuffer,
) -> Result<()> {
    let held = batch.view().held();
    for (id, inputs) in asked {
        let mut parts = Inputs::OF_BATCH.iter();
        let missing = parts.find(|one| inputs.contains(one.flag) && !held.contains(one.flag));
        if let Some(missing) = missing {
            bail!(
                "component `{id}` asks for `{}`, which it does not hold (record batches in a run \
                 with this component)",
                missing.field
            );
        }
    }
    Ok(())
}
