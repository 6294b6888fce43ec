//! Opens a run from a config or from a run directory.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capo_loader::files;
use capo_loader::registry::Registry;
use capo_loader::watchdog::Watchdog;

use super::lock::Lock;
use super::{CONFIG_FILE, METRICS_FILE, Progress, Run, checkpoint, directory, provenance, settings};
use crate::adamw::AdamWConfig;
use crate::benchmark::Benchmark;
use crate::config::{Config, LossDistribution, Tracker, TrainConfig};
use crate::data::{Purpose, Tokenizer};
use crate::metrics::completions::{COMPLETIONS_FILE, Completions};
use crate::metrics::{EventFile, Metrics, journal};
use crate::model::device::{self, Dtype};
use crate::model::frozen::{self, Reference};
use crate::model::{ADAPTER_CONFIG_FILE, Base, ModelFiles, Params, Policy, embedded};
use crate::optim::{Optimizer, OptimizerConfig, OptimizerName};
use crate::report::found::Lines;
use crate::reward::Rewards;
use crate::schedule::Schedule;
use crate::sgd::SgdConfig;
use crate::stages::logps::Needs;
use crate::warnings::{Setup, Watch};

/// Treatment of a model directory that has no weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsentWeights {
    /// Missing weights are an error.
    Refused,
    /// Missing weights are counted, for an estimate.
    Counted,
}

impl Run {
    /// Starts a run in its own directory.
    pub fn start(config: Config, registry: &Registry) -> Result<Self> {
        let (run, dir) = Self::prepare(config, registry, AbsentWeights::Refused)?;
        run.begin(dir, registry)
    }

    /// Starts a run that [`Run::prepare`] opened, in `dir` or in a directory named after the run.
    pub fn begin(mut self, dir: Option<PathBuf>, registry: &Registry) -> Result<Self> {
        let settings = toml::to_string(&self.config)?;
        let parameters = self.policy.params().element_count() as u64;
        let checkpoint = 4 * parameters + self.optimizer.bytes() as u64;
        let (dir, lock) = directory::make(dir.as_deref(), &self.name(), &settings, registry.plugins(), checkpoint)?;
        self.settle(&dir, lock);
        self.open_journals(0)?;
        Ok(self)
    }

    /// Name of a new run's directory if none is given.
    pub fn name(&self) -> String {
        format!("{}-seed{}", self.config.recipe.as_deref().unwrap_or("run"), self.config.train.seed)
    }

    /// Opens everything that a run needs, without writing. Also returns the directory that the settings name.
    pub fn prepare(mut config: Config, registry: &Registry, absent: AbsentWeights) -> Result<(Self, Option<PathBuf>)> {
        config.make_paths_absolute()?;
        // Stored settings without the directory can be used for another run.
        let dir = config.train.output_dir.take();
        dir.as_deref().map_or(Ok(()), directory::check_free)?;
        Ok((Self::open(config, registry, absent)?, dir))
    }

    /// Resumes the run in `dir`, whose lock is `lock`, at its newest checkpoint, or at its beginning without one.
    pub fn resume(config: Config, registry: &Registry, dir: &Path, lock: Lock, allow_changes: bool) -> Result<Self> {
        let step = checkpoint::newest(dir)?;
        let settings = toml::to_string(&config)?;
        let changed = settings::changes(&provenance::settings_at(dir, step)?, &settings)?;
        if !changed.is_empty() && !allow_changes {
            let made = if step == 0 {
                "the run began with".into()
            } else {
                format!("its checkpoint of step {step} was made with")
            };
            bail!(
                "the settings of `{}` are not those that {made}: {} (put them back, or take them with `--allow-changed-config`)",
                dir.join(CONFIG_FILE).display(),
                changed.join(", ")
            );
        }
        check_journals(dir)?;
        let mut run = Self::open(config, registry, AbsentWeights::Refused)?;
        run.changed = changed;
        run.settle(dir, lock);
        run.watchdog.place().at(step);
        run.watchdog.place().saved(step);
        checkpoint::load(&mut run, step, allow_changes)?;
        provenance::go_on(dir, step, registry.plugins(), settings)?;
        run.open_journals(step + 1)?;
        Ok(run)
    }

    fn settle(&mut self, dir: &Path, lock: Lock) {
        self.watchdog.place().started(dir);
        self.dir = dir.to_owned();
        self.lock = Some(lock);
    }

    /// Begins metrics and completions, or continues them after the checkpoint. `first` is the first step that trackers are told.
    fn open_journals(&mut self, first: u64) -> Result<()> {
        let (path, step) = (self.dir.join(METRICS_FILE), self.progress.step);
        journal::cut(&path, step)?;
        self.completions = Completions::new(&self.dir, &self.config.logging, self.config.sizes.steps_per_rollout);
        self.completions.cut(step)?;
        let mut watch = Watch::new(Setup::of(&settings::keys(&toml::to_string(&self.config)?)?));
        // If the lines cannot be read, a warning may appear twice.
        let lines = Lines::read(&path).unwrap_or_default();
        lines.rows().for_each(|(step, values)| watch.recall(step, &values));
        self.metrics = Metrics::new(path, self.progress.num_tokens);
        self.metrics.watch = Some(watch);
        if self.config.logging.report_to.contains(&Tracker::Tensorboard) {
            self.metrics.events = Some(EventFile::begin(&self.dir, first)?);
        }
        Ok(())
    }

    /// Opens all parts of the run except its directory.
    fn open(config: Config, registry: &Registry, absent: AbsentWeights) -> Result<Self> {
        let watchdog = Watchdog::start(config.train.component_timeout, config.component_ids());
        let components = registry.build(config.choice(), &watchdog)?;
        components.objective.reduction().check_known(components.objective.id())?;
        let model_files = config.data.amend(embedded::model_files(&config.model.model_name_or_path)?)?;
        let policy = open_policy(&config, &model_files, absent)?;
        let tokenizer = Tokenizer::open(&model_files)?;
        policy.share().with_dtype(config.sampler_dtype().into()).check_lengths(
            config.data.max_prompt_length,
            ("rollout", config.rollout.max_completion_length),
            config.cached_completions(),
        )?;
        let dataset = config.data.open(config.train.seed, Purpose::Training, &model_files, &tokenizer, &policy)?;
        let held_out =
            if config.eval.num_prompts == 0 { Vec::new() } else { dataset.held_out(config.eval.num_prompts)? };
        let benchmarks = Benchmark::open_all(&config.eval.benchmark, &config, &model_files, &tokenizer, &policy)?;
        let rewards = Rewards::build(registry, &config.reward, &config.train.device, &watchdog)?;
        let k = match (config.train.last_layer_top_k, config.rollout.top_k) {
            (0, 0) => 50,
            (0, top_k) => top_k,
            (k, _) => k,
        };
        let needs = Needs::new(&components, &policy, config.train.optimizer, k)?;
        let train = &config.train;
        let optimizer = Optimizer::new(policy.params(), optimizer_config(train))?;
        let schedule =
            Schedule::new(train.lr_scheduler_type, train.learning_rate, train.warmup_ratio, train.max_steps)?;
        let reference = reference(&config, &needs, &policy, &model_files)?;
        let nowhere = Path::new("");
        let completions = Completions::new(nowhere, &config.logging, config.sizes.steps_per_rollout);
        Ok(Self {
            config,
            dir: PathBuf::new(),
            progress: Progress::default(),
            policy,
            reference,
            tokenizer,
            model_files,
            dataset,
            held_out,
            benchmarks,
            rewards,
            components,
            needs,
            optimizer,
            schedule,
            metrics: Metrics::new(nowhere.to_owned(), 0),
            completions,
            changed: Vec::new(),
            recovery: None,
            remembers: true,
            lock: None,
            warned: BTreeSet::new(),
            watchdog,
            dump: None,
        })
    }
}

/// Refuses unreadable journals before anything is changed.
fn check_journals(dir: &Path) -> Result<()> {
    for path in [METRICS_FILE, COMPLETIONS_FILE].map(|name| dir.join(name)) {
        if path.symlink_metadata().is_ok() {
            let readable = files::size(&path).and_then(|_| File::open(&path)?.read(&mut [0]));
            readable.with_context(|| format!("cannot take `{}` up again", path.display()))?;
        }
    }
    Ok(())
}

fn open_policy(config: &Config, files: &ModelFiles, absent: AbsentWeights) -> Result<Policy> {
    let train = &config.train;
    // Products in f32 may be rounded only if all their operands come from bf16.
    let widest = if config.sampler_dtype() == Dtype::F32 { Dtype::F32 } else { train.dtype };
    let device = device::open(&train.device, widest)?;
    if files.contains(ADAPTER_CONFIG_FILE) {
        config.model.check_continued()?;
    }
    let mut policy = if absent == AbsentWeights::Counted && !Params::are_there(files) {
        Policy::counted(files)?
    } else if config.model.fresh_weights {
        Policy::fresh(files, train.seed, &device)?
    } else {
        Policy::load(files, &device)?
    };
    if let (None, Some(lora)) = (policy.adapter(), config.model.lora()) {
        let base = Base::of(&config.model.model_name_or_path, files)?;
        policy = policy.with_adapter(lora, base, train.seed)?;
    }
    Ok(policy.with_dtype(train.dtype.into()).with_gradient_checkpointing(train.gradient_checkpointing))
}

/// The reference model, if a component asks for it: the model that the config names, else a frozen copy of the current policy.
fn reference(config: &Config, needs: &Needs, policy: &Policy, files: &ModelFiles) -> Result<Option<Reference>> {
    ensure!(
        !needs.reference() || config.train.loss_distribution == LossDistribution::Full,
        "`train.loss_distribution` is `sampler`, but a component compares with a reference, whose most likely tokens are others (set `beta` to 0, or `train.loss_distribution` to `full`)"
    );
    let named = config.model.ref_model_name_or_path.as_deref();
    let Some(name) = named.filter(|_| needs.reference()) else {
        if let Some(name) = named {
            bail!(
                "`model.ref_model_name_or_path` is `{name}`, but no component of this run compares with a reference (set the objective's `beta` above 0, or remove it)"
            );
        }
        return if needs.reference() { Ok(Some(Reference::of(policy.reference()?))) } else { Ok(None) };
    };
    let theirs = embedded::model_files(name)?;
    frozen::same_tokens(files, &theirs)?;
    let longest = config.data.max_prompt_length.saturating_add(config.rollout.max_completion_length);
    let reference = Reference::load(&theirs, longest, config.train.dtype.into(), policy.device());
    reference.context("`model.ref_model_name_or_path` names a model that cannot be the reference").map(Some)
}

/// The optimizer's configuration from the settings.
fn optimizer_config(train: &TrainConfig) -> OptimizerConfig {
    match train.optimizer {
        OptimizerName::AdamW => OptimizerConfig::AdamW(AdamWConfig {
            beta1: train.adam_beta1,
            beta2: train.adam_beta2,
            eps: train.adam_epsilon,
            weight_decay: train.weight_decay,
            second_moment: train.second_moment,
            moments: train.moments_dtype,
        }),
        OptimizerName::Sgd => OptimizerConfig::Sgd(SgdConfig {
            momentum: train.sgd_momentum,
            weight_decay: train.weight_decay,
            moments: train.moments_dtype,
        }),
    }
}
