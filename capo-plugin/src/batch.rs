//! The view that a component has of an optimizer step.
//!
//! Letters: B completions, T tokens of the longest completion, G completions per prompt, V
//! vocabulary, D hidden width, K top tokens. All arrays are row-major.

use std::ops::{BitOr, Range};

use abi_stable::StableAbi;

use crate::{ErrorKind, PluginError, RolloutContext, SamplerTopK, Tensor};

/// Shape of a batch.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dims {
    /// B: completions of the optimizer step.
    pub completions: u64,
    /// T: padded completion length, tokens.
    pub tokens: u64,
    /// G: consecutive completions that share a prompt; divides B.
    pub group_size: u64,
}

impl Dims {
    /// B · T, the length of every `[B, T]` array.
    pub fn len(&self) -> usize {
        (self.completions * self.tokens) as usize
    }

    /// True if the batch has no token position.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Index range of completion `b` in every `[B, T]` array.
    pub fn row(&self, b: usize) -> Range<usize> {
        let tokens = self.tokens as usize;
        b * tokens..(b + 1) * tokens
    }

    /// Ranges of completions that share a prompt, in order.
    pub fn groups(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (completions, size) = (self.completions as usize, (self.group_size as usize).max(1));
        (0..completions)
            .step_by(size)
            .map(move |start| start..(start + size).min(completions))
    }
}

/// The optional arrays that the host must compute for a component: a set of flags.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inputs(pub u64);

impl Inputs {
    /// No optional array.
    pub const NONE: Self = Self(0);
    /// [`Batch::old_logps`]: log-probabilities under the policy that sampled the completions.
    pub const OLD_LOGPS: Self = Self(1);
    /// [`Batch::ref_logps`]: log-probabilities under the reference model, from which training started.
    pub const REF_LOGPS: Self = Self(1 << 1);
    /// [`Batch::entropy`]: entropy of the policy over the full vocabulary.
    pub const ENTROPY: Self = Self(1 << 2);
    /// [`Batch::last_layer`]: features and top logits of the last layer.
    pub const LAST_LAYER: Self = Self(1 << 3);
    /// [`Batch::optimizer_state`]: the last layer's weight and its moments in the optimizer.
    pub const OPTIMIZER_STATE: Self = Self(1 << 4);
    /// [`Batch::rollout_context`]: prompts, texts, rewards of each function, and the sampler's own log-probabilities.
    pub const ROLLOUT_CONTEXT: Self = Self(1 << 5);
    /// [`Batch::sampler_top_k`]: the sampler's most likely tokens, drawn or not, and their log-probabilities.
    pub const SAMPLER_TOP_K: Self = Self(1 << 6);
    /// [`Update::alignment`](crate::Update::alignment), for step controls: how well the gradient
    /// agrees with the previous step.
    pub const ALIGNMENT: Self = Self(1 << 7);
    /// All flags that this revision names.
    pub const KNOWN: Self = Self((1 << 8) - 1);

    /// True if every flag of `other` is set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Inputs {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Rule that reduces per-token losses to one number. The set of values may grow, so this is an
/// integer.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reduction(pub u32);

impl Reduction {
    /// Mean over completions of each completion's mean over its tokens (GRPO; TRL
    /// `loss_type="grpo"`).
    pub const COMPLETION_MEAN: Self = Self(0);
    /// Sum over all tokens ÷ (B · `max_completion_length`) (Dr.GRPO; TRL `loss_type="dr_grpo"`).
    pub const FIXED_LENGTH: Self = Self(1);
    /// Sum over all tokens ÷ number of tokens (TRL `loss_type="bnpo"`).
    pub const TOKEN_MEAN: Self = Self(2);
    /// Sum over all tokens ÷ B (TRL `loss_type="luspo"`; verl `seq-mean-token-sum`).
    pub const COMPLETION_SUM: Self = Self(3);

    /// Refuses a reduction that this version does not know. Objective `id` asks for the reduction.
    ///
    /// # Errors
    ///
    /// When the reduction is unknown; the message contains `id`.
    pub fn check_known(self, id: &str) -> Result<(), PluginError> {
        self.name().map(drop).ok_or_else(|| {
            PluginError::unsupported(format!(
                "component `{id}` asks for reduction {}, which this host does not know (it knows 0 to 3; use a newer host)",
                self.0
            ))
        })
    }

    /// All reductions with their names in configuration tables, ordered by number.
    pub const NAMED: [(&'static str, Self); 4] = [
        ("completion_mean", Self::COMPLETION_MEAN),
        ("fixed_length", Self::FIXED_LENGTH),
        ("token_mean", Self::TOKEN_MEAN),
        ("completion_sum", Self::COMPLETION_SUM),
    ];

    /// Name of the reduction in a configuration table; `None` for a reduction of a later version.
    pub fn name(self) -> Option<&'static str> {
        Self::NAMED
            .iter()
            .find(|(_, known)| *known == self)
            .map(|(name, _)| *name)
    }
}

/// Tokens that a reduction counts after masking. The set of values may grow, so this is an integer.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denominator(pub u32);

impl Denominator {
    /// Counts the tokens that the masks keep: each kept token gains weight as others are rejected.
    pub const KEPT: Self = Self(0);
    /// Counts all completion tokens: a rejected token contributes 0.
    pub const ORIGINAL: Self = Self(1);
}

/// Update rule of the host's optimizer. The set of values may grow, so this is an integer.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptimizerKind(pub u32);

impl OptimizerKind {
    /// Plain gradient descent.
    pub const SGD: Self = Self(0);
    /// Adam with bias correction.
    pub const ADAM: Self = Self(1);
    /// Adam with decoupled weight decay.
    pub const ADAMW: Self = Self(2);
    /// AdamW whose second moment accumulates `g_k² + g_r²`. The gradient `g_k` of the kept tokens
    /// alone enters the first moment. The gradient `g_r` is that of the rejected tokens. Clipping
    /// scales both by the norm of `g_k + g_r`.
    pub const ADAMW_KEPT_AND_REJECTED: Self = Self(3);
}

/// The host's optimizer at the coming step.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, PartialEq, Debug)]
pub struct OptimizerInfo {
    /// Update rule.
    pub kind: OptimizerKind,
    /// Learning rate of the coming step. Masks and weights find the largest rate here at which the
    /// step's gradient will move the weights: Adam's first moment carries a gradient into later
    /// steps, and a warm-up gives them higher rates ([`Batch::step_learning_rate`] is the step's
    /// own).
    pub learning_rate: f64,
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Term added to the square root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Largest global gradient norm; a longer gradient is scaled down to it before the update. 0
    /// turns clipping off.
    pub max_grad_norm: f64,
    /// Updates applied so far.
    pub steps_taken: u64,
}

/// Features and logits of the last layer, one row per completion token.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LastLayer<'a> {
    /// `[B, T, D]`: the feature from which the logits of token `t` were computed.
    pub hidden: Tensor<'a>,
    /// `[B, T, K]`, u32: vocabulary ids of the K largest logits, largest first.
    pub topk_ids: Tensor<'a>,
    /// `[B, T, K]`: the K largest logits themselves, raw (temperature 1), in the order of
    /// `topk_ids`.
    pub topk_logits: Tensor<'a>,
    /// `[B, T]`: logsumexp over the full vocabulary of logits ÷ `loss_temperature`.
    pub logsumexp: Tensor<'a>,
    /// `[B, T]`: raw logit of the sampled token.
    pub action_logits: Tensor<'a>,
    /// V: number of vocabulary entries.
    pub vocab_size: usize,
}

impl<'a> LastLayer<'a> {
    /// Collects the five tensors into one view.
    pub fn new(
        hidden: Tensor<'a>,
        topk_ids: Tensor<'a>,
        topk_logits: Tensor<'a>,
        logsumexp: Tensor<'a>,
        action_logits: Tensor<'a>,
        vocab_size: usize,
    ) -> Self {
        Self {
            hidden,
            topk_ids,
            topk_logits,
            logsumexp,
            action_logits,
            vocab_size,
        }
    }
}

/// The last layer's weight and its moments in the optimizer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct OptimizerState<'a> {
    /// `[V, D]`: the weight.
    pub weight: Tensor<'a>,
    /// `[V, D]`: first moment, the running mean of gradients.
    pub exp_avg: Tensor<'a>,
    /// `[V, D]`: second moment, the running mean of squared gradients.
    pub exp_avg_sq: Tensor<'a>,
}

impl<'a> OptimizerState<'a> {
    /// Collects the three tensors into one view.
    pub fn new(weight: Tensor<'a>, exp_avg: Tensor<'a>, exp_avg_sq: Tensor<'a>) -> Self {
        Self {
            weight,
            exp_avg,
            exp_avg_sq,
        }
    }
}

/// The whole batch of one optimizer step, never a micro-batch. A component's decision therefore
/// does not depend on how the host splits its work.
///
/// Groups are consecutive: completions `g·G .. (g+1)·G` answer one prompt. Entries of `[B, T]`
/// arrays where `completion_mask` is 0 are padding, or tokens of an environment; their values are
/// finite and mean nothing. A field that needs a flag of [`Inputs`] is `None` unless the
/// component's `inputs` names the flag.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Batch<'a> {
    /// Shape of the batch: B, T and G.
    pub dims: Dims,
    /// Optimizer step, counted from 0.
    pub step: u64,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
    /// Number of earlier uses of this rollout; 0 is on policy.
    pub iteration: u64,
    /// The run's seed; derive every random draw from it and `step`.
    pub seed: u64,
    /// Temperature of sampling: divisor of the logits.
    pub sampling_temperature: f32,
    /// The sampler's top-k, in tokens; 0 turns it off.
    pub sampling_top_k: u32,
    /// The sampler's top-p, a probability; 1 turns it off.
    pub sampling_top_p: f32,
    /// Temperature of `logps`: divisor of the logits.
    pub loss_temperature: f32,
    /// The optimizer at the coming step.
    pub optimizer: OptimizerInfo,
    /// Learning rate of the coming step by itself; `None` where it is `optimizer.learning_rate`.
    pub step_learning_rate: Option<f64>,
    /// Rule that reduces the objective's losses to one number.
    pub reduction: Reduction,
    /// Tokens that the reduction counts.
    pub denominator: Denominator,
    /// Limit on completion length in tokens; at least T.
    pub max_completion_length: usize,
    /// `[B, T]`: ids of the sampled tokens.
    pub completion_ids: &'a [u32],
    /// `[B, T]`: 1 for a token that the policy drew, up to and including the end token; 0 for
    /// padding. Zeros may also stand between ones, at tokens that others wrote into the completion,
    /// such as the answer of an environment.
    pub completion_mask: &'a [u8],
    /// `[B]`: 1 where the length limit cut the completion off.
    pub truncated: &'a [u8],
    /// `[B]`: reward of each completion, reward units.
    pub rewards: &'a [f32],
    /// `[B, T]`: advantage of each token, reward units; zeros while the advantage estimator runs.
    pub advantages: &'a [f32],
    /// `[B, T]`, nats: log-probability of each token under the current policy at
    /// `loss_temperature`.
    pub logps: &'a [f32],
    /// `[B, T]`: the objective's loss per token, before masking and reduction. Present for masks.
    pub losses: Option<&'a [f32]>,
    /// `[B, T]`: derivative of the sum of a completion's `losses` by this token's `logps`, as in
    /// [`TokenLosses`](crate::TokenLosses). Present for masks.
    pub dloss_dlogp: Option<&'a [f32]>,
    /// `[B, T]`, nats: log-probability of each token when it was sampled. Needs
    /// [`Inputs::OLD_LOGPS`].
    pub old_logps: Option<&'a [f32]>,
    /// `[B, T]`, nats: log-probability of each token under the reference model. Needs
    /// [`Inputs::REF_LOGPS`].
    pub ref_logps: Option<&'a [f32]>,
    /// `[B, T]`, nats: entropy of the current policy. Needs [`Inputs::ENTROPY`].
    pub entropy: Option<&'a [f32]>,
    /// Features and top logits of the last layer. Needs [`Inputs::LAST_LAYER`].
    pub last_layer: Option<LastLayer<'a>>,
    /// The last layer's weight and moments. Needs [`Inputs::OPTIMIZER_STATE`].
    pub optimizer_state: Option<OptimizerState<'a>>,
    /// Facts about the rollout besides the batch. Needs [`Inputs::ROLLOUT_CONTEXT`].
    pub rollout_context: Option<RolloutContext<'a>>,
    /// The sampler's most likely tokens at each position. Needs [`Inputs::SAMPLER_TOP_K`].
    pub sampler_top_k: Option<SamplerTopK<'a>>,
}

impl<'a> Batch<'a> {
    /// A batch of shape `dims` with empty arrays. A host then fills in every field.
    pub fn new(dims: Dims, optimizer: OptimizerInfo) -> Self {
        Self {
            dims,
            step: 0,
            max_steps: 1,
            iteration: 0,
            seed: 0,
            sampling_temperature: 1.0,
            sampling_top_k: 0,
            sampling_top_p: 1.0,
            loss_temperature: 1.0,
            optimizer,
            step_learning_rate: None,
            reduction: Reduction::COMPLETION_MEAN,
            denominator: Denominator::KEPT,
            max_completion_length: dims.tokens as usize,
            completion_ids: &[],
            completion_mask: &[],
            truncated: &[],
            rewards: &[],
            advantages: &[],
            logps: &[],
            losses: None,
            dloss_dlogp: None,
            old_logps: None,
            ref_logps: None,
            entropy: None,
            last_layer: None,
            optimizer_state: None,
            rollout_context: None,
            sampler_top_k: None,
        }
    }

    /// The arrays of one number per token that the batch has, by name.
    #[doc(hidden)]
    pub fn per_token(&self) -> impl Iterator<Item = (&'static str, &'a [f32])> + use<'a> {
        let arrays = [
            ("logps", Some(self.logps)),
            ("advantages", Some(self.advantages)),
            ("old_logps", self.old_logps),
            ("ref_logps", self.ref_logps),
            ("entropy", self.entropy),
            ("losses", self.losses),
            ("dloss_dlogp", self.dloss_dlogp),
        ];
        arrays
            .into_iter()
            .filter_map(|(name, values)| Some((name, values?)))
    }

    /// The tensors that the batch has, by name.
    #[doc(hidden)]
    pub fn tensors(&self) -> impl Iterator<Item = (&'static str, Tensor<'a>)> + use<'a> {
        let layer = self.last_layer.map(
            |LastLayer {
                 hidden,
                 topk_ids,
                 topk_logits,
                 logsumexp,
                 action_logits,
                 ..
             }| {
                let of_tops = [
                    ("hidden", hidden),
                    ("topk_ids", topk_ids),
                    ("topk_logits", topk_logits),
                ];
                of_tops
                    .into_iter()
                    .chain([("logsumexp", logsumexp), ("action_logits", action_logits)])
            },
        );
        let state = self.optimizer_state.map(
            |OptimizerState {
                 weight,
                 exp_avg,
                 exp_avg_sq,
             }| {
                [
                    ("weight", weight),
                    ("exp_avg", exp_avg),
                    ("exp_avg_sq", exp_avg_sq),
                ]
            },
        );
        layer
            .into_iter()
            .flatten()
            .chain(state.into_iter().flatten())
    }

    /// This batch with only the optional inputs that `inputs` names: the view for a component that
    /// asked for them.
    #[must_use]
    pub fn with_only(mut self, inputs: Inputs) -> Self {
        self.old_logps = self
            .old_logps
            .filter(|_| inputs.contains(Inputs::OLD_LOGPS));
        self.ref_logps = self
            .ref_logps
            .filter(|_| inputs.contains(Inputs::REF_LOGPS));
        self.entropy = self.entropy.filter(|_| inputs.contains(Inputs::ENTROPY));
        self.last_layer = self
            .last_layer
            .filter(|_| inputs.contains(Inputs::LAST_LAYER));
        self.optimizer_state = self
            .optimizer_state
            .filter(|_| inputs.contains(Inputs::OPTIMIZER_STATE));
        self.rollout_context = self
            .rollout_context
            .filter(|_| inputs.contains(Inputs::ROLLOUT_CONTEXT));
        self.sampler_top_k = self
            .sampler_top_k
            .filter(|_| inputs.contains(Inputs::SAMPLER_TOP_K));
        self
    }

    /// Returns [`Batch::old_logps`]; an error when the component did not ask for it.
    pub fn old_logps(&self) -> Result<&'a [f32], PluginError> {
        self.old_logps
            .ok_or_else(|| missing("old_logps", "OLD_LOGPS"))
    }

    /// Returns [`Batch::ref_logps`]; an error when the component did not ask for it.
    pub fn ref_logps(&self) -> Result<&'a [f32], PluginError> {
        self.ref_logps
            .ok_or_else(|| missing("ref_logps", "REF_LOGPS"))
    }

    /// Returns [`Batch::entropy`]; an error when the component did not ask for it.
    pub fn entropy(&self) -> Result<&'a [f32], PluginError> {
        self.entropy.ok_or_else(|| missing("entropy", "ENTROPY"))
    }

    /// Returns [`Batch::last_layer`]; an error when the component did not ask for it.
    pub fn last_layer(&self) -> Result<LastLayer<'a>, PluginError> {
        self.last_layer
            .ok_or_else(|| missing("last_layer", "LAST_LAYER"))
    }

    /// Returns [`Batch::optimizer_state`]; an error when the component did not ask for it.
    pub fn optimizer_state(&self) -> Result<OptimizerState<'a>, PluginError> {
        self.optimizer_state
            .ok_or_else(|| missing("optimizer_state", "OPTIMIZER_STATE"))
    }

    /// Returns [`Batch::rollout_context`]; an error when the component did not ask for it.
    pub fn rollout_context(&self) -> Result<RolloutContext<'a>, PluginError> {
        self.rollout_context
            .ok_or_else(|| missing("rollout_context", "ROLLOUT_CONTEXT"))
    }

    /// Returns [`Batch::sampler_top_k`]; an error when the component did not ask for it.
    pub fn sampler_top_k(&self) -> Result<SamplerTopK<'a>, PluginError> {
        self.sampler_top_k
            .ok_or_else(|| missing("sampler_top_k", "SAMPLER_TOP_K"))
    }
}

fn missing(field: &str, flag: &str) -> PluginError {
    let sentence =
        format!("`{field}` is not in this batch (return `Inputs::{flag}` from `inputs`)");
    PluginError::new(ErrorKind::MISSING_INPUT, sentence)
}
