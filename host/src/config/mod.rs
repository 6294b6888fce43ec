//! The run's settings: a TOML file, `--set` overrides, a recipe for the components that the file does not name.

pub(crate) mod check;
mod data;
mod datasets;
mod draft;
mod eval;
mod logging;
mod model;
mod recipe;
mod sets;
mod sizes;
mod source;

use std::path::{Path, PathBuf};

use anyhow::Result;
use capo_loader::{Choice, ComponentConfig, component_names};
use serde::{Deserialize, Serialize};

use crate::adamw::SecondMoment;
use crate::model::device::{self, Dtype};
use crate::model::{Truncation, hub};
use crate::optim::OptimizerName;
use crate::reward::{self, RewardConfig};
use crate::schedule::ScheduleKind;

pub use data::{DataConfig, Format};
pub use draft::{Appended, Draft};
pub use eval::{ANSWERS_AT_ONCE, BenchmarkConfig, EvalConfig, TEST};
pub use logging::{CompletionsFormat, LoggingConfig, Tracker};
pub use model::{ModelConfig, TargetModules};
pub use recipe::{Resolved, resolve};
pub(crate) use sets::{parse_set, set};
pub use sizes::Sizes;
pub use source::SourceConfig;

/// The settings of `host train` when no `--config` is given; they lie beneath one that holds components alone.
pub const DEFAULT: &str = include_str!("../../../configs/tiny/default.toml");

/// All settings of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Config {
    /// Which recipe chose the components that the file did not name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// `[model]`
    pub model: ModelConfig,
    /// `[data]`
    pub data: DataConfig,
    /// `[rollout]`
    pub rollout: RolloutConfig,
    /// `[train]`
    pub train: TrainConfig,
    /// `[eval]`
    pub eval: EvalConfig,
    /// `[logging]`
    pub logging: LoggingConfig,
    /// `[advantage]`
    pub advantage: ComponentConfig,
    /// `[objective]`
    pub objective: ComponentConfig,
    /// `[[mask]]`, in order
    pub mask: Vec<ComponentConfig>,
    /// `[[weight]]`, in order
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weight: Vec<ComponentConfig>,
    /// `[[step_control]]`, in order
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub step_control: Vec<ComponentConfig>,
    /// `[[reward]]`; rewards are summed
    pub reward: Vec<RewardConfig>,
    /// What follows from the settings; computed when they are checked.
    #[serde(skip)]
    pub sizes: Sizes,
}

/// `[rollout]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RolloutConfig {
    /// G: completions per prompt.
    pub num_generations: usize,
    /// Longest completion, tokens.
    pub max_completion_length: usize,
    /// Divides the logits; 1 samples from the model itself.
    pub temperature: f32,
    /// Sample among the most likely tokens; 0 is off.
    pub top_k: usize,
    /// Sample among the most likely tokens of this total probability; 1 is off.
    pub top_p: f32,
    /// Most completions that are sampled at a time; the others wait for one to end. 0 is no limit.
    #[serde(skip_serializing_if = "is_default")]
    pub max_num_seqs: usize,
    /// Dynamic sampling: groups whose completions all earn the same are dropped, and others sampled in their place (verl's name).
    #[serde(skip_serializing_if = "is_default")]
    pub filter_groups: bool,
    /// How often completions are sampled for one rollout at most, with `filter_groups`; what is missing then is made up for by groups
    /// without a difference in reward.
    #[serde(skip_serializing_if = "is_default_gen_batches")]
    pub max_num_gen_batches: usize,
    /// What the sampler computes in: `f32` or `bf16`; `train.dtype` where it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
}

impl Default for RolloutConfig {
    fn default() -> Self {
        Self {
            num_generations: 8,
            max_completion_length: 256,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            max_num_seqs: 0,
            filter_groups: false,
            max_num_gen_batches: GEN_BATCHES,
            dtype: None,
        }
    }
}

/// `rollout.max_num_gen_batches` where it is not said: that of DAPO's own recipe.
const GEN_BATCHES: usize = 10;

fn is_default_gen_batches(value: &usize) -> bool {
    *value == GEN_BATCHES
}

/// `[train]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Where the policy computes: `cpu`, or `cuda:N`.
    pub device: String,
    /// What it computes in: `f32` or `bf16`.
    pub dtype: Dtype,
    /// Source of every random choice.
    pub seed: u64,
    /// Optimizer steps.
    pub max_steps: u64,
    /// Completions of one backward pass (a micro-batch).
    pub per_device_train_batch_size: usize,
    /// Whether activations are computed again in the backward pass, a layer at a time, in place of being kept: less memory, one more forward
    /// pass, the same bits.
    #[serde(skip_serializing_if = "is_default")]
    pub gradient_checkpointing: bool,
    /// Take what masks and objective see of a step from the sampler's own passes, where it draws from the policy as it is trained and each
    /// rollout is used by one step: no scoring pass.
    #[serde(skip_serializing_if = "is_default")]
    pub score_at_sampling: bool,
    /// Where there are several micro-batches: MiB of activations that scoring keeps for the backward pass, so that what fits is computed once.
    #[serde(skip_serializing_if = "is_default_budget")]
    pub activation_budget: u64,
    /// Micro-batches of one optimizer step.
    pub gradient_accumulation_steps: usize,
    /// Micro-batches of one rollout; `gradient_accumulation_steps` when 0.
    pub steps_per_generation: usize,
    /// Completions of one rollout, in place of `steps_per_generation`; 0 leaves it to that.
    #[serde(skip_serializing_if = "is_default")]
    pub generation_batch_size: usize,
    /// How often a rollout is used.
    pub num_iterations: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// `cosine`, `linear`, `constant` or `constant_with_warmup`.
    pub lr_scheduler_type: ScheduleKind,
    /// Share of `max_steps` over which the learning rate rises from 0.
    pub warmup_ratio: f64,
    /// Decoupled weight decay of matrices.
    pub weight_decay: f64,
    /// What turns gradients into steps: `adamw`, or `sgd`, where a mask shortens the step by itself.
    #[serde(skip_serializing_if = "is_default")]
    pub optimizer: OptimizerName,
    /// What is left of SGD's sum of gradients from one step to the next, as in `torch.optim.SGD`; its weight decay is decoupled all the
    /// same, and of matrices only, as AdamW's.
    #[serde(skip_serializing_if = "is_default")]
    pub sgd_momentum: f64,
    /// Decay of Adam's first moment.
    pub adam_beta1: f64,
    /// Decay of Adam's second moment.
    pub adam_beta2: f64,
    /// Added to the root of Adam's second moment.
    pub adam_epsilon: f64,
    /// Which gradients Adam's second moment takes in: those `kept` by the masks, or `kept_and_rejected` ones, so that a mask shortens the
    /// step.
    #[serde(skip_serializing_if = "is_default")]
    pub second_moment: SecondMoment,
    /// What the optimizer keeps of matrices below the last layer in: `bf16`, on the CPU, takes half the memory.
    #[serde(skip_serializing_if = "is_default")]
    pub moments_dtype: Dtype,
    /// Largest global gradient norm; 0 is off.
    pub max_grad_norm: f64,
    /// Divides the logits in the loss.
    pub loss_temperature: f64,
    /// Which distribution the loss's log-probabilities are of: the `full` one, or that of the `sampler`, truncated by `rollout.top_k` and `top_p`.
    #[serde(skip_serializing_if = "is_default")]
    pub loss_distribution: LossDistribution,
    /// Weight of the mean entropy of the kept tokens, which the loss is less by.
    #[serde(skip_serializing_if = "is_default")]
    pub entropy_coef: f64,
    /// What a loss is averaged over after masking: `kept` tokens or the `original` ones.
    pub mask_denominator: Denominator,
    /// K of the last-layer inputs; 0 takes the sampler's `top_k`, or 50 where that is off.
    pub last_layer_top_k: usize,
    /// What every so many-th optimizer step does to the policy is measured and recorded as `step/...`; 0 is off.
    #[serde(skip_serializing_if = "is_default")]
    pub measure_step: u64,
    /// Checkpoint interval in optimizer steps; 0 writes one at the end only.
    pub save_steps: u64,
    /// Older checkpoints are deleted; 0 keeps all.
    pub save_total_limit: usize,
    /// The metric of evaluations that says which checkpoint is the best: it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric_for_best_model: Option<String>,
    /// Whether larger is better; where it is not said, unless the metric's name ends in `loss`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub greater_is_better: Option<bool>,
    /// The run ends after so many evaluations without improvement; 0 is off.
    #[serde(skip_serializing_if = "is_default")]
    pub early_stopping_patience: u64,
    /// By how much a value must be better to be an improvement.
    #[serde(skip_serializing_if = "is_default")]
    pub early_stopping_threshold: f64,
    /// The run ends once so many completions are sampled, with the rollout; 0 is off.
    #[serde(skip_serializing_if = "is_default")]
    pub max_completions: u64,
    /// The process stops after so many seconds, at the end of a rollout, with a checkpoint; 0 is off.
    #[serde(skip_serializing_if = "is_default")]
    pub max_time: f64,
    /// Longest call of a component, seconds; 0 waits without a limit.
    pub component_timeout: u64,
    /// Largest state of a component in a checkpoint, MiB; 0 is no limit.
    pub component_state_limit: u64,
    /// Where runs go; each makes a folder of its own unless this names one that does not exist yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_dir: Option<PathBuf>,
}

/// What a loss is averaged over after masking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Denominator {
    /// The tokens that the masks keep: survivors weigh more.
    Kept,
    /// All completion tokens: a rejected token is a zero.
    Original,
}

/// Which distribution the loss's log-probabilities are of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossDistribution {
    /// The whole softmax at `train.loss_temperature`.
    #[default]
    Full,
    /// What top-k and top-p leave of it.
    Sampler,
}

/// Settings that came later than others stand in a run's file only where they are used, so that older runs can go on.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// `train.activation_budget` where it is not said, MiB.
const ACTIVATION_BUDGET: u64 = 1024;

fn is_default_budget(value: &u64) -> bool {
    *value == ACTIVATION_BUDGET
}

impl TrainConfig {
    /// Whether a larger value of `metric_for_best_model` is better.
    #[must_use]
    pub fn is_greater_better(&self) -> bool {
        let is_loss = || self.metric_for_best_model.as_deref().is_some_and(|metric| metric.ends_with("loss"));
        self.greater_is_better.unwrap_or_else(|| !is_loss())
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            device: device::CPU.into(),
            dtype: Dtype::F32,
            seed: 42,
            max_steps: 100,
            per_device_train_batch_size: 8,
            gradient_checkpointing: false,
            score_at_sampling: false,
            activation_budget: ACTIVATION_BUDGET,
            gradient_accumulation_steps: 1,
            steps_per_generation: 0,
            generation_batch_size: 0,
            num_iterations: 1,
            learning_rate: 1e-6,
            lr_scheduler_type: ScheduleKind::Linear,
            warmup_ratio: 0.0,
            weight_decay: 0.0,
            optimizer: OptimizerName::AdamW,
            sgd_momentum: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            second_moment: SecondMoment::Kept,
            moments_dtype: Dtype::F32,
            max_grad_norm: 1.0,
            loss_temperature: 1.0,
            loss_distribution: LossDistribution::Full,
            entropy_coef: 0.0,
            mask_denominator: Denominator::Kept,
            last_layer_top_k: 0,
            measure_step: 0,
            save_steps: 0,
            save_total_limit: 0,
            metric_for_best_model: None,
            greater_is_better: None,
            early_stopping_patience: 0,
            early_stopping_threshold: 0.0,
            max_completions: 0,
            max_time: 0.0,
            component_timeout: 600,
            component_state_limit: 65_536,
            output_dir: None,
        }
    }
}

impl Config {
    /// The names in reports of the run's components: rewards, advantage, objective, masks, weights, step controls.
    #[must_use]
    pub fn component_ids(&self) -> Vec<String> {
        let rewards = reward::names(&self.reward);
        let others = [&self.advantage, &self.objective].map(|component| component.id.clone());
        let lists = [&self.mask, &self.weight, &self.step_control].into_iter().flat_map(|list| component_names(list));
        rewards.into_iter().chain(others).chain(lists).collect()
    }

    /// Refuses benchmarks that cannot be, and a reward that is to decide about answers but is not there.
    ///
    /// # Errors
    ///
    /// The first one.
    pub fn check_eval(&self) -> Result<()> {
        let rewards: Vec<&str> = self.reward.iter().map(|reward| reward.id.as_str()).collect();
        self.eval.check(&rewards)
    }

    /// What the sampler computes in.
    #[must_use]
    pub fn sampler_dtype(&self) -> Dtype {
        self.rollout.dtype.unwrap_or(self.train.dtype)
    }

    /// How many whole completions the sampler's cache has room for.
    #[must_use]
    pub fn cached_completions(&self) -> usize {
        match self.rollout.max_num_seqs {
            // Those that wait for a place follow others in it.
            most if (1..self.sizes.rollout).contains(&most) => 2 * most,
            _ => self.sizes.rollout,
        }
    }

    /// Whether completions are drawn from another distribution than the one that the loss sees.
    #[must_use]
    pub fn sampler_differs(&self) -> bool {
        let RolloutConfig { temperature, top_k, top_p, .. } = self.rollout;
        self.sampler_dtype() != self.train.dtype
            || top_k > 0
            || top_p < 1.0
            || temperature != self.train.loss_temperature as f32
    }

    /// What the loss's log-probabilities are of, where that is not the whole distribution.
    #[must_use]
    pub fn loss_truncation(&self) -> Option<Truncation> {
        let RolloutConfig { temperature, top_k, top_p, .. } = self.rollout;
        let truncation = Truncation { temperature: f64::from(temperature), top_k, top_p: f64::from(top_p) };
        (self.train.loss_distribution == LossDistribution::Sampler).then_some(truncation)
    }

    /// The run's components besides its rewards.
    #[must_use]
    pub fn choice(&self) -> Choice<'_> {
        Choice {
            advantage: &self.advantage,
            objective: &self.objective,
            masks: &self.mask,
            weights: &self.weight,
            step_controls: &self.step_control,
        }
    }

    /// Makes the paths of models and data absolute, so that the run can be resumed from any directory. What a Hub's id means today is
    /// written down as the path of its snapshot, and which day it is where conversations may say so.
    ///
    /// # Errors
    ///
    /// When the working directory is gone, or the Hub's cache damaged.
    pub fn make_paths_absolute(&mut self) -> Result<()> {
        let rewards = self.reward.iter_mut().filter_map(RewardConfig::model_name_or_path);
        let ModelConfig { model_name_or_path, ref_model_name_or_path, .. } = &mut self.model;
        let mut models: Vec<&mut String> = rewards.chain([model_name_or_path]).chain(ref_model_name_or_path).collect();
        for model in &mut models {
            if let (false, Some(snapshot)) = (Path::new(model.as_str()).exists(), hub::find(model)?) {
                **model = snapshot.to_string_lossy().into_owned();
            }
        }
        let DataConfig { dataset_name, eval_dataset_name, chat_template, datasets, .. } = &mut self.data;
        let data = [Some(dataset_name), eval_dataset_name.as_mut()].into_iter().flatten();
        let files = self.eval.benchmark.iter_mut().map(|benchmark| &mut benchmark.file);
        let mut data: Vec<&mut String> =
            data.chain(datasets.iter_mut().map(|one| &mut one.path)).chain(files).collect();
        for name in &mut data {
            if let (false, Some(snapshot)) = (Path::new(name.as_str()).exists(), hub::find_dataset(name)?) {
                **name = snapshot.to_string_lossy().into_owned();
            }
        }
        let names = models.into_iter().chain(data).chain(chat_template);
        for name in names.filter(|name| Path::new(name.as_str()).exists()) {
            *name = std::path::absolute(name.as_str())?.to_string_lossy().into_owned();
        }
        if self.data.format == Format::Chat {
            self.data.date.get_or_insert_default();
        }
        Ok(())
    }
}
