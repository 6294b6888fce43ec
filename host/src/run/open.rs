//! Opening a run, from a config or from a run directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use capo_loader::files;
use capo_loader::registry::{Components, Registry};
use capo_loader::watchdog::Watchdog;

use super::{COMPLETIONS_FILE, CONFIG_FILE, METRICS_FILE, Progress, Run, checkpoint, provenance};
use crate::config::Config;
use crate::data::{Purpose, Tokenizer};
use crate::metrics::Metrics;
use crate::model::{ModelFiles, Policy, device, embedded};
use crate::optim::{AdamW, AdamWConfig, Schedule};
use crate::reward::Rewards;
use crate::stages::backward::check_reduction;
use crate::stages::score::Needs;

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
        let components = registry.build(&config.advantage, &config.objective, &config.mask, &watchdog)?;
        check_reduction(&components.objective)?;
        let model_files = embedded::model_files(&config.model.model_name_or_path)?;
        let policy = open_policy(&config, &model_files)?;
        let tokenizer = Tokenizer::open(&model_files)?;
        policy.check_lengths(
            config.data.max_prompt_length,
            ("rollout", config.rollout.max_completion_length),
            config.sizes.rollout,
        )?;
        let dataset = config.data.open(config.train.seed, Purpose::Training, &tokenizer, &policy)?;
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
