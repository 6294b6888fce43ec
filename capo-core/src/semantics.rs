//! Where the paper's text and the code that its authors released compute different things: a switch for each.
//!
//! Below, "paper" is the text of "Stabilizing Policy Gradients for Sample-Efficient RL in LLM Reasoning" (ICLR 2026) and
//! "authors" the code beside it, `luckeciano/stable-pg-llm`.

/// What exactly the model computes; [`PAPER`](Self::PAPER), [`AUTHORS`](Self::AUTHORS), or any mixture of the two.
///
/// All arithmetic is in the precision of this crate either way: the released code's `bf16` is not imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Semantics {
    /// Which feature a token's gradient is made of.
    pub feature: Feature,
    /// Which distribution a token's gradient comes from.
    pub support: Support,
    /// How the tokens of a subset, or of a step, make one gradient.
    pub weights: Weights,
    /// How curvatures are averaged over a subset of several completions.
    pub batch_average: BatchAverage,
    /// What a step does to the moments of rows that it has no gradient for.
    pub untouched_rows: UntouchedRows,
    /// What Adam proposes before any row has moments.
    pub empty_state: EmptyState,
    /// What a step is that no token was accepted for.
    pub rejected_batch: RejectedBatch,
}

/// Which feature a token's gradient is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Paper: the token's own, whose logits produced it.
    Aligned,
    /// Authors: the one a position later in `[B, T]`, padding included. The last position keeps its own, for a batch ends
    /// there; the released code has one more.
    Next,
}

/// Which distribution a token's gradient comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// Paper: the sampler's, at its temperature, over its largest logits and the sampled token.
    SamplerAndAction,
    /// Authors: a softmax at temperature 1 over the sampler's largest logits alone; `u = -pi` when the sampled token is
    /// not among them.
    TopK,
}

/// How the tokens of a subset, or of a step, make one gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// Paper: the mean of the tokens' gradients.
    TokenMean,
    /// Authors: in each row, the mean over the tokens whose support contains it.
    RowMean,
}

/// How curvatures are averaged over a subset of several completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchAverage {
    /// Paper: the mean over tokens.
    TokenMean,
    /// Authors: the mean over completions of their means over tokens; an empty completion counts as 0.
    CompletionMean,
}

/// What a step does to the moments of rows that it has no gradient for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UntouchedRows {
    /// Paper: they decay, as in Adam over the whole matrix.
    Decay,
    /// Authors: nothing; the bias correction counts every step nevertheless.
    Freeze,
}

/// What Adam proposes before any row has moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyState {
    /// Paper: its first step, from moments of zero.
    ZeroMoments,
    /// Authors: the gradient itself.
    RawGradient,
}

/// What a step is that no token was accepted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectedBatch {
    /// Paper: no step.
    NoStep,
    /// Authors: a step without a gradient, counted in the bias correction; with [`UntouchedRows::Decay`] all rows decay.
    Counts,
}

impl Semantics {
    /// The paper's text.
    pub const PAPER: Self = Self {
        feature: Feature::Aligned,
        support: Support::SamplerAndAction,
        weights: Weights::TokenMean,
        batch_average: BatchAverage::TokenMean,
        untouched_rows: UntouchedRows::Decay,
        empty_state: EmptyState::ZeroMoments,
        rejected_batch: RejectedBatch::NoStep,
    };

    /// The authors' released code. It has no groups.
    pub const AUTHORS: Self = Self {
        feature: Feature::Next,
        support: Support::TopK,
        weights: Weights::RowMean,
        batch_average: BatchAverage::CompletionMean,
        untouched_rows: UntouchedRows::Freeze,
        empty_state: EmptyState::RawGradient,
        rejected_batch: RejectedBatch::Counts,
    };

    /// The switches that the moments depend on, as they are saved.
    pub(crate) fn of_state(&self) -> [Setting; 5] {
        [
            Setting::of(self.feature),
            Setting::of(self.support),
            Setting::of(self.weights),
            Setting::of(self.untouched_rows),
            Setting::of(self.rejected_batch),
        ]
    }
}

/// A switch of [`Semantics`] by its names in configuration files.
pub trait Switch: Copy + PartialEq + 'static {
    /// The field of [`Semantics`].
    const KEY: &'static str;
    /// Name of each value, the paper's first.
    const NAMES: &'static [&'static str];
    /// The values, in the order of their names.
    const VALUES: &'static [Self];
}

/// The value of a switch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub key: &'static str,
    pub names: &'static [&'static str],
    /// Into `names`.
    pub index: u8,
}

impl Setting {
    fn of<S: Switch>(value: S) -> Self {
        let index = S::VALUES.iter().position(|&x| x == value).unwrap_or(0) as u8;
        Self { key: S::KEY, names: S::NAMES, index }
    }
}

macro_rules! switch {
    ($type:ident, $key:literal, $($name:literal => $value:ident),+) => {
        impl Switch for $type {
            const KEY: &'static str = $key;
            const NAMES: &'static [&'static str] = &[$($name),+];
            const VALUES: &'static [Self] = &[$(Self::$value),+];
        }
    };
}

switch!(Feature, "feature", "aligned" => Aligned, "next" => Next);
switch!(Support, "support", "sampler_and_action" => SamplerAndAction, "top_k" => TopK);
switch!(Weights, "weights", "token_mean" => TokenMean, "row_mean" => RowMean);
switch!(BatchAverage, "batch_average", "token_mean" => TokenMean, "completion_mean" => CompletionMean);
switch!(UntouchedRows, "untouched_rows", "decay" => Decay, "freeze" => Freeze);
switch!(EmptyState, "empty_state", "zero_moments" => ZeroMoments, "raw_gradient" => RawGradient);
switch!(RejectedBatch, "rejected_batch", "no_step" => NoStep, "counts" => Counts);
