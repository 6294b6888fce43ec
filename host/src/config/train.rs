//! `[train]`: the optimizer, its steps, and when the run ends.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::omission::{is_default, may_be_left_out};
use crate::adamw::SecondMoment;
use crate::model::device::{self, Dtype};
use crate::optim::OptimizerName;
use crate::schedule::ScheduleKind;

/// `[train]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Where the policy computes: `cpu`, or `cuda:N`.
    pub device: String,
    /// Floating-point type of the computation: `f32` or `bf16`.
    pub dtype: Dtype,
    /// Source of every random choice.
    pub seed: u64,
    /// Optimizer steps.
    pub max_steps: u64,
    /// Completions of one backward pass (a micro-batch).
    pub per_device_train_batch_size: usize,
    /// True if activations are computed again in the backward pass, a layer at a time, in place of being kept: less memory, one more forward
    /// pass, the same bits.
    #[serde(skip_serializing_if = "is_default")]
    pub gradient_checkpointing: bool,
    /// Take what masks and objective see of a step from the sampler's own passes, where it draws from the policy as it is trained and each
    /// rollout is used by one step: no log-probability pass.
    #[serde(skip_serializing_if = "is_default")]
    pub score_at_sampling: bool,
    /// With several micro-batches: MiB of activations that the log-probability pass keeps for the backward pass; the rest is computed twice.
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
    /// The optimizer: `adamw`, or `sgd`, where a mask shortens the step by itself.
    #[serde(skip_serializing_if = "is_default")]
    pub optimizer: OptimizerName,
    /// Momentum of SGD, as in `torch.optim.SGD`: the share of the sum of gradients that the next step keeps.
    ///
    /// Weight decay is decoupled all the same, and of matrices only, as in AdamW.
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
    /// Storage type of the optimizer's moments, for matrices below the last layer; `bf16`, on the CPU, halves their memory.
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
    /// Tokens over which a loss is averaged after masking: the `kept` ones or all `original` ones.
    pub mask_denominator: MaskDenominator,
    /// The masks and weights that are factors of the loss and not of each token's own gradient, by what reports call them; TRL's settings put theirs
    /// here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loss_factors: Vec<String>,
    /// K of the last-layer inputs; 0 takes the sampler's `top_k`, or 50 where that is off.
    pub last_layer_top_k: usize,
    /// Interval, in optimizer steps, at which the change of the policy is measured and recorded as `step/...`; 0 is off.
    #[serde(skip_serializing_if = "is_default")]
    pub measure_step: u64,
    /// Checkpoint interval in optimizer steps; 0 writes one at the end only.
    pub save_steps: u64,
    /// Older checkpoints are deleted; 0 keeps all.
    pub save_total_limit: usize,
    /// The metric of evaluations that says which checkpoint is the best: it is kept.
    pub metric_for_best_model: Option<String>,
    /// True if larger is better. Left out, it is true unless the metric's name ends in `loss`.
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
    pub output_dir: Option<PathBuf>,
}

/// Tokens over which a loss is averaged after masking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaskDenominator {
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
    /// The part of it that top-k and top-p leave.
    Sampler,
}

/// `train.activation_budget` where it is not said, MiB.
const ACTIVATION_BUDGET: u64 = 1024;

fn is_default_budget(value: &u64) -> bool {
    may_be_left_out(*value == ACTIVATION_BUDGET)
}

impl TrainConfig {
    /// True if a larger value of `metric_for_best_model` is better.
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
            mask_denominator: MaskDenominator::Kept,
            loss_factors: Vec::new(),
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
