//! A batch that owns its arrays, such as one that was read from a file.

use anyhow::Result;
use capo_plugin::{Batch, LastLayer, OptimizerState, Tensor};

use crate::arrays::Owned;
use crate::context::{PROMPT_IDS, RecordedContext, TOP_IDS};
use crate::sound;

/// The batch of one optimizer step, in host memory.
#[derive(Debug, Clone)]
pub struct RecordedBatch {
    /// Shape, settings and scalars; the arrays of this batch are empty.
    pub scalars: Batch<'static>,
    /// `[B, T]`: ids of the sampled tokens.
    pub completion_ids: Vec<u32>,
    /// `[B, T]`: 1 for tokens of the completion.
    pub completion_mask: Vec<u8>,
    /// `[B]`: 1 where the length limit cut the completion off.
    pub truncated: Vec<u8>,
    /// `[B]`: reward of each completion, reward units.
    pub rewards: Vec<f32>,
    /// `[B, T]`: advantage of each token, reward units.
    pub advantages: Vec<f32>,
    /// `[B, T]`, nats: log-probability of each token under the current policy.
    pub logps: Vec<f32>,
    /// `[B, T]`: the objective's loss per token.
    pub losses: Option<Vec<f32>>,
    /// `[B, T]`: derivative of the loss by `logps`.
    pub dloss_dlogp: Option<Vec<f32>>,
    /// `[B, T]`, nats: log-probability of each token when it was sampled.
    pub old_logps: Option<Vec<f32>>,
    /// `[B, T]`, nats: log-probability of each token under the reference model.
    pub ref_logps: Option<Vec<f32>>,
    /// `[B, T]`, nats: entropy of the current policy.
    pub entropy: Option<Vec<f32>>,
    /// Features and top logits of the last layer.
    pub last_layer: Option<RecordedLayer>,
    /// The last layer's weight and its moments in the optimizer.
    pub optimizer_state: Option<RecordedState>,
    /// The rollout's context.
    pub context: Option<RecordedContext>,
}

/// The last layer's features and logits; names and shapes as in [`LastLayer`].
#[derive(Debug, Clone)]
pub struct RecordedLayer {
    /// `[B, T, D]`: features.
    pub hidden: Owned<f32>,
    pub(crate) topk_ids: Owned<u32>,
    pub(crate) topk_logits: Owned<f32>,
    pub(crate) logsumexp: Owned<f32>,
    pub(crate) action_logits: Owned<f32>,
    pub(crate) vocab_size: usize,
}

/// Three matrices `[V, D]`; names as in [`OptimizerState`].
#[derive(Debug, Clone)]
pub struct RecordedState {
    pub(crate) weight: Owned<f32>,
    pub(crate) exp_avg: Owned<f32>,
    pub(crate) exp_avg_sq: Owned<f32>,
}

impl RecordedBatch {
    /// Borrows the batch in the form that components see.
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
        batch.rollout_context = self
            .context
            .as_ref()
            .map(|context| context.data.lend(context.age));
        batch.sampler_top_k = self
            .context
            .as_ref()
            .and_then(|context| context.data.top_k());
        batch
    }

    /// Refuses values that no run records: scalars out of range, ids outside the vocabulary, parts
    /// that do not fit together.
    pub(crate) fn check(&self) -> Result<()> {
        let data = self.context.as_ref().map(|context| &context.data);
        let (prompt_ids, top_ids) =
            data.map_or((&[][..], &[][..]), |data| (&data.prompt_ids, &data.top_ids));
        sound::check(
            &self.view(),
            &[(PROMPT_IDS, prompt_ids), (TOP_IDS, top_ids)],
        )
    }

    /// Number of completion tokens.
    pub fn completion_tokens(&self) -> u64 {
        self.completion_mask
            .iter()
            .map(|&mask| u64::from(mask))
            .sum()
    }
}

impl RecordedLayer {
    fn view(&self) -> LastLayer<'_> {
        LastLayer::new(
            self.hidden.view(),
            Tensor::from_u32(&self.topk_ids.values, &self.topk_ids.shape),
            self.topk_logits.view(),
            self.logsumexp.view(),
            self.action_logits.view(),
            self.vocab_size,
        )
    }
}

impl RecordedState {
    fn view(&self) -> OptimizerState<'_> {
        OptimizerState::new(
            self.weight.view(),
            self.exp_avg.view(),
            self.exp_avg_sq.view(),
        )
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::testing::Fixture;

    use super::*;
    use crate::batch_file;

    /// One completion of one token, as it comes from a file.
    fn batch() -> RecordedBatch {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("batch.safetensors");
        let fixture = Fixture::new(1, 1);
        let context = fixture.context();
        batch_file::write(&path, &fixture.batch_with(&context), Some((&context, 0))).unwrap();
        batch_file::read(&path).unwrap()
    }

    fn refused(change: impl FnOnce(&mut RecordedBatch)) -> String {
        let mut batch = batch();
        batch.check().expect("it is well without the change");
        change(&mut batch);
        batch.check().unwrap_err().to_string()
    }

    /// The last layer of a batch, which must have one.
    fn last(batch: &mut RecordedBatch) -> &mut RecordedLayer {
        batch.last_layer.as_mut().unwrap()
    }

    #[test]
    fn what_no_run_records_is_refused() {
        let said = [
            refused(|batch| batch.scalars.max_completion_length = 0),
            refused(|batch| batch.scalars.sampling_temperature = f32::NAN),
            refused(|batch| batch.scalars.loss_temperature = 0.0),
            refused(|batch| batch.scalars.sampling_top_p = 1.5),
            refused(|batch| batch.scalars.optimizer.beta2 = 1.0),
            refused(|batch| batch.scalars.optimizer.learning_rate = f64::INFINITY),
            refused(|batch| batch.logps[0] = f32::NAN),
            refused(|batch| batch.old_logps = Some(vec![f32::NAN])),
            refused(|batch| batch.context.as_mut().unwrap().data.sampler_logps[0] = f32::NAN),
            refused(|batch| batch.rewards[0] = f32::NAN),
            refused(|batch| last(batch).vocab_size = 0),
            refused(|batch| last(batch).vocab_size = 1 << 40),
            refused(|batch| last(batch).vocab_size = 3),
            refused(|batch| last(batch).topk_ids.values[0] = 16),
            refused(|batch| batch.completion_ids[0] = u32::MAX),
            refused(|batch| batch.optimizer_state.as_mut().unwrap().weight.shape = vec![8, 16]),
        ];
        assert_eq!(
            include_str!("recorded_refused.txt")
                .lines()
                .collect::<Vec<_>>(),
            said
        );
    }
}
