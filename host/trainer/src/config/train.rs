//! `[train]`: the optimizer, its steps, and the end of the run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::omission::{is_default, may_be_left_out};
use crate::adamw::SecondMoment;
use crate::model::device::{self, Dtype};
use crate::optim::OptimizerName;
use crate::schedule::ScheduleKind;

/// Section `[train]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Device of the policy: `cpu`, or `cuda:N`.
    pub device: String,
    /// Floating-point type of the computation: `f32` or `bf16`.
    pub dtype: Dtype,
    /// True if products of f32 on a GPU may round their operands to TF32; `None` allows it where they come from bf16 and lose nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tf32: Option<bool>,
    /// Seed of every random choice.
    pub seed: u64,
    /// Number of optimizer steps.
    pub max_steps: u64,
    /// Number of completions of one backward pass (a micro-batch).
    pub per_device_train_batch_size: usize,
    /// True if the backward pass recomputes activations, one layer at a time, instead of storing them: less memory, one more forward
    /// pass, bitwise equal results.
    #[serde(skip_serializing_if = "is_default")]
    pub gradient_checkpointing: bool,
    /// True to reuse the sampler's own forward passes for the values that masks and objective read, instead of a log-probability pass. This
    /// needs a sampler that draws from the policy as it is trained, and one step per rollout.
    #[serde(skip_serializing_if = "is_default")]
    pub score_at_sampling: bool,
    /// With several micro-batches: MiB of activations that the log-probability pass keeps for the backward pass; others are recomputed.
    #[serde(skip_serializing_if = "is_default_budget")]
    pub activation_budget: u64,
    /// Number of micro-batches of one optimizer step.
    pub gradient_accumulation_steps: usize,
    /// Number of micro-batches of one rollout; 0 is `gradient_accumulation_steps`.
    pub steps_per_generation: usize,
    /// Number of completions of one rollout, in place of `steps_per_generation`; 0 leaves the choice to that setting.
    #[serde(skip_serializing_if = "is_default")]
    pub generation_batch_size: usize,
    /// Number of times that a rollout is used.
    pub num_iterations: usize,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// `cosine`, `linear`, `constant` or `constant_with_warmup`.
    pub lr_scheduler_type: ScheduleKind,
    /// Share of `max_steps` during which the learning rate rises from 0.
    pub warmup_ratio: f64,
    /// Decoupled weight decay; it applies to matrices only.
    pub weight_decay: f64,
    /// The optimizer: `adamw`, or `sgd`, with which a mask that rejects tokens shortens the step.
    #[serde(skip_serializing_if = "is_default")]
    pub optimizer: OptimizerName,
    /// Momentum of SGD, as in `torch.optim.SGD`: the factor of the earlier sum of gradients in the next step.
    ///
    /// Weight decay is still decoupled and applies to matrices only, as in AdamW.
    #[serde(skip_serializing_if = "is_default")]
    pub sgd_momentum: f64,
    /// Decay rate of Adam's first moment.
    pub adam_beta1: f64,
    /// Decay rate of Adam's second moment.
    pub adam_beta2: f64,
    /// Term added to the square root of Adam's second moment.
    pub adam_epsilon: f64,
    /// Gradients that enter Adam's second moment: those `kept` by the masks, or `kept_and_rejected`, with which a mask shortens the
    /// step.
    #[serde(skip_serializing_if = "is_default")]
    pub second_moment: SecondMoment,
    /// Storage type of the optimizer's moments, for matrices below the last layer. `bf16`, on the CPU, halves their memory.
    #[serde(skip_serializing_if = "is_default")]
    pub moments_dtype: Dtype,
    /// Largest global gradient norm; 0 turns clipping off.
    pub max_grad_norm: f64,
    /// Temperature of the loss: divisor of the logits.
    pub loss_temperature: f64,
    /// Distribution of the loss's log-probabilities: `full`, or that of the `sampler`, truncated by `rollout.top_k` and `rollout.top_p`.
    #[serde(skip_serializing_if = "is_default")]
    pub loss_distribution: LossDistribution,
    /// Coefficient of the entropy bonus: the loss is reduced by this times the mean entropy of the kept tokens.
    #[serde(skip_serializing_if = "is_default")]
    pub entropy_coef: f64,
    /// Tokens over which a loss is averaged after masking: the `kept` tokens, or all `original` tokens.
    pub mask_denominator: MaskDenominator,
    /// Names in reports of the masks and weights that are factors of the loss, not of each token's own gradient. TRL's settings add their
    /// components here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub loss_factors: Vec<String>,
    /// K: number of top logits in the last-layer inputs; 0 is the sampler's `top_k`, or 50 if top-k is off.
    pub last_layer_top_k: usize,
    /// Interval in optimizer steps at which the change of the policy is measured and recorded as `step/...`; 0 turns it off.
    #[serde(skip_serializing_if = "is_default")]
    pub measure_step: u64,
    /// Interval in optimizer steps between checkpoints; 0 writes one only at the end.
    pub save_steps: u64,
    /// Minutes between checkpoints by time, of which the newest is kept; 0 turns them off. They are written at the end of a rollout, and so
    /// limit what a killed run loses to this time, or to a rollout that takes longer.
    #[serde(skip_serializing_if = "is_default_minutes")]
    pub save_minutes: f64,
    /// Number of checkpoints to keep, besides one by time; older ones are deleted. 0 keeps all.
    pub save_total_limit: usize,
    /// Evaluation metric that determines the best checkpoint, which is kept.
    pub metric_for_best_model: Option<String>,
    /// True if a larger value of the metric is better. `None` is true unless the metric's name ends in `loss`.
    pub greater_is_better: Option<bool>,
    /// Number of evaluations without improvement after which the run ends; 0 turns it off.
    #[serde(skip_serializing_if = "is_default")]
    pub early_stopping_patience: u64,
    /// Least difference from the best value that counts as an improvement.
    #[serde(skip_serializing_if = "is_default")]
    pub early_stopping_threshold: f64,
    /// Number of sampled completions at which the run ends, after their rollout; 0 turns it off.
    #[serde(skip_serializing_if = "is_default")]
    pub max_completions: u64,
    /// Seconds after which the process stops, at the end of a rollout and with a checkpoint; 0 turns it off.
    #[serde(skip_serializing_if = "is_default")]
    pub max_time: f64,
    /// Longest call of a component, in seconds; 0 is no limit.
    pub component_timeout: u64,
    /// Largest state of a component in a checkpoint, in MiB; 0 is no limit.
    pub component_state_limit: u64,
    /// Folder of runs. Each run makes its own folder in it, unless the path does not exist yet and becomes the run's folder.
    pub output_dir: Option<PathBuf>,
}

/// Tokens over which a loss is averaged after masking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaskDenominator {
    /// The tokens that the masks keep: each kept token gains weight as others are rejected.
    Kept,
    /// All completion tokens: a rejected token contributes 0.
    Original,
}

/// Distribution of the loss's log-probabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossDistribution {
    /// The whole softmax at `train.loss_temperature`.
    #[default]
    Full,
    /// The part of it that remains after top-k and top-p.
    Sampler,
}

/// Default of `train.activation_budget`, in MiB.
const ACTIVATION_BUDGET: u64 = 1024;

/// Default of `train.save_minutes`.
const SAVE_MINUTES: f64 = 10.0;

fn is_default_minutes(value: &f64) -> bool {
    may_be_left_out(*value == SAVE_MINUTES)
}

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
            tf32: None,
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
            save_minutes: SAVE_MINUTES,
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
