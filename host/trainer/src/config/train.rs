//! `[train]`: the optimizer, its steps, and the end of the run.

use std::path::PathBuf;

use host_model::device::{self, Dtype};
use host_model::optim::OptimizerName;
use host_model::optim::adamw::SecondMoment;
use host_model::schedule::ScheduleKind;
use serde::{Deserialize, Serialize};

use super::setting::{Setting, Settings, settings};

/// The most times that a rollout is used.
const MOST_ITERATIONS: usize = 1000;

/// Section `[train]`.
#[settings]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TrainConfig {
    /// Device of the policy: `cpu`, or `cuda:N` in a host built with `--features cuda`. `--device`
    /// overrides it.
    #[setting(default = device::CPU.into())]
    pub device: String,
    /// Data type of activations, features and the weights that products read. The trained weights,
    /// moments, logits and losses are f32 in either. [On the CPU](../docs/models.md#in-bf16) `bf16`
    /// saves memory.
    #[setting(default = Dtype::F32, trl = ["dtype", "bf16", "fp16"])]
    #[setting(differs = "TRL's `bf16` is on by default; there is no fp16")]
    pub dtype: Dtype,
    /// On a GPU: whether products of f32 may round their operands to TF32, up to 4.9e-4 of each
    /// ([when](../docs/gpu.md#products-of-f32)).
    #[setting(unset = "true in bf16", trl)]
    pub tf32: Option<bool>,
    /// The source of every random choice.
    #[setting(default = 42, trl, verl = ["data.seed"])]
    pub seed: u64,
    /// Number of optimizer steps.
    #[setting(default = 100, at_least = 1, trl, verl = ["trainer.total_training_steps"])]
    pub max_steps: u64,
    /// Completions of one backward pass (a micro-batch).
    #[setting(default = 8, at_least = 1, trl, verl = ["actor.ppo_micro_batch_size_per_gpu"])]
    #[setting(differs = "completions, as in TRL, and of one device")]
    pub per_device_train_batch_size: usize,
    /// True keeps one `hidden_size` per token and layer for the backward pass and computes the rest
    /// again, to the same bits: [memory](../docs/models.md#memory-of-a-step).
    #[setting(default = false, trl, verl = ["model.enable_gradient_checkpointing"])]
    #[setting(differs = "off by default; TRL's is on")]
    pub gradient_checkpointing: bool,
    /// True takes the inputs of masks and objective from the sampler's own passes:
    /// [no log-probability pass](../docs/models.md#speed-of-a-step). The sampler must draw from the
    /// trained policy, for one step per rollout.
    #[setting(default = false)]
    pub score_at_sampling: bool,
    /// With several micro-batches: activations that the log-probability pass keeps for the backward
    /// pass. The others are computed twice, to the same bits.
    #[setting(default = 1024, unit = "MiB")]
    pub activation_budget: u64,
    /// Backward passes of one optimizer step. The split changes last digits of the gradient, and
    /// [nothing before it](../docs/objectives.md#batches).
    #[setting(default = 1, at_least = 1, trl)]
    pub gradient_accumulation_steps: usize,
    /// Backward passes that one rollout feeds; 0 is `gradient_accumulation_steps`. A rollout has at
    /// most 1048576 completions.
    #[setting(default = 0, trl)]
    pub steps_per_generation: usize,
    /// Completions of one rollout, in place of `steps_per_generation`; 0 is off
    /// ([batches](../docs/objectives.md#batches)).
    #[setting(default = 0, trl)]
    pub generation_batch_size: usize,
    /// How often a rollout is used.
    #[setting(default = 1, at_least = 1, at_most = MOST_ITERATIONS, trl)]
    #[setting(verl = ["actor.ppo_epochs"])]
    pub num_iterations: usize,
    /// The peak learning rate.
    #[setting(default = 1e-6, at_least = 0, trl, verl = ["actor.optim.lr"])]
    pub learning_rate: f64,
    /// Course of the learning rate after its warm-up.
    #[setting(default = ScheduleKind::Linear, trl, verl = ["actor.optim.lr_scheduler_type"])]
    pub lr_scheduler_type: ScheduleKind,
    /// Share of `max_steps`, rounded up to whole steps, during which the learning rate rises from 0. `constant` has no warm-up and refuses one.
    #[setting(default = 0.0, at_least = 0, at_most = 1, trl = ["warmup_steps"])]
    #[setting(verl = ["actor.optim.lr_warmup_steps_ratio"])]
    #[setting(
        differs = "a share of `max_steps`: divide a number of steps by it. TRL takes a number \
         below 1 as a share"
    )]
    pub warmup_ratio: f64,
    /// Decoupled weight decay, with either optimizer. It does not apply to biases and norms.
    #[setting(default = 0.0, at_least = 0, trl, verl = ["actor.optim.weight_decay"])]
    pub weight_decay: f64,
    /// The optimizer. With `sgd`, a mask that rejects tokens shortens the step.
    #[setting(default = OptimizerName::AdamW, trl = ["optim"], differs = "`adamw` or `sgd`")]
    pub optimizer: OptimizerName,
    /// Momentum of SGD, as in `torch.optim.SGD`: the factor of the earlier sum of gradients in the
    /// next step.
    #[setting(default = 0.0, at_least = 0, below = 1)]
    pub sgd_momentum: f64,
    /// Decay rate of Adam's first moment.
    #[setting(default = 0.9, at_least = 0, below = 1, trl, verl = ["actor.optim.betas"])]
    #[setting(needs = "adam")]
    pub adam_beta1: f64,
    /// Decay rate of Adam's second moment.
    #[setting(default = 0.999, at_least = 0, below = 1, trl, verl = ["actor.optim.betas"])]
    #[setting(needs = "adam")]
    pub adam_beta2: f64,
    // Weights are f32: a smaller number rounds to 0, and a weight without gradients would become 0
    // / 0.
    /// The number that is added to the square root of Adam's second moment.
    #[setting(default = 1e-8, at_least = f32::MIN_POSITIVE, at_most = f32::MAX)]
    #[setting(hint = "1e-8 is usual", trl, needs = "adam")]
    pub adam_epsilon: f64,
    /// The gradients that enter Adam's second moment: those `kept` by the masks, or
    /// `kept_and_rejected` ones: [why](#what-adam-undoes).
    #[setting(default = SecondMoment::Kept)]
    pub second_moment: SecondMoment,
    /// Data type of the optimizer's moments of matrices below the last layer. `bf16`, on the CPU,
    /// takes [half the memory](../docs/models.md#in-bf16).
    #[setting(default = Dtype::F32)]
    pub moments_dtype: Dtype,
    /// The largest global norm of a gradient; 0 turns clipping off.
    #[setting(default = 1.0, at_least = 0, trl, verl = ["actor.optim.clip_grad"])]
    pub max_grad_norm: f64,
    /// Temperature of the loss, which divides the logits; 1 is the model's own distribution.
    #[setting(
        default = 1.0,
        at_least = 1e-6,
        at_most = 100,
        hint = "1 is the model's own distribution"
    )]
    pub loss_temperature: f64,
    /// Distribution of the loss's log-probabilities: the `full` softmax, or that of the `sampler`,
    /// truncated by `rollout.top_k` and `top_p`
    /// ([which distribution](../docs/objectives.md#over-which-distribution)).
    #[setting(default = LossDistribution::Full)]
    pub loss_distribution: LossDistribution,
    /// Coefficient of the mean entropy of kept tokens, which is subtracted from the loss
    /// ([entropy bonus](../docs/objectives.md#an-entropy-bonus)).
    #[setting(default = 0.0, at_least = 0, trl, verl = ["actor.entropy_coeff"])]
    pub entropy_coef: f64,
    /// The tokens over which a loss is averaged after masking: the `kept` ones, or the `original`
    /// ones.
    #[setting(default = MaskDenominator::Kept)]
    pub mask_denominator: MaskDenominator,
    /// Masks and weights, by id, that multiply the loss and not each token's own gradient. This
    /// matters [if a completion has one
    /// ratio](../docs/objectives.md#factors-of-the-loss-and-of-the-gradient). TRL's settings add
    /// theirs here.
    #[setting(default = Vec::new())]
    pub loss_factors: Vec<String>,
    /// K: number of top tokens that masks see; 0 is the sampler's `top_k`, or 50 if that is off.
    #[setting(default = 0)]
    pub last_layer_top_k: usize,
    /// Measures the effect of a step every so many steps and records it as [`step/...`](#metrics);
    /// 0 is off.
    #[setting(default = 0, unit = "steps")]
    pub measure_step: u64,
    /// Steps between checkpoints; 0 is off. A run always writes one at its end.
    #[setting(default = 0, unit = "steps", trl, verl = ["trainer.save_freq"])]
    #[setting(differs = "0 by default, TRL's 500; `save_minutes` writes checkpoints by time")]
    pub save_steps: u64,
    /// Time between checkpoints by time, of which the newest is kept:
    /// [the most that a kill costs](../docs/reliability.md#what-a-kill-costs); 0 is off.
    #[setting(default = 10.0, unit = "minutes", at_least = 0)]
    pub save_minutes: f64,
    /// Most checkpoints kept, besides one by time. Older ones are deleted; 0 keeps all.
    #[setting(default = 0, trl, verl = ["trainer.max_actor_ckpt_to_keep"])]
    pub save_total_limit: usize,
    /// Evaluation metric that chooses
    /// [the best checkpoint](../docs/evaluation.md#the-best-checkpoint), which is kept.
    #[setting(trl = ["metric_for_best_model", "load_best_model_at_end"])]
    #[setting(differs = "the best checkpoint is always kept; `host export --model RUN` takes it")]
    pub metric_for_best_model: Option<String>,
    /// Whether a larger value of the metric is better.
    #[setting(
        unset = "true, unless the metric's name ends in `loss`",
        trl,
        needs = "metric"
    )]
    pub greater_is_better: Option<bool>,
    /// Evaluations without improvement after which the run ends; 0 is off.
    #[setting(default = 0, trl = ["EarlyStoppingCallback"], needs = "metric")]
    pub early_stopping_patience: u64,
    /// The least difference from the best value that counts as an improvement.
    #[setting(default = 0.0, at_least = 0, trl = ["EarlyStoppingCallback"], needs = "metric")]
    pub early_stopping_threshold: f64,
    /// Completions sampled for training after which the run ends, with their rollout; 0 is off.
    /// `max_steps` still sets the learning rate.
    #[setting(default = 0)]
    pub max_completions: u64,
    /// Time after which the process stops, at the end of a rollout, with a checkpoint; 0 is off.
    /// `--resume` goes on for as long again.
    #[setting(default = 0.0, unit = "seconds", at_least = 0)]
    pub max_time: f64,
    /// The longest call of a component, drop of it, or opening of its library. A longer one ends
    /// the run; 0 is no limit.
    #[setting(default = 600, unit = "seconds")]
    pub component_timeout: u64,
    /// The largest state of a component. A larger one is not written to a checkpoint; 0 is no
    /// limit.
    #[setting(default = 65_536, unit = "MiB")]
    pub component_state_limit: u64,
    /// A folder that does not exist yet, or that of a run which ended before its first step.
    #[setting(unset = "`runs/RECIPE-seedN`", trl = ["output_dir", "run_name"])]
    #[setting(verl = ["trainer.default_local_dir"])]
    #[setting(differs = "its last folder is the run's name")]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossDistribution {
    /// The whole softmax at `train.loss_temperature`.
    Full,
    /// The part of it that remains after top-k and top-p.
    Sampler,
}

impl TrainConfig {
    /// What chooses the best checkpoint: the metric, and whether more of it is better.
    pub fn measure_of_best(&self) -> Option<(String, bool)> {
        Some((
            self.metric_for_best_model.clone()?,
            self.is_greater_better(),
        ))
    }

    /// True if a larger value of `metric_for_best_model` is better.
    pub fn is_greater_better(&self) -> bool {
        let metric = self.metric_for_best_model.as_deref();
        let is_loss = metric.is_some_and(|metric| metric.ends_with("loss"));
        self.greater_is_better.unwrap_or(!is_loss)
    }
}
