//! Where the paper's text, the code that its authors released and the exact last-layer model compute different things: a
//! switch for each.
//!
//! Below, "paper" is the text of "Stabilizing Policy Gradients for Sample-Efficient RL in LLM Reasoning" (ICLR 2026),
//! "authors" the code beside it, `luckeciano/stable-pg-llm`, and "exact" what the same cost buys when neither binds: the
//! distribution, the weights and the derivative of the trainer's own loss, and shifts without a Taylor error.

/// The model's exact formulas: [`PAPER`](Self::PAPER), [`AUTHORS`](Self::AUTHORS), [`EXACT`](Self::EXACT), or any
/// mixture of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Semantics {
    /// Which feature a token's gradient is made of.
    pub feature: Feature,
    /// Over which rows a token's probabilities sum to 1.
    pub probabilities: Probabilities,
    /// Divisor of the logits in the probabilities.
    pub temperature: Temperature,
    /// Treatment of a sampled token that is not among the top rows.
    pub outside_action: OutsideAction,
    /// Factor of a token's `e_a - pi`.
    pub token_gradient: TokenGradient,
    /// How the tokens of a subset make one gradient.
    pub subset_weights: Weights,
    /// How curvatures are averaged over the tokens of a subset.
    pub curvature_average: CurvatureAverage,
    /// How the accepted tokens of a step make the gradient that the model's own moments take in.
    pub moment_input: Weights,
    /// In which runs the model's own moments advance.
    pub moment_update: MomentUpdate,
    /// Effect of a step on the moments of rows that it has no gradient for.
    pub untouched_rows: UntouchedRows,
    /// Adam's proposal before any row has moments.
    pub empty_state: EmptyState,
    /// Treatment of a step for which no token was accepted.
    pub rejected_batch: RejectedBatch,
    /// In which precision the model's own moments are stored.
    pub state_dtype: StateDtype,
    /// Formula of `m_F`.
    pub policy_shift: PolicyShift,
    /// Formula of `m_H`.
    pub objective_shift: ObjectiveShift,
    /// How tokens without a gradient of their own are treated.
    pub zero_advantage: ZeroAdvantage,
}

/// Which feature a token's gradient is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Paper, exact: the token's own, whose logits produced it.
    Aligned,
    /// Authors: the one a position later in `[B, T]`, padding included. The last position keeps its own, for a batch ends
    /// there; the released code has one more.
    Next,
}

/// Over which rows a token's probabilities sum to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probabilities {
    /// Paper, authors: the sampler's largest logits, renormalised.
    TopK,
    /// Exact: the whole vocabulary. The rows that are not kept stand still in every proposal; what they hold of the
    /// probability counts. Known to the precision of an `f32` logsumexp, about 1e-6.
    Full,
}

/// Divisor of the logits in the probabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Temperature {
    /// Paper: the sampler's temperature.
    Sampling,
    /// Authors: 1.
    One,
    /// Exact: the loss's temperature, whose inverse is a factor of the gradient too.
    Loss,
}

/// Treatment of a sampled token that is not among the top rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutsideAction {
    /// Paper, exact: its row joins them.
    Add,
    /// Authors: nothing, and `u = -pi`.
    LeaveOut,
}

/// Factor of a token's `e_a - pi` in its gradient, and of its curvature in `m_H`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenGradient {
    /// Paper, authors: the advantage.
    Advantage,
    /// Exact: minus the loss's derivative by the log-probability: the advantage times the importance ratio, 0 where the
    /// ratio is clipped, and a penalty's part.
    Loss,
}

/// How tokens make one gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// Paper: the mean of the tokens' gradients.
    TokenMean,
    /// Authors: in each row, the mean over the tokens whose support contains it.
    RowMean,
    /// Exact: as the trainer's loss weighs them, if they were the whole batch.
    Loss,
}

/// How curvatures are averaged over the tokens of a subset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CurvatureAverage {
    /// Paper: the mean over tokens.
    TokenMean,
    /// Authors: the mean over completions of their means over tokens; an empty completion counts as 0.
    CompletionMean,
    /// Exact: as the trainer's loss weighs the tokens, if they were the whole batch.
    Loss,
}

/// In which runs the model's own moments advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MomentUpdate {
    /// Paper, exact: in all, so that the shifts of a run that rejects nothing mean the same.
    EveryRun,
    /// Authors: in those with a threshold.
    WithThresholds,
}

/// Effect of a step on the moments of rows that it has no gradient for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UntouchedRows {
    /// Paper, exact: they decay, as in Adam over the whole matrix.
    Decay,
    /// Authors: nothing; the bias correction counts every step nevertheless.
    Freeze,
}

/// Adam's proposal before any row has moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyState {
    /// Paper, exact: its first step, from moments of zero.
    ZeroMoments,
    /// Authors: the gradient itself.
    RawGradient,
}

/// Treatment of a step for which no token was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectedBatch {
    /// Paper, exact: no step.
    NoStep,
    /// Authors: a step without a gradient, counted in the bias correction; with [`UntouchedRows::Decay`] all rows decay.
    Counts,
}

/// In which precision the model's own moments are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateDtype {
    /// All presets.
    F32,
    /// Rounded to `bf16` after every step, as in the released code's runs; everything else stays as it is.
    Bf16,
}

/// Formula of `m_F`, nats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyShift {
    /// Paper, authors: `½ lr² s²`, of the sampled token alone (eq. 9 and 10).
    Sampled,
    /// `½ lr² q`: its mean over the policy, which is the second-order KL divergence.
    Expected,
    /// Exact: the KL divergence itself, old policy to new.
    Kl,
}

/// Formula of `m_H`, reward units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectiveShift {
    /// Paper, authors: up to second order (eq. 8 and 10).
    Quadratic,
    /// Exact: the change of the ratio surrogate itself, `A (pi'(a) / pi(a) - 1)`.
    Surrogate,
}

/// How tokens without a gradient of their own, for advantage 0, are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZeroAdvantage {
    /// Paper, authors: as all others; under Adam momentum may move them.
    Test,
    /// Exact: they are kept and not counted.
    Accept,
}

impl Semantics {
    /// The paper's text.
    pub const PAPER: Self = Self {
        feature: Feature::Aligned,
        probabilities: Probabilities::TopK,
        temperature: Temperature::Sampling,
        outside_action: OutsideAction::Add,
        token_gradient: TokenGradient::Advantage,
        subset_weights: Weights::TokenMean,
        curvature_average: CurvatureAverage::TokenMean,
        moment_input: Weights::TokenMean,
        moment_update: MomentUpdate::EveryRun,
        untouched_rows: UntouchedRows::Decay,
        empty_state: EmptyState::ZeroMoments,
        rejected_batch: RejectedBatch::NoStep,
        state_dtype: StateDtype::F32,
        policy_shift: PolicyShift::Sampled,
        objective_shift: ObjectiveShift::Quadratic,
        zero_advantage: ZeroAdvantage::Test,
    };

    /// The authors' released code, but for its `bf16` arithmetic. It has no groups.
    pub const AUTHORS: Self = Self {
        feature: Feature::Next,
        temperature: Temperature::One,
        outside_action: OutsideAction::LeaveOut,
        subset_weights: Weights::RowMean,
        curvature_average: CurvatureAverage::CompletionMean,
        moment_input: Weights::RowMean,
        moment_update: MomentUpdate::WithThresholds,
        untouched_rows: UntouchedRows::Freeze,
        empty_state: EmptyState::RawGradient,
        rejected_batch: RejectedBatch::Counts,
        ..Self::PAPER
    };

    /// The last layer's model without approximations that cost nothing to avoid.
    pub const EXACT: Self = Self {
        probabilities: Probabilities::Full,
        temperature: Temperature::Loss,
        token_gradient: TokenGradient::Loss,
        subset_weights: Weights::Loss,
        curvature_average: CurvatureAverage::Loss,
        moment_input: Weights::Loss,
        policy_shift: PolicyShift::Kl,
        objective_shift: ObjectiveShift::Surrogate,
        zero_advantage: ZeroAdvantage::Accept,
        ..Self::PAPER
    };

    /// True if a token whose gradient has this factor is kept without a test.
    pub(crate) fn exempts(&self, signal: f64) -> bool {
        self.zero_advantage == ZeroAdvantage::Accept && signal == 0.0
    }

    /// The switches that the moments depend on, as they are saved.
    pub(crate) fn of_state(&self) -> [Setting; 10] {
        [
            Setting::of("feature", self.feature),
            Setting::of("probabilities", self.probabilities),
            Setting::of("temperature", self.temperature),
            Setting::of("outside_action", self.outside_action),
            Setting::of("token_gradient", self.token_gradient),
            Setting::of("moment_input", self.moment_input),
            Setting::of("moment_update", self.moment_update),
            Setting::of("untouched_rows", self.untouched_rows),
            Setting::of("rejected_batch", self.rejected_batch),
            Setting::of("state_dtype", self.state_dtype),
        ]
    }
}

/// A switch of [`Semantics`] by the names of its values in configuration files.
pub trait Switch: Copy + PartialEq + 'static {
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
    fn of<S: Switch>(key: &'static str, value: S) -> Self {
        let index = S::VALUES.iter().position(|&x| x == value).unwrap_or(0) as u8;
        Self { key, names: S::NAMES, index }
    }
}

macro_rules! switch {
    ($type:ident, $($name:literal => $value:ident),+) => {
        impl Switch for $type {
            const NAMES: &'static [&'static str] = &[$($name),+];
            const VALUES: &'static [Self] = &[$(Self::$value),+];
        }
    };
}

switch!(Feature, "aligned" => Aligned, "next" => Next);
switch!(Probabilities, "top_k" => TopK, "full" => Full);
switch!(Temperature, "sampling" => Sampling, "one" => One, "loss" => Loss);
switch!(OutsideAction, "add" => Add, "leave_out" => LeaveOut);
switch!(TokenGradient, "advantage" => Advantage, "loss" => Loss);
switch!(Weights, "token_mean" => TokenMean, "row_mean" => RowMean, "loss" => Loss);
switch!(CurvatureAverage, "token_mean" => TokenMean, "completion_mean" => CompletionMean, "loss" => Loss);
switch!(MomentUpdate, "every_run" => EveryRun, "with_thresholds" => WithThresholds);
switch!(UntouchedRows, "decay" => Decay, "freeze" => Freeze);
switch!(EmptyState, "zero_moments" => ZeroMoments, "raw_gradient" => RawGradient);
switch!(RejectedBatch, "no_step" => NoStep, "counts" => Counts);
switch!(StateDtype, "f32" => F32, "bf16" => Bf16);
switch!(PolicyShift, "sampled" => Sampled, "expected" => Expected, "kl" => Kl);
switch!(ObjectiveShift, "quadratic" => Quadratic, "surrogate" => Surrogate);
switch!(ZeroAdvantage, "test" => Test, "accept" => Accept);
