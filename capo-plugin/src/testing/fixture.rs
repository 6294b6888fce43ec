//! Batches of any shape, with plausible values.

use std::ops::Range;

use super::layer::LayerData;
use super::measured::Measured;
use super::wobble;
use crate::{Batch, ContextData, Dims, Inputs, LastLayer, OptimizerInfo, OptimizerKind};

/// Sampled tokens, which repeat next to each other and as phrases. From position 30 on they begin
/// again, so that among completions of 5 or 6 tokens some are equal.
const IDS: [u32; 12] = [3, 7, 7, 3, 7, 0, 6, 6, 6, 12, 9, 3];

/// An owned batch with plausible values everywhere, every optional input included.
///
/// Values are a fixed function of their position, so they are equal on every machine. Ids repeat,
/// within completions and between them. A setter replaces one array and panics if its length does
/// not fit the batch. [`lengths`](Self::lengths) clears the padding of arrays that were set before
/// it, so call it last.
///
/// A component sees only the optional inputs that its `inputs` name, as in a trainer.
#[derive(Clone, Debug)]
pub struct Fixture {
    pub(super) dims: Dims,
    pub(super) optimizer: OptimizerInfo,
    pub(super) step_learning_rate: Option<f64>,
    pub(super) step: u64,
    pub(super) iteration: u64,
    pub(super) mask: Vec<u8>,
    pub(super) truncated: Vec<u8>,
    pub(super) ids: Vec<u32>,
    pub(super) rewards: Vec<f32>,
    pub(super) advantages: Vec<f32>,
    pub(super) logps: Vec<f32>,
    /// `−advantage`: the loss of an on-policy policy gradient.
    pub(super) losses: Vec<f32>,
    /// Derivatives of the losses, which are `−advantage` too.
    pub(super) slopes: Vec<f32>,
    pub(super) old_logps: Vec<f32>,
    /// Where `None`, values near `old_logps` are used.
    pub(super) sampler_logps: Option<Vec<f32>>,
    /// `[B]`: ids of each completion's prompt. Where `None`, three ids for each group.
    pub(super) prompts: Option<Vec<Vec<u32>>>,
    /// `[B, T]`: text that each token adds to its completion. Where `None`, a text for each id.
    pub(super) texts: Option<Vec<String>>,
    pub(super) ref_logps: Vec<f32>,
    pub(super) entropy: Vec<f32>,
    pub(super) layer: LayerData,
    /// Tokens that other masks kept.
    pub(super) token_mask: Vec<u8>,
    /// The proposed update for a step control.
    pub(super) update: Measured,
    /// Inputs that are absent even for a component that asks for them.
    pub(super) withheld: Inputs,
}

impl Fixture {
    /// B completions of T tokens, all in one group, without padding; D = 8, K = 4, V = 16.
    ///
    /// # Panics
    ///
    /// When `completions` is 0.
    pub fn new(completions: usize, tokens: usize) -> Self {
        assert!(completions > 0, "a batch has at least one completion");
        let dims = Dims {
            completions: completions as u64,
            tokens: tokens as u64,
            group_size: completions as u64,
        };
        let n = dims.len();
        let fill = |salt: u64, scale: f32, shift: f32| {
            (0..n)
                .map(|i| wobble(salt, i) * scale + shift)
                .collect::<Vec<_>>()
        };
        let logps = fill(1, -3.0, -0.01);
        let mut fixture = Self {
            dims,
            optimizer: OptimizerInfo {
                kind: OptimizerKind::ADAMW,
                learning_rate: 1e-3,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay: 0.0,
                max_grad_norm: 1.0,
                steps_taken: 0,
            },
            step_learning_rate: None,
            step: 0,
            iteration: 0,
            mask: vec![1; n],
            truncated: vec![0; completions],
            ids: (0..n).map(|i| IDS[i % 30 % 12]).collect(),
            rewards: (0..completions).map(|b| (b % 2) as f32).collect(),
            advantages: fill(3, 2.0, -1.0),
            losses: fill(3, -2.0, 1.0),
            slopes: fill(3, -2.0, 1.0),
            old_logps: logps.clone(),
            sampler_logps: None,
            prompts: None,
            texts: None,
            ref_logps: fill(4, -3.0, -0.01),
            entropy: fill(5, 2.0, 0.0),
            logps,
            layer: LayerData::new(dims, 8, 4, 16),
            token_mask: vec![1; n],
            update: Measured::default(),
            withheld: Inputs::NONE,
        };
        // The sampled token's logit must be consistent with its log-probability.
        let layer = &mut fixture.layer;
        for i in 0..n {
            layer.action_logits.0[i] = layer.logsumexp[i] + fixture.logps[i];
        }
        fixture
    }

    /// Cuts completion `b` to `lengths[b]` tokens; the rest is padding, zeroed everywhere.
    ///
    /// # Panics
    ///
    /// When there is not one length per completion, or one exceeds T.
    #[must_use]
    pub fn lengths(mut self, lengths: &[usize]) -> Self {
        assert_eq!(
            lengths.len(),
            self.dims.completions as usize,
            "one length per completion"
        );
        for (b, &length) in lengths.iter().enumerate() {
            assert!(
                length <= self.dims.tokens as usize,
                "length {length} exceeds T = {}",
                self.dims.tokens
            );
            self.dims.row(b).skip(length).for_each(|i| self.clear(i));
        }
        self
    }

    /// Makes the tokens at `places` of every completion those of others, such as the answer of an
    /// environment: no tokens of the policy, between such tokens.
    ///
    /// # Panics
    ///
    /// When the places exceed T.
    #[must_use]
    pub fn written_by_others(mut self, places: Range<usize>) -> Self {
        for b in 0..self.dims.completions as usize {
            let row = self.dims.row(b).start;
            places.clone().for_each(|t| self.clear(row + t));
        }
        self
    }

    fn clear(&mut self, i: usize) {
        self.mask[i] = 0;
        self.ids[i] = 0;
        let results = [&mut self.advantages, &mut self.losses, &mut self.slopes];
        for array in
            results
                .into_iter()
                .chain([&mut self.logps, &mut self.old_logps, &mut self.ref_logps])
        {
            array[i] = 0.0;
        }
    }

    /// Splits the completions into groups of `size`.
    ///
    /// # Panics
    ///
    /// When `size` does not divide B.
    #[must_use]
    pub fn groups_of(mut self, size: usize) -> Self {
        assert!(
            size > 0 && self.dims.completions.is_multiple_of(size as u64),
            "the group size divides B"
        );
        self.dims.group_size = size as u64;
        self
    }

    /// Sets the advantages, `[B, T]`, and sets losses and derivatives to `-advantage`.
    #[must_use]
    pub fn advantages(mut self, advantages: &[f32]) -> Self {
        replace(&mut self.advantages, advantages);
        let losses: Vec<f32> = advantages.iter().map(|advantage| -advantage).collect();
        self.losses(&losses, &losses)
    }

    /// Sets the objective's losses and derivatives for masks, `[B, T]` each.
    #[must_use]
    pub fn losses(mut self, losses: &[f32], dloss_dlogp: &[f32]) -> Self {
        replace(&mut self.losses, losses);
        replace(&mut self.slopes, dloss_dlogp);
        self
    }

    /// Sets the sampler's own log-probabilities, `[B, T]`, nats, for
    /// [`RolloutContext::sampler_logps`](crate::RolloutContext::sampler_logps). Without it they are
    /// 1% off `old_logps`.
    #[must_use]
    pub fn sampler_logps(mut self, sampler_logps: &[f32]) -> Self {
        assert_eq!(
            sampler_logps.len(),
            self.dims.len(),
            "`sampler_logps` is [B, T]"
        );
        self.sampler_logps = Some(sampler_logps.to_vec());
        self
    }

    /// Sets the texts that the completions' tokens add, for
    /// [`RolloutContext::text`](crate::RolloutContext::text) and
    /// [`span`](crate::RolloutContext::span): one list per completion, with a text per token. A
    /// list of fewer than T texts ends its completion there, as in [`lengths`](Self::lengths).
    /// Without it, a token's text depends on its id alone; there are letters, words, digits, signs
    /// and line breaks among them.
    ///
    /// ```
    /// use capo_plugin::testing::Fixture;
    ///
    /// let fixture = Fixture::new(2, 3).texts(&[&["1", "+", "1"], &["two", "."]]);
    /// let context = fixture.context();
    /// assert_eq!(context.lend(0).text(0), "1+1");
    /// assert_eq!(fixture.batch().completion_mask, [1, 1, 1, 1, 1, 0]);
    /// ```
    ///
    /// # Panics
    ///
    /// When there is not one list per completion, or one has more than T texts.
    #[must_use]
    pub fn texts(mut self, texts: &[&[&str]]) -> Self {
        let lengths: Vec<usize> = texts.iter().map(|texts| texts.len()).collect();
        let tokens = self.dims.tokens as usize;
        let text = |texts: &[&str], t: usize| texts.get(t).copied().unwrap_or_default().to_owned();
        self.texts = Some(
            texts
                .iter()
                .flat_map(|texts| (0..tokens).map(|t| text(texts, t)))
                .collect(),
        );
        self.lengths(&lengths)
    }

    /// Sets the ids of the prompts, one list per group, for
    /// [`RolloutContext::prompt_ids`](crate::RolloutContext::prompt_ids). Call it after
    /// [`groups_of`](Self::groups_of).
    ///
    /// # Panics
    ///
    /// When there is not one list per group.
    #[must_use]
    pub fn prompt_ids(mut self, prompts: &[&[u32]]) -> Self {
        assert_eq!(
            prompts.len(),
            self.dims.groups().count(),
            "one list per group"
        );
        let of_groups = self.dims.groups().zip(prompts);
        self.prompts = Some(
            of_groups
                .flat_map(|(group, ids)| group.map(|_| ids.to_vec()))
                .collect(),
        );
        self
    }

    /// Sets the last layer to a copy of `layer`, whose D, K and V may differ. The optimizer's state
    /// takes the new shape.
    ///
    /// # Panics
    ///
    /// When a tensor is not in host memory, or its shape does not fit the batch.
    #[must_use]
    pub fn last_layer(mut self, layer: LastLayer<'_>) -> Self {
        self.layer.replace(self.dims, layer);
        self
    }

    /// Sets the tokens that earlier masks kept, `[B, T]`: 0 for a dropped token, 1 for a kept one.
    /// Padding is always dropped.
    ///
    /// # Panics
    ///
    /// When an entry is neither 0 nor 1.
    #[must_use]
    pub fn token_mask(mut self, token_mask: &[u8]) -> Self {
        assert!(
            token_mask.iter().all(|entry| *entry <= 1),
            "entries of `token_mask` are 0 or 1"
        );
        replace(&mut self.token_mask, token_mask);
        self
    }

    /// Sets the optimizer.
    #[must_use]
    pub fn optimizer(mut self, optimizer: OptimizerInfo) -> Self {
        self.optimizer = optimizer;
        self
    }

    /// Sets the learning rate of the coming step by itself, which a warm-up has below the
    /// optimizer's. A mask or a weight sees it.
    #[must_use]
    pub fn step_learning_rate(mut self, rate: f64) -> Self {
        self.step_learning_rate = Some(rate);
        self
    }

    /// Sets the step.
    #[must_use]
    pub fn step(mut self, step: u64) -> Self {
        self.step = step;
        self
    }

    /// Sets the number of earlier uses of the rollout.
    #[must_use]
    pub fn iteration(mut self, iteration: u64) -> Self {
        self.iteration = iteration;
        self
    }

    /// The batch, with the rollout's context `context`, as from [`Self::context`].
    pub fn batch_with<'a>(&'a self, context: &'a ContextData) -> Batch<'a> {
        let mut batch = self.batch();
        (batch.rollout_context, batch.sampler_top_k) = (Some(context.lend(0)), context.top_k());
        batch.with_only(Inputs(!self.withheld.0))
    }

    /// The batch without its rollout's context.
    pub fn batch(&self) -> Batch<'_> {
        let mut batch = Batch::new(self.dims, self.optimizer);
        batch.step = self.step;
        batch.iteration = self.iteration;
        batch.step_learning_rate = self.step_learning_rate;
        batch.completion_ids = &self.ids;
        batch.completion_mask = &self.mask;
        batch.truncated = &self.truncated;
        batch.rewards = &self.rewards;
        batch.advantages = &self.advantages;
        batch.logps = &self.logps;
        batch.losses = Some(&self.losses);
        batch.dloss_dlogp = Some(&self.slopes);
        batch.old_logps = Some(&self.old_logps);
        batch.ref_logps = Some(&self.ref_logps);
        batch.entropy = Some(&self.entropy);
        batch.last_layer = Some(self.layer.borrow());
        batch.optimizer_state = Some(self.layer.borrow_state());
        batch.with_only(Inputs(!self.withheld.0))
    }

    /// Real tokens that earlier masks kept, `[B, T]`.
    pub(super) fn kept(&self) -> Vec<u8> {
        self.mask
            .iter()
            .zip(&self.token_mask)
            .map(|(mask, keep)| mask & keep)
            .collect()
    }
}

/// Setters of one array each.
macro_rules! setters {
    ($($doc:literal $name:ident: $array:ident [$type:ty];)*) => {
        impl Fixture {$(
            #[doc = concat!("Sets ", $doc, ".")]
            #[must_use]
            pub fn $name(mut self, $name: &[$type]) -> Self {
                replace(&mut self.$array, $name);
                self
            }
        )*}
    };
}

setters! {
    "the rewards, `[B]`" rewards: rewards [f32];
    "the sampled tokens, `[B, T]`; V is 16 until [`last_layer`](Self::last_layer) brings another" completion_ids: ids [u32];
    "the log-probabilities, `[B, T]`, nats" logps: logps [f32];
    "the log-probabilities at sampling, `[B, T]`, nats" old_logps: old_logps [f32];
    "the log-probabilities under the reference model, `[B, T]`, nats" ref_logps: ref_logps [f32];
    "the entropy of the current policy, `[B, T]`, nats" entropy: entropy [f32];
    "which completions the length limit cut off, `[B]`" truncated: truncated [u8];
}

fn replace<T: Copy>(array: &mut [T], values: &[T]) {
    assert_eq!(values.len(), array.len(), "the array's length");
    array.copy_from_slice(values);
}
