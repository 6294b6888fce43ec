//! A batch that owns its arrays, as one read from a file does.

use capo_plugin::{Batch, LastLayer, OptimizerState, Tensor};

/// The batch of one optimizer step, in host memory.
#[derive(Debug, Clone)]
pub struct RecordedBatch {
    /// Extents, settings and scalars; its arrays are empty.
    pub scalars: Batch<'static>,
    /// `[B, T]`.
    pub completion_ids: Vec<u32>,
    /// `[B, T]`: 1 for tokens of the completion.
    pub completion_mask: Vec<u8>,
    /// `[B]`: 1 where the length limit cut the completion off.
    pub truncated: Vec<u8>,
    /// `[B]`, reward units.
    pub rewards: Vec<f32>,
    /// `[B, T]`, reward units.
    pub advantages: Vec<f32>,
    /// `[B, T]`, nats.
    pub logps: Vec<f32>,
    /// `[B, T]`, the objective's loss per token.
    pub losses: Option<Vec<f32>>,
    /// `[B, T]`, its derivative.
    pub dloss_dlogp: Option<Vec<f32>>,
    /// `[B, T]`, nats.
    pub old_logps: Option<Vec<f32>>,
    /// `[B, T]`, nats.
    pub ref_logps: Option<Vec<f32>>,
    /// `[B, T]`, nats.
    pub entropy: Option<Vec<f32>>,
    /// Features and logits.
    pub last_layer: Option<RecordedLayer>,
    /// The last layer's weight and the optimizer's moments of it.
    pub optimizer_state: Option<RecordedState>,
}

/// The last layer's features and logits; names and shapes as in [`LastLayer`].
#[derive(Debug, Clone)]
pub struct RecordedLayer {
    /// `[B, T, D]`.
    pub hidden: Vec<f32>,
    /// `[B, T, K]`.
    pub topk_ids: Vec<u32>,
    /// `[B, T, K]`.
    pub topk_logits: Vec<f32>,
    /// `[B, T]`.
    pub logsumexp: Vec<f32>,
    /// `[B, T]`.
    pub action_logits: Vec<f32>,
    /// V.
    pub vocab_size: usize,
    pub(crate) hidden_shape: [i64; 3],
    pub(crate) topk_shape: [i64; 3],
    pub(crate) token_shape: [i64; 2],
}

/// Three matrices `[V, D]`; names as in [`OptimizerState`].
#[derive(Debug, Clone)]
pub struct RecordedState {
    /// The weight.
    pub weight: Vec<f32>,
    /// Running mean of gradients.
    pub exp_avg: Vec<f32>,
    /// Running mean of squared gradients.
    pub exp_avg_sq: Vec<f32>,
    pub(crate) shape: [i64; 2],
}

impl RecordedBatch {
    /// What components see.
    #[must_use]
    pub fn view(&self) -> Batch<'_> {
        let mut batch: Batch<'_> = self.scalars;
        batch.completion_ids = &self.completion_ids;
        batch.completion_mask = &self.completion_mask;
        batch.truncated = &self.truncated;
        batch.rewards = &self.rewards;
        batch.advantages = &self.advantages;
        batch.logps = &self.logps;
        batch.losses = self.losses.as_deref();
        batch.dloss_dlogp = self.dloss_dlogp.as_deref();
        batch.old_logps = self.old_logps.as_deref();
        batch.ref_logps = self.ref_logps.as_deref();
        batch.entropy = self.entropy.as_deref();
        batch.last_layer = self.last_layer.as_ref().map(RecordedLayer::view);
        batch.optimizer_state = self.optimizer_state.as_ref().map(RecordedState::view);
        batch
    }

    /// Number of completion tokens.
    #[must_use]
    pub fn completion_tokens(&self) -> u64 {
        self.completion_mask.iter().map(|&mask| u64::from(mask)).sum()
    }
}

impl RecordedLayer {
    fn view(&self) -> LastLayer<'_> {
        LastLayer::new(
            Tensor::from_f32(&self.hidden, &self.hidden_shape),
            Tensor::from_u32(&self.topk_ids, &self.topk_shape),
            Tensor::from_f32(&self.topk_logits, &self.topk_shape),
            Tensor::from_f32(&self.logsumexp, &self.token_shape),
            Tensor::from_f32(&self.action_logits, &self.token_shape),
            self.vocab_size,
        )
    }
}

impl RecordedState {
    fn view(&self) -> OptimizerState<'_> {
        let [weight, exp_avg, exp_avg_sq] =
            [&self.weight, &self.exp_avg, &self.exp_avg_sq].map(|values| Tensor::from_f32(values, &self.shape));
        OptimizerState::new(weight, exp_avg, exp_avg_sq)
    }
}
