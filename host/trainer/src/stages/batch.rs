//! The batch of one optimizer step: its data, which the stages fill in, and the view of it that
//! components get.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::{Context, Result};
use capo_plugin::{
    Batch, BatchBuffer, BatchScalars, Denominator, Dims, LayerBuffer, OptimizerInfo, OptimizerKind,
    Reduction, TensorBuffer,
};
use host_model::{LastLayerData, LastLayerOutputs, LastLayerTensors, Sequences, TokenOutputs};

use super::lend;
use crate::config::{Config, MaskDenominator};

/// The settings of a step that components see: a batch without arrays.
pub type StepInfo = BatchScalars;

/// The settings of `config` at `step`.
pub fn step_info(
    config: &Config,
    step: u64,
    iteration: u64,
    reduction: Reduction,
    optimizer: OptimizerInfo,
) -> StepInfo {
    let mut info = BatchScalars::new(NO_COMPLETIONS, optimizer);
    info.step = step;
    info.max_steps = config.train.max_steps;
    info.iteration = iteration;
    info.seed = config.train.seed;
    info.sampling_temperature = config.rollout.temperature;
    info.sampling_top_k = config.rollout.top_k as u32;
    info.sampling_top_p = config.rollout.top_p;
    info.loss_temperature = config.train.loss_temperature as f32;
    info.max_completion_length = config.rollout.max_completion_length;
    info.reduction = reduction;
    info.denominator = match config.train.mask_denominator {
        MaskDenominator::Kept => Denominator::KEPT,
        MaskDenominator::Original => Denominator::ORIGINAL,
    };
    info
}

/// Shape of a batch whose completions are not known yet.
const NO_COMPLETIONS: Dims = Dims {
    completions: 0,
    tokens: 0,
    group_size: 1,
};

/// Optimizer of a batch that is not of a step yet.
const NO_OPTIMIZER: OptimizerInfo = OptimizerInfo {
    kind: OptimizerKind::SGD,
    learning_rate: 0.0,
    beta1: 0.0,
    beta2: 0.0,
    eps: 0.0,
    weight_decay: 0.0,
    max_grad_norm: 0.0,
    steps_taken: 0,
};

/// Sampled and rewarded completions: a rollout, or the part of it that one optimizer step uses.
#[derive(Debug, Clone)]
pub struct SampledBatch {
    /// Prompts and completions, one row per completion.
    pub sequences: Sequences,
    /// The arrays that components see. Each stage fills in its own; of the scalars, only the shape
    /// counts. `old_logps` is `None` if the first log-probability pass uses the policy that
    /// sampled, and the rollout's context unless a component asks.
    pub arrays: BatchBuffer,
    /// Number of completed optimizer steps when the completions were sampled.
    pub sampled_at: u64,
    /// `[B, T]`, nats: log-probabilities with which the sampler drew the tokens, 0 on padding;
    /// `None` unless a component asks.
    pub sampler_logps: Option<Vec<f32>>,
}

/// A sampled batch after the forward passes of policy and reference model: input of the advantage
/// estimator. Its arrays have the log-probabilities and the entropy.
#[derive(Debug, Clone)]
pub struct BatchWithLogps {
    pub sampled: SampledBatch,
    /// `[B * T, D]`: features from which the tokens' logits are computed; `None` unless the step is
    /// measured.
    pub hidden: Option<candle_core::Tensor>,
    /// Features and logits of the last layer where they are on a device, which the arrays lend.
    pub device_layer: Option<LastLayerTensors>,
    /// The last layer's weight and its moments where they are on a device, which the arrays lend.
    device_state: Option<[candle_core::Tensor; 3]>,
}

/// A batch with log-probabilities, advantages and loss: input of masks, weights, the backward pass
/// and step controls.
#[derive(Debug, Clone)]
pub struct StepBatch {
    /// The batch before advantages and loss.
    pub scored: BatchWithLogps,
    /// `[B, T]`: advantage of each token, reward units.
    pub advantages: Vec<f32>,
    /// The objective's loss per token.
    pub loss: TokenLoss,
}

/// A loss per token, before masking and reduction.
#[derive(Debug, Clone)]
pub struct TokenLoss {
    /// `[B, T]`: loss of each token.
    pub loss: Vec<f32>,
    /// `[B, T]`: derivative of the loss by the token's log-probability.
    pub dloss_dlogp: Vec<f32>,
}

/// A loss with factors of masks and weights inside, and the weights that remain to be applied to
/// each token's derivative.
#[derive(Debug, Clone)]
pub struct Factored {
    pub loss: TokenLoss,
    /// `[B, T]`: the product of all other weights; 0 for tokens that other masks dropped, and
    /// padding.
    pub token_weights: Vec<f32>,
}

impl SampledBatch {
    /// A batch of `completions`, sampled at step 0.
    ///
    /// `completions[b]` holds the tokens of completion `b`. `truncated[b]` is true if the length
    /// limit cut it off.
    pub fn new(
        sequences: Sequences,
        completions: &[&[u32]],
        truncated: Vec<u8>,
        rewards: Vec<f32>,
        group_size: usize,
        pad_id: u32,
    ) -> Self {
        let tokens = sequences.completion_len;
        let dims = Dims {
            completions: completions.len() as u64,
            tokens: tokens as u64,
            group_size: group_size as u64,
        };
        let mut completion_ids = vec![pad_id; dims.len()];
        let mut completion_mask = vec![0; dims.len()];
        for (b, ids) in completions.iter().enumerate() {
            let row = b * tokens..b * tokens + ids.len();
            completion_ids[row.clone()].copy_from_slice(ids);
            completion_mask[row].fill(1);
        }
        let mut arrays = BatchBuffer::new(BatchScalars::new(dims, NO_OPTIMIZER));
        arrays.completion_ids = completion_ids.into();
        arrays.completion_mask = completion_mask.into();
        arrays.truncated = truncated.into();
        arrays.rewards = rewards.into();
        Self {
            sequences,
            arrays,
            sampled_at: 0,
            sampler_logps: None,
        }
    }

    /// The sizes B, T and G.
    pub fn dims(&self) -> Dims {
        self.arrays.scalars.dims
    }

    /// `[B, T]`: 1 for tokens that the model drew, 0 for those of an environment and for padding.
    pub fn completion_mask(&self) -> &[u8] {
        &self.arrays.completion_mask
    }

    /// Takes the tokens `added`, which the model did not draw, out of the loss and of all that
    /// counts tokens. The model attends to them.
    pub fn leave_out(&mut self, completion: usize, added: &[Range<usize>]) {
        let first = self.dims().row(completion).start;
        for range in added {
            self.arrays.completion_mask[first + range.start..first + range.end].fill(0);
        }
    }

    /// The completions `rows`, a whole number of groups, as a batch.
    pub fn part(&self, rows: Range<usize>) -> Self {
        let tokens = self.dims().tokens as usize;
        let own = rows.start * tokens..rows.end * tokens;
        let sampler_logps = self.sampler_logps.as_ref();
        Self {
            sequences: self.sequences.slice(rows.clone()),
            arrays: self.arrays.part(rows),
            sampled_at: self.sampled_at,
            sampler_logps: sampler_logps.map(|logps| logps[own].to_vec()),
        }
    }

    /// Number of completion tokens.
    pub fn completion_tokens(&self) -> u64 {
        self.arrays.completion_tokens()
    }
}

impl BatchWithLogps {
    /// `sampled` with the outputs of the policy's forward passes, without a reference model.
    pub fn new(mut sampled: SampledBatch, outputs: TokenOutputs) -> Result<Self> {
        let dims = sampled.dims();
        let arrays = &mut sampled.arrays;
        // If one step uses the whole rollout, its first log-probability pass is by the policy that
        // sampled.
        let old_logps = arrays.old_logps.take();
        arrays.old_logps = Some(old_logps.unwrap_or_else(|| outputs.logps.clone().into()));
        arrays.logps = outputs.logps.into();
        arrays.entropy = Some(
            outputs
                .entropy
                .context("no entropy has been computed")?
                .into(),
        );
        let mut device_layer = None;
        arrays.last_layer = match outputs.last_layer {
            None => None,
            Some(LastLayerOutputs::Host(data)) => Some(layer_of(data, dims)),
            Some(LastLayerOutputs::Device(tensors)) => {
                let layer = lend::layer(&tensors, dims)?;
                device_layer = Some(tensors);
                Some(layer)
            }
        };
        Ok(Self {
            sampled,
            hidden: outputs.hidden,
            device_layer,
            device_state: None,
        })
    }

    /// Adds a snapshot of the last layer's weight and its moments in the optimizer, which later
    /// updates do not change.
    pub fn add_head_state(&mut self, matrices: [&candle_core::Tensor; 3]) -> Result<()> {
        let arrays = &mut self.sampled.arrays;
        let [weight, exp_avg, exp_avg_sq] = matrices;
        if weight.device().is_cpu() {
            arrays.optimizer_state = Some(lend::host_state(matrices)?);
            return Ok(());
        }
        let copies = [weight.copy()?, exp_avg.copy()?, exp_avg_sq.copy()?];
        arrays.optimizer_state = Some(lend::state(&copies)?);
        self.device_state = Some(copies);
        Ok(())
    }

    /// `[B, T]`, nats: log-probabilities under the current policy.
    pub fn logps(&self) -> &[f32] {
        &self.sampled.arrays.logps
    }

    /// `[B, T]`, nats: log-probabilities under the policy that sampled.
    pub fn old_logps(&self) -> &[f32] {
        self.sampled
            .arrays
            .old_logps
            .as_deref()
            .expect("`new` fills it in")
    }

    /// `[B, T]`, nats: entropy of the current policy.
    pub fn entropy(&self) -> &[f32] {
        self.sampled
            .arrays
            .entropy
            .as_deref()
            .expect("`new` fills it in")
    }

    /// The batch as components see it, with the given `advantages`, `[B, T]`.
    pub(super) fn view<'a>(&'a self, info: &StepInfo, advantages: &'a [f32]) -> Batch<'a> {
        let context = self.sampled.arrays.context.as_ref();
        let age = info.step - self.sampled.sampled_at;
        let mut batch = self.sampled.arrays.view_with(info);
        batch.advantages = advantages;
        batch.rollout_context = context.map(|context| context.data.lend(age));
        batch
    }
}

/// Data of the last layer in host memory, as components see it.
fn layer_of(data: LastLayerData, dims: Dims) -> LayerBuffer {
    let b = dims.completions as i64;
    let t = dims.tokens as i64;
    let d = data.width as i64;
    let k = data.k as i64;
    LayerBuffer {
        hidden: TensorBuffer::new(data.hidden, &[b, t, d]),
        topk_ids: TensorBuffer::new(data.topk_ids, &[b, t, k]),
        topk_logits: TensorBuffer::new(data.topk_logits, &[b, t, k]),
        logsumexp: TensorBuffer::new(data.logsumexp, &[b, t]),
        action_logits: TensorBuffer::new(data.action_logits, &[b, t]),
        vocab_size: data.vocab_size,
    }
}

impl StepBatch {
    /// The sampled completions.
    pub fn sampled(&self) -> &SampledBatch {
        &self.scored.sampled
    }

    /// The batch with every array in host memory.
    pub fn to_host(&self) -> Result<Cow<'_, Self>> {
        if self.scored.device_layer.is_none() && self.scored.device_state.is_none() {
            return Ok(Cow::Borrowed(self));
        }
        let mut copy = self.clone();
        let dims = copy.sampled().dims();
        let arrays = &mut copy.scored.sampled.arrays;
        if let Some(layer) = copy.scored.device_layer.take() {
            arrays.last_layer = Some(layer_of(layer.to_host()?, dims));
        }
        if let Some(state) = copy.scored.device_state.take() {
            arrays.optimizer_state = Some(lend::host_state(state.each_ref())?);
        }
        Ok(Cow::Owned(copy))
    }

    /// The batch as components see it.
    pub fn view(&self, info: &StepInfo) -> Batch<'_> {
        let mut batch = self.scored.view(info, &self.advantages);
        batch.losses = Some(&self.loss.loss);
        batch.dloss_dlogp = Some(&self.loss.dloss_dlogp);
        batch
    }
}
