//! The batch of one optimizer step: its data, which the stages fill in, and the view of it that
//! components get.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::{Context, Result};
use capo_plugin::{Batch, ContextData, Denominator, Dims, OptimizerInfo, Reduction, Tensor};
use host_model::{LastLayerData, LastLayerOutputs, Sequences, TokenOutputs};

use super::lend::{HeadState, LentLayer};
use crate::config::{Config, MaskDenominator};

/// The settings of a step that components see: a batch without arrays.
pub type StepInfo = Batch<'static>;

/// The settings of `config` at `step`.
pub fn step_info(
    config: &Config,
    step: u64,
    iteration: u64,
    reduction: Reduction,
    optimizer: OptimizerInfo,
) -> StepInfo {
    let (rollout, train) = (&config.rollout, &config.train);
    let mut info = Batch::new(
        Dims {
            completions: 0,
            tokens: 0,
            group_size: 1,
        },
        optimizer,
    );
    info.step = step;
    info.max_steps = train.max_steps;
    info.iteration = iteration;
    info.seed = train.seed;
    info.sampling_temperature = rollout.temperature;
    info.sampling_top_k = rollout.top_k as u32;
    info.sampling_top_p = rollout.top_p;
    info.loss_temperature = train.loss_temperature as f32;
    info.max_completion_length = rollout.max_completion_length;
    info.reduction = reduction;
    info.denominator = match train.mask_denominator {
        MaskDenominator::Kept => Denominator::KEPT,
        MaskDenominator::Original => Denominator::ORIGINAL,
    };
    info
}

/// Sampled and rewarded completions: a rollout, or the part of it that one optimizer step uses.
/// Letters as in [`capo_plugin::Batch`].
#[derive(Debug, Clone)]
pub struct SampledBatch {
    /// Prompts and completions, one row per completion.
    pub sequences: Sequences,
    /// The sizes B, T and G.
    pub dims: Dims,
    /// `[B, T]`: ids of the sampled tokens.
    pub completion_ids: Vec<u32>,
    /// `[B, T]`: 1 for tokens that the model drew, 0 for those of an environment and for padding.
    pub completion_mask: Vec<u8>,
    /// `[B]`: 1 where the length limit cut the completion off.
    pub truncated: Vec<u8>,
    /// `[B]`: reward of each completion, reward units.
    pub rewards: Vec<f32>,
    /// Number of completed optimizer steps when the completions were sampled.
    pub sampled_at: u64,
    /// `[B, T]`, nats: log-probabilities under the sampling policy; `None` if the first
    /// log-probability pass uses this policy.
    pub old_logps: Option<Vec<f32>>,
    /// `[B, T]`, nats: log-probabilities with which the sampler drew the tokens, 0 on padding;
    /// `None` unless a component asks.
    pub sampler_logps: Option<Vec<f32>>,
    /// Texts, prompt numbers and columns of the dataset; `None` unless a component asks.
    pub context: Option<ContextData>,
}

/// A sampled batch after the forward passes of policy and reference model: input of the advantage
/// estimator.
#[derive(Debug, Clone)]
pub struct BatchWithLogps {
    pub sampled: SampledBatch,
    /// `[B, T]`, nats: log-probabilities under the current policy.
    pub logps: Vec<f32>,
    /// `[B, T]`, nats: log-probabilities under the policy that sampled.
    pub old_logps: Vec<f32>,
    /// `[B, T]`, nats: entropy of the current policy.
    pub entropy: Vec<f32>,
    /// `[B, T]`, nats: log-probabilities under the reference model, if there is one.
    pub ref_logps: Option<Vec<f32>>,
    /// `[B * T, D]`: features from which the tokens' logits are computed; `None` unless the step is
    /// measured.
    pub hidden: Option<candle_core::Tensor>,
    /// Features and logits of the last layer; `None` unless a component asks.
    pub last_layer: Option<LastLayerOutputs>,
    lent: Option<LentLayer>,
    /// The head and its moments in the optimizer; `None` unless a component asks.
    pub head_state: Option<HeadState>,
    shapes: Shapes,
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

/// Extents of the view's tensors, which borrow them.
#[derive(Debug, Clone, Copy, Default)]
struct Shapes {
    tokens: [i64; 2],
    hidden: [i64; 3],
    topk: [i64; 3],
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
        Self {
            sequences,
            dims,
            completion_ids,
            completion_mask,
            truncated,
            rewards,
            sampled_at: 0,
            old_logps: None,
            sampler_logps: None,
            context: None,
        }
    }

    /// Takes the tokens `added`, which the model did not draw, out of the loss and of all that
    /// counts tokens. The model attends to them.
    pub fn leave_out(&mut self, completion: usize, added: &[Range<usize>]) {
        let first = self.dims.row(completion).start;
        added
            .iter()
            .for_each(|range| self.completion_mask[first + range.start..first + range.end].fill(0));
    }

    /// The completions `rows`, a whole number of groups, as a batch.
    pub fn part(&self, rows: Range<usize>) -> Self {
        let tokens = rows.start * self.dims.tokens as usize..rows.end * self.dims.tokens as usize;
        let cut = |values: &Option<Vec<f32>>| {
            values
                .as_ref()
                .map(|values| values[tokens.clone()].to_vec())
        };
        Self {
            sequences: self.sequences.slice(rows.clone()),
            dims: Dims {
                completions: rows.len() as u64,
                ..self.dims
            },
            completion_ids: self.completion_ids[tokens.clone()].to_vec(),
            completion_mask: self.completion_mask[tokens.clone()].to_vec(),
            truncated: self.truncated[rows.clone()].to_vec(),
            rewards: self.rewards[rows.clone()].to_vec(),
            sampled_at: self.sampled_at,
            old_logps: cut(&self.old_logps),
            sampler_logps: cut(&self.sampler_logps),
            context: self
                .context
                .as_ref()
                .map(|context| context.part(rows.clone())),
        }
    }

    /// Number of completion tokens.
    pub fn completion_tokens(&self) -> u64 {
        self.completion_mask
            .iter()
            .map(|&mask| u64::from(mask))
            .sum()
    }
}

impl BatchWithLogps {
    /// `sampled` with the outputs of the policy's forward passes, without a reference model.
    pub fn new(mut sampled: SampledBatch, outputs: TokenOutputs) -> Result<Self> {
        let TokenOutputs {
            logps,
            entropy,
            hidden,
            last_layer,
        } = outputs;
        let (b, t) = (sampled.dims.completions as i64, sampled.dims.tokens as i64);
        let (width, k) = last_layer
            .as_ref()
            .map_or((0, 0), LastLayerOutputs::extents);
        let lent = match &last_layer {
            Some(LastLayerOutputs::Device(tensors)) => Some(LentLayer::new(tensors)?),
            _ => None,
        };
        Ok(Self {
            // If one step uses the whole rollout, its first log-probability pass is by the policy
            // that sampled.
            old_logps: sampled.old_logps.take().unwrap_or_else(|| logps.clone()),
            sampled,
            logps,
            entropy: entropy.context("no entropy has been computed")?,
            ref_logps: None,
            hidden,
            last_layer,
            lent,
            head_state: None,
            shapes: Shapes {
                tokens: [b, t],
                hidden: [b, t, width as i64],
                topk: [b, t, k as i64],
            },
        })
    }

    /// The batch as components see it, with the given `advantages`, `[B, T]`.
    pub(super) fn view<'a>(&'a self, info: &StepInfo, advantages: &'a [f32]) -> Batch<'a> {
        let mut batch: Batch<'a> = *info;
        let sampled = &self.sampled;
        batch.dims = sampled.dims;
        batch.completion_ids = &sampled.completion_ids;
        batch.completion_mask = &sampled.completion_mask;
        batch.truncated = &sampled.truncated;
        batch.rewards = &sampled.rewards;
        batch.advantages = advantages;
        batch.logps = &self.logps;
        batch.old_logps = Some(&self.old_logps);
        batch.ref_logps = self.ref_logps.as_deref();
        batch.entropy = Some(&self.entropy);
        let Shapes {
            tokens,
            hidden,
            topk,
        } = &self.shapes;
        batch.last_layer = match (&self.last_layer, &self.lent) {
            (Some(LastLayerOutputs::Host(last)), _) => Some(self.borrow(last)),
            (_, lent) => lent.as_ref().map(|lent| lent.view(hidden, topk, tokens)),
        };
        batch.optimizer_state = self.head_state.as_ref().map(HeadState::view);
        batch.rollout_context = sampled
            .context
            .as_ref()
            .map(|context| context.lend(info.step - sampled.sampled_at));
        batch.sampler_top_k = sampled.context.as_ref().and_then(ContextData::top_k);
        batch
    }

    fn borrow<'a>(&'a self, last: &'a LastLayerData) -> capo_plugin::LastLayer<'a> {
        capo_plugin::LastLayer::new(
            Tensor::from_f32(&last.hidden, &self.shapes.hidden),
            Tensor::from_u32(&last.topk_ids, &self.shapes.topk),
            Tensor::from_f32(&last.topk_logits, &self.shapes.topk),
            Tensor::from_f32(&last.logsumexp, &self.shapes.tokens),
            Tensor::from_f32(&last.action_logits, &self.shapes.tokens),
            last.vocab_size,
        )
    }
}

impl StepBatch {
    /// The sampled completions.
    pub fn sampled(&self) -> &SampledBatch {
        &self.scored.sampled
    }

    /// The batch with every array in host memory.
    pub fn to_host(&self) -> Result<Cow<'_, Self>> {
        let BatchWithLogps {
            lent,
            last_layer,
            head_state,
            ..
        } = &self.scored;
        let on_host = lent.is_none() && head_state.as_ref().is_none_or(HeadState::is_on_host);
        if on_host {
            return Ok(Cow::Borrowed(self));
        }
        let mut copy = self.clone();
        copy.scored.lent = None;
        if let Some(last) = last_layer {
            copy.scored.last_layer = Some(LastLayerOutputs::Host(last.to_host()?.into_owned()));
        }
        copy.scored.head_state = head_state.as_ref().map(HeadState::to_host).transpose()?;
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
