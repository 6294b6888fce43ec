//! The view that a component has of an optimizer step.
//!
//! Letters: B completions, T tokens of the longest completion, G completions per prompt, V
//! vocabulary, D hidden width, K top tokens. All arrays are row-major.

mod buffer;
mod define;
pub(crate) mod field;
mod table;

use std::ops::{BitOr, Range};

use abi_stable::StableAbi;

use crate::{ErrorKind, PluginError};

pub use buffer::{AgedContext, LendTensor, Memory, TensorBuffer, Values};
pub use table::{
    Batch, BatchBuffer, BatchScalars, FIELDS, LastLayer, LayerBuffer, OptimizerState, StateBuffer,
    WireBatch, WireLastLayer, WireOptimizerState,
};

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
        let completions = self.completions as usize;
        let size = (self.group_size as usize).max(1);
        (0..completions)
            .step_by(size)
            .map(move |start| start..(start + size).min(completions))
    }
}

/// The optional arrays that the host must compute for a component: a set of flags. Those of a batch
/// stand in its table.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inputs(pub u64);

impl Inputs {
    /// No optional array.
    pub const NONE: Self = Self(0);
    /// [`Update::alignment`](crate::Update::alignment), for step controls: how well the gradient
    /// agrees with the previous step; and [`Update::gradient_norm`](crate::Update::gradient_norm).
    pub const ALIGNMENT: Self = Self(1 << 7);
    /// All flags that this revision names.
    pub const KNOWN: Self = {
        let mut known = Self::ALIGNMENT.0;
        let mut index = 0;
        while index < Self::OF_BATCH.len() {
            known |= Self::OF_BATCH[index].flag.0;
            index += 1;
        }
        Self(known)
    };

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
                "component `{id}` asks for reduction {}, which this host does not know (it knows \
                 0 to 3; use a newer host)",
                self.0
            ))
        })
    }

    /// All reductions with their names in configuration tables and Python, ordered by number.
    pub const NAMED: [(&'static str, Self); 4] = [
        ("completion_mean", Self::COMPLETION_MEAN),
        ("fixed_length", Self::FIXED_LENGTH),
        ("token_mean", Self::TOKEN_MEAN),
        ("completion_sum", Self::COMPLETION_SUM),
    ];

    /// The number by which each completion's token losses are multiplied before they are summed up,
    /// `[B]`. `counted`, `[B, T]`, is 1 for the tokens of the [`Denominator`], else 0;
    /// `max_completion_length` is [`Batch::max_completion_length`]. `None` for a reduction of a
    /// later version.
    ///
    /// # Panics
    ///
    /// If `counted` is shorter than [`Dims::len`].
    pub fn scales(
        self,
        dims: Dims,
        max_completion_length: usize,
        counted: &[u8],
    ) -> Option<Vec<f64>> {
        // A batch without a counted token has no loss: any scale will do but infinity.
        let count = |tokens: &[u8]| {
            let sum: u64 = tokens.iter().map(|&token| u64::from(token)).sum();
            sum.max(1) as f64
        };
        let completions = dims.completions as f64;
        let all = count(counted);
        let scale = |b: usize| {
            Some(match self {
                Self::COMPLETION_MEAN => 1.0 / (completions * count(&counted[dims.row(b)])),
                Self::FIXED_LENGTH => 1.0 / (completions * max_completion_length as f64),
                Self::TOKEN_MEAN => 1.0 / all,
                Self::COMPLETION_SUM => 1.0 / completions,
                _ => return None,
            })
        };
        (0..dims.completions as usize).map(scale).collect()
    }

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

    /// All denominators with their names in Python, ordered by number.
    pub const NAMED: [(&'static str, Self); 2] =
        [("kept", Self::KEPT), ("original", Self::ORIGINAL)];
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

fn missing(field: &str, flag: &str) -> PluginError {
    let sentence =
        format!("`{field}` is not in this batch (return `Inputs::{flag}` from `inputs`)");
    PluginError::new(ErrorKind::MISSING_INPUT, sentence)
}
