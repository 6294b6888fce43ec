//! Opens everything that a run works with, from its settings.

use anyhow::{Context, Result, bail, ensure};
use capo_loader::registry::{Components, Registry};
use capo_loader::watchdog::Watchdog;
use host_data::{Dataset, Example, Purpose, Tokenizer, same_tokens};
use host_model::device::{self, Dtype};
use host_model::frozen::Reference;
use host_model::optim::adamw::AdamWConfig;
use host_model::optim::sgd::SgdConfig;
use host_model::optim::{Optimizer, OptimizerConfig, OptimizerName};
use host_model::schedule::Schedule;
use host_model::{ADAPTER_CONFIG_FILE, Base, ModelFiles, Params, Policy, embedded};

use super::trained;
use crate::benchmark::Benchmark;
use crate::config::{Config, LossDistribution, TrainConfig};
use crate::environment::Environment;
use crate::folder::Companions;
use crate::reward::Rewards;
use crate::stages::logps::ComponentInputs;

/// What to do with a model directory that has no weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbsentWeights {
    /// Missing weights are an error.
    Refused,
    /// Missing weights are counted, for an estimate.
    Counted,
}

/// Everything that the settings of a run name: model, data, components, optimizer. There is no
/// directory yet: `host train --dry-run` describes the resources and writes nothing.
pub struct Resources {
    pub config: Config,
    pub policy: Policy,
    /// The reference model; `None` unless a component asks for it.
    pub reference: Option<Reference>,
    /// Converts text to token ids and back.
    pub tokenizer: Tokenizer,
    /// Files that are copied along with saved weights.
    pub companions: Companions,
    /// Training prompts.
    pub dataset: Dataset,
    pub held_out: Vec<Example>,
    pub benchmarks: Vec<Benchmark>,
    /// The reward components, with their weights.
    pub rewards: Rewards,
    /// The environment; `None` if a completion is one turn.
    pub environment: Option<Environment>,
    /// Advantage estimator, objective, masks, weights and step controls.
    pub components: Components,
    /// Inputs for which the components ask.
    pub inputs: ComponentInputs,
    pub optimizer: Optimizer,
    pub schedule: Schedule,
    /// Ends the process if a component does not return.
    pub watchdog: Watchdog,
    /// False for a run that leaves no checkpoint, because it only measures something.
    pub saves: bool,
}

impl Resources {
    /// Name of a new run's directory if none is given.
    pub fn name(&self) -> String {
        format!(
            "{}-seed{}",
            self.config.recipe.as_deref().unwrap_or("run"),
            self.config.train.seed
        )
    }

    /// Size of a checkpoint without the components' states, bytes.
    pub fn checkpoint_bytes(&self) -> u64 {
        if self.saves {
            trained::bytes(&self.policy, &self.optimizer)
        } else {
            0
        }
    }

    /// Opens all resources, without writing.
    pub(super) fn open(
        mut config: Config,
        registry: &Registry,
        absent: AbsentWeights,
    ) -> Result<Self> {
        let watchdog = Watchdog::start(config.train.component_timeout, config.component_ids());
        let components = registry.build(config.choice(), &watchdog)?;
        components
            .objective
            .reduction()
            .check_known(components.objective.id())?;
        let model_files = config
            .data
            .amend(embedded::model_files(&config.model.model_name_or_path)?)?;
        let policy = open_policy(&config, &model_files, absent)?;
        let tokenizer = config.data.tokenizer(&model_files)?;
        let companions = Companions::read(&model_files)?;
        let environment =
            Environment::open(&mut config, registry, &model_files, &tokenizer, &watchdog)?;
        policy
            .share()
            .with_dtype(config.sampler_dtype().into())
            .check_lengths(
                "rollout",
                config.data.max_prompt_length,
                config.rollout.max_completion_length,
                config.cached_completions(),
            )?;
        let dataset = config.data.open(
            config.train.seed,
            Purpose::Training,
            &model_files,
            &tokenizer,
            &policy,
        )?;
        let held_out = if config.eval.num_prompts == 0 {
            Vec::new()
        } else {
            dataset.held_out(config.eval.num_prompts)?
        };
        let benchmarks = Benchmark::open_all(
            &config.eval.benchmark,
            &config,
            &model_files,
            &tokenizer,
            &policy,
        )?;
        let rewards = Rewards::build(registry, &config.reward, &config.train.device, &watchdog)?;
        let train = &config.train;
        let k = last_layer_top_k(&config);
        let inputs = ComponentInputs::new(&components, &policy, train, k)?;
        let optimizer = Optimizer::new(policy.params(), optimizer_config(train))?;
        let schedule = Schedule::new(
            train.lr_scheduler_type,
            train.learning_rate,
            train.warmup_ratio,
            train.max_steps,
        )?;
        let reference = reference(&config, &inputs, &policy, &model_files)?;
        Ok(Self {
            config,
            policy,
            reference,
            tokenizer,
            companions,
            dataset,
            held_out,
            benchmarks,
            rewards,
            environment,
            components,
            inputs,
            optimizer,
            schedule,
            watchdog,
            saves: true,
        })
    }
}

/// Number of most likely tokens in the data of the last layer. 0 in the settings is the sampler's
/// own number, or 50 if the sampler draws from all tokens.
fn last_layer_top_k(config: &Config) -> usize {
    match (config.train.last_layer_top_k, config.rollout.top_k) {
        (0, 0) => 50,
        (0, top_k) => top_k,
        (k, _) => k,
    }
}

fn open_policy(config: &Config, files: &ModelFiles, absent: AbsentWeights) -> Result<Policy> {
    let train = &config.train;
    // Products in f32 may be rounded only if all their operands come from bf16.
    let widest = if config.sampler_dtype() == Dtype::F32 {
        Dtype::F32
    } else {
        train.dtype
    };
    ensure!(
        train.tf32 != Some(true) || train.device != device::CPU,
        "`train.tf32` is true, which only a GPU supports, but `train.device` is `cpu` (remove one \
         of them)"
    );
    device::tf32::choose(train.tf32, widest);
    let device = device::open(&train.device)?;
    if files.contains(ADAPTER_CONFIG_FILE) {
        config.model.check_continued()?;
    }
    let mut policy = if absent == AbsentWeights::Counted && !Params::are_there(files) {
        Policy::counted(files, &device)?
    } else if config.model.fresh_weights {
        Policy::fresh(files, train.seed, &device)?
    } else {
        Policy::load(files, &device)?
    };
    if let (None, Some(lora)) = (policy.adapter(), config.model.lora()) {
        let base = Base::of(&config.model.model_name_or_path, files)?;
        policy = policy.with_adapter(lora, base, train.seed)?;
    }
    Ok(policy
        .with_dtype(train.dtype.into())
        .with_gradient_checkpointing(train.gradient_checkpointing))
}

/// The reference model, if a component asks for it: the model that the config names, else a frozen
/// copy of the current policy.
fn reference(
    config: &Config,
    inputs: &ComponentInputs,
    policy: &Policy,
    files: &ModelFiles,
) -> Result<Option<Reference>> {
    ensure!(
        !inputs.reference() || config.train.loss_distribution == LossDistribution::Full,
        "`train.loss_distribution` is `sampler`, but a component compares with a reference, whose \
         most likely tokens are others (set `beta` to 0, or `train.loss_distribution` to `full`)"
    );
    let named = config.model.ref_model_name_or_path.as_deref();
    let Some(name) = named.filter(|_| inputs.reference()) else {
        if let Some(name) = named {
            bail!(
                "`model.ref_model_name_or_path` is `{name}`, but no component of this run compares \
                 with a reference (set the objective's `beta` above 0, or remove it)"
            );
        }
        return if inputs.reference() {
            Ok(Some(Reference::of(policy.reference()?)))
        } else {
            Ok(None)
        };
    };
    let theirs = embedded::model_files(name)?;
    same_tokens(files, &theirs)?;
    let longest = config
        .data
        .max_prompt_length
        .saturating_add(config.rollout.max_completion_length);
    let reference = Reference::load(&theirs, longest, config.train.dtype.into(), policy.device());
    reference
        .context("`model.ref_model_name_or_path` names a model that cannot be the reference")
        .map(Some)
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
