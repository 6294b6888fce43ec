//! A run: everything that the loop works with, opened from a config or from a run directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capo_plugin::{Inputs, OptimizerInfo, OptimizerKind};
use serde::{Deserialize, Serialize};

use crate::batch::StepInfo;
use crate::checkpoint;
use crate::config::Config;
use crate::data::{Dataset, Example, Tokenizer};
use crate::device;
use crate::embedded;
use crate::files;
use crate::metrics::Metrics;
use crate::model::{ModelFiles, Policy};
use crate::optim::{AdamW, AdamWConfig, Schedule};
use crate::provenance;
use crate::registry::{Components, Registry};
use crate::reward::Rewards;
use crate::stages::backward::check_reduction;
use crate::stages::score::{Needs, Work};
use crate::watchdog::Watchdog;

/// The file that holds a run's settings, in its directory.
pub const CONFIG_FILE: &str = "config.toml";
/// The file of metrics, in a run's directory.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// The file of completions, in a run's directory.
pub const COMPLETIONS_FILE: &str = "completions.jsonl";

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
    /// The model that training started from, where a component asked for it.
    pub reference: Option<Policy>,
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// The model's own files, for what is copied along with its weights.
    pub model_files: ModelFiles,
    /// Training prompts.
    pub dataset: Dataset,
    /// Held-out prompts.
    pub held_out: Vec<Example>,
    /// What completions earn.
    pub rewards: Rewards,
    /// Advantage estimator, objective and masks.
    pub components: Components,
    /// What they asked for.
    pub needs: Needs,
    /// The optimizer.
    pub optimizer: AdamW,
    /// Its learning rate over time.
    pub schedule: Schedule,
    /// The current step's numbers.
    pub metrics: Metrics,
    /// Components' warnings already shown.
    pub warned: BTreeSet<String>,
    /// Ends the process where a component does not come back.
    pub watchdog: Watchdog,
    /// Where the batch of every step is written, if anywhere.
    pub dump: Option<PathBuf>,
}

impl Run {
    /// Starts a run in a directory of its own.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the settings, the model, the data or the components; nothing is written before all of
    /// them are open.
    pub fn start(mut config: Config, registry: &Registry) -> Result<Self> {
        config.make_paths_absolute()?;
        let mut run = Self::open(config, registry, PathBuf::new())?;
        run.dir = make_dir(&run.config)?;
        run.watchdog.started(&run.dir);
        // The directory knows where it is; without this its settings can be used for another run.
        run.config.train.output_dir = None;
        files::write_atomic(&run.dir.join(CONFIG_FILE), toml::to_string(&run.config)?.as_bytes())?;
        provenance::start(&run.dir, registry.plugins())?;
        run.metrics = Metrics::create(&run.dir.join(METRICS_FILE))?;
        Ok(run)
    }

    /// Takes up the run in `dir` at its newest checkpoint, or from its start where it has none.
    ///
    /// # Errors
    ///
    /// When `dir` is not a run, a checkpoint is damaged, or a component refuses its state.
    pub fn resume(config: Config, registry: &Registry, dir: &Path) -> Result<Self> {
        let mut run = Self::open(config, registry, dir.to_owned())?;
        run.watchdog.started(dir);
        checkpoint::load_newest(&mut run)?;
        provenance::go_on(dir, run.progress.step, registry.plugins())?;
        run.metrics = Metrics::resume(&dir.join(METRICS_FILE), run.progress.step, run.progress.num_tokens)?;
        crate::metrics::truncate_after(&dir.join(COMPLETIONS_FILE), run.progress.step)?;
        Ok(run)
    }

    fn open(config: Config, registry: &Registry, dir: PathBuf) -> Result<Self> {
        let watchdog = Watchdog::start(config.train.component_timeout, config.component_ids());
        let components = registry.build(&config, &watchdog)?;
        check_reduction(&components.objective)?;
        let model_files = embedded::model_files(&config.model.model_name_or_path)?;
        let policy = open_policy(&config, &model_files)?;
        let tokenizer = Tokenizer::open(&model_files)?;
        check_lengths(&config, &policy)?;
        let dataset = config.data.open(config.train.seed)?;
        let held_out =
            if config.eval.num_prompts == 0 { Vec::new() } else { dataset.held_out(config.eval.num_prompts)? };
        let rewards = Rewards::build(registry, &config.reward, &watchdog)?;
        let needs = needs(&components, &config, &policy)?;
        let train = &config.train;
        let optimizer = AdamW::new(
            policy.params(),
            AdamWConfig {
                beta1: train.adam_beta1,
                beta2: train.adam_beta2,
                eps: train.adam_epsilon,
                weight_decay: train.weight_decay,
            },
        )?;
        let schedule =
            Schedule::new(train.lr_scheduler_type, train.learning_rate, train.warmup_ratio, train.max_steps)?;
        let reference = if needs.reference() { Some(policy.reference()?) } else { None };
        let metrics = Metrics::unwritten(&dir.join(METRICS_FILE));
        let (progress, warned) = (Progress::default(), BTreeSet::new());
        Ok(Self {
            config,
            dir,
            progress,
            policy,
            reference,
            tokenizer,
            model_files,
            dataset,
            held_out,
            rewards,
            components,
            needs,
            optimizer,
            schedule,
            metrics,
            warned,
            watchdog,
            dump: None,
        })
    }

    /// From now on writes the batch of every step to `dir`, the last layer included.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made, or a new run would leave its batches among others.
    pub fn dump_batches(&mut self, dir: Option<&Path>) -> Result<()> {
        if let Some(dir) = dir {
            let used = || std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
            ensure!(
                self.progress.step > 0 || !used(),
                "`--dump-batches {}` is not empty (choose another folder)",
                dir.display()
            );
            std::fs::create_dir_all(dir).with_context(|| format!("cannot make the folder `{}`", dir.display()))?;
            self.needs = self.needs.with(Inputs::LAST_LAYER);
            self.dump = Some(dir.to_owned());
        }
        Ok(())
    }

    /// The settings of the coming step, on a rollout that has been used `iteration` times before.
    #[must_use]
    pub fn step_info(&self, iteration: u64) -> StepInfo {
        let AdamWConfig { beta1, beta2, eps, weight_decay } = *self.optimizer.config();
        let optimizer = OptimizerInfo {
            kind: OptimizerKind::ADAMW,
            learning_rate: self.schedule.learning_rate(self.progress.step),
            beta1,
            beta2,
            eps,
            weight_decay,
            max_grad_norm: self.config.train.max_grad_norm,
            steps_taken: self.optimizer.steps_taken(),
        };
        StepInfo::new(&self.config, self.progress.step, iteration, self.components.objective.reduction(), optimizer)
    }

    /// How forward and backward passes are split.
    #[must_use]
    pub fn work(&self) -> Work {
        let train = &self.config.train;
        Work { micro_batch: train.per_device_train_batch_size, loss_temperature: train.loss_temperature }
    }
}

fn open_policy(config: &Config, files: &ModelFiles) -> Result<Policy> {
    let train = &config.train;
    let device = device::open(&train.device, train.dtype)?;
    let policy = if config.model.fresh_weights {
        Policy::fresh(files, train.seed, &device)?
    } else {
        Policy::load(files, &device)?
    };
    Ok(policy.with_dtype(train.dtype.into()))
}

/// What the components asked for, checked against what there is.
fn needs(components: &Components, config: &Config, policy: &Policy) -> Result<Needs> {
    let Components { advantage, objective, masks } = components;
    let mut asked = vec![(advantage.id(), advantage.inputs()), (objective.id(), objective.inputs())];
    asked.extend(masks.iter().map(|mask| (mask.id(), mask.inputs())));
    let k = match (config.train.last_layer_top_k, config.rollout.top_k) {
        (0, 0) => 50,
        (0, top_k) => top_k,
        (k, _) => k,
    };
    Needs::new(&asked, policy.config(), k)
}

fn check_lengths(config: &Config, policy: &Policy) -> Result<()> {
    let (prompt, completion) = (config.data.max_prompt_length, config.rollout.max_completion_length);
    let limit = policy.config().max_position_embeddings;
    ensure!(
        prompt + completion <= limit,
        "`data.max_prompt_length` {prompt} and `rollout.max_completion_length` {completion} make {} tokens, the model has {limit} positions (lower one of them)",
        prompt + completion
    );
    Ok(())
}

/// The directory that the config names, or `runs/NAME-seedS[-N]`, made now.
fn make_dir(config: &Config) -> Result<PathBuf> {
    if let Some(dir) = &config.train.output_dir {
        if dir.exists() {
            bail!(
                "`train.output_dir` `{}` exists already (choose another, or go on with `--resume {}`)",
                dir.display(),
                dir.display()
            );
        }
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make the run directory `{}`", dir.display()))?;
        return Ok(dir.clone());
    }
    let name = config.recipe.as_deref().unwrap_or("run");
    let base = format!("{name}-seed{}", config.train.seed);
    std::fs::create_dir_all("runs").context("cannot make the folder `runs`")?;
    for number in 1_u32.. {
        let dir = Path::new("runs").join(if number == 1 { base.clone() } else { format!("{base}-{number}") });
        match std::fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the run directory `{}`", dir.display()));
            }
        }
    }
    unreachable!("there are more numbers than directories")
}
