//! Switches for the points at which the paper's text, its authors' released code and the exact
//! last-layer model differ.
//!
//! Below, "paper" is the text of "Stabilizing Policy Gradients for Sample-Efficient RL in LLM
//! Reasoning" (ICLR 2026), and "authors" its released code, `luckeciano/stable-pg-llm`. "Exact" is
//! the best model of equal cost: the distribution, weights and derivative of the trainer's own
//! loss, and shifts without a Taylor error.

/// The model's formulas: [`PAPER`](Self::PAPER), [`AUTHORS`](Self::AUTHORS),
/// [`EXACT`](Self::EXACT), or any mixture of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Semantics {
    /// Feature in a token's gradient.
    pub feature: Feature,
    /// Rows over which a token's probabilities sum to 1.
    pub probabilities: Probabilities,
    /// Divisor of the logits in the probabilities.
    pub temperature: Temperature,
    /// Treatment of a sampled token that is not among the top rows.
    pub outside_action: OutsideAction,
    /// Factor of a token's `e_a - pi`.
    pub token_gradient: TokenGradient,
    /// Weights of a subset's tokens in one gradient.
    pub subset_weights: Weights,
    /// Average of curvatures over a subset's tokens.
    pub curvature_average: CurvatureAverage,
    /// Weights of a step's accepted tokens in the gradient for the model's own moments.
    pub moment_input: Weights,
    /// Runs in which the model's own moments advance.
    pub moment_update: MomentUpdate,
    /// Effect of a step on the moments of rows without a gradient.
    pub untouched_rows: UntouchedRows,
    /// Adam's proposal before any row has moments.
    pub empty_state: EmptyState,
    /// Treatment of a step for which no token was accepted.
    pub rejected_batch: RejectedBatch,
    /// Precision in which the model's own moments are stored.
    pub state_dtype: StateDtype,
    /// Formula of `m_F`.
    pub policy_shift: PolicyShift,
    /// Formula of `m_H`.
    pub objective_shift: ObjectiveShift,
    /// Treatment of tokens without a gradient of their own.
    pub zero_advantage: ZeroAdvantage,
}

/// Defines switches: the values with their names in configuration files, the paper's first.
macro_rules! switches {
    ($(
        $(#[$about:meta])*
        pub enum $name:ident { $($(#[$doc:meta])* $value:ident = $text:literal,)+ }
    )+) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$doc])* $value,)+
        }

        impl Switch for $name {
            const NAMES: &'static [&'static str] = &[$($text),+];
            const VALUES: &'static [Self] = &[$(Self::$value),+];
        }
    )+};
}

switches! {
    /// Feature in a token's gradient.
    pub enum Feature {
        /// Paper, exact: the token's own feature, whose logits produced it.
        Aligned = "aligned",
        /// Authors: the feature one position later in `[B, T]`, padding included. The last position
        /// keeps its own feature, because a batch ends there; the released code has one more.
        Next = "next",
    }

    /// Rows over which a token's probabilities sum to 1.
    pub enum Probabilities {
        /// Paper, authors: the sampler's largest logits, renormalised.
        TopK = "top_k",
        /// Exact: the whole vocabulary. Rows that are not kept do not move in any proposal, but
        /// their probability counts. It is known to the precision of an `f32` logsumexp, about
        /// 1e-6.
        Full = "full",
    }

    /// Divisor of the logits in the probabilities.
    pub enum Temperature {
        /// Paper: the sampler's temperature.
        Sampling = "sampling",
        /// Authors: 1.
        One = "one",
        /// Exact: the loss's temperature, whose inverse is also a factor of the gradient.
        Loss = "loss",
    }

    /// Treatment of a sampled token that is not among the top rows.
    pub enum OutsideAction {
        /// Paper, exact: its row is added.
        Add = "add",
        /// Authors: its row is left out, so `u = -pi`.
        LeaveOut = "leave_out",
    }

    /// Factor of a token's `e_a - pi` in its gradient, and of its curvature in `m_H`.
    pub enum TokenGradient {
        /// Paper, authors: the advantage.
        Advantage = "advantage",
        /// Exact: minus the loss's derivative by the log-probability. This is the advantage times
        /// the importance ratio (0 where the ratio is clipped), plus a penalty's part.
        Loss = "loss",
    }

    /// Weights of tokens in one gradient.
    pub enum Weights {
        /// Paper: the mean of the tokens' gradients.
        TokenMean = "token_mean",
        /// Authors: in each row, the mean over the tokens whose support contains it.
        RowMean = "row_mean",
        /// Exact: the weights of the trainer's loss if the tokens were the whole batch.
        Loss = "loss",
    }

    /// Average of curvatures over a subset's tokens.
    pub enum CurvatureAverage {
        /// Paper: the mean over tokens.
        TokenMean = "token_mean",
        /// Authors: the mean over completions of the mean over their tokens; an empty completion
        /// counts as 0.
        CompletionMean = "completion_mean",
        /// Exact: the weights of the trainer's loss if the tokens were the whole batch.
        Loss = "loss",
    }

    /// Runs in which the model's own moments advance.
    pub enum MomentUpdate {
        /// Paper, exact: every run, so that shifts have the same meaning in a run that rejects
        /// nothing.
        EveryRun = "every_run",
        /// Authors: runs with a threshold.
        WithThresholds = "with_thresholds",
    }

    /// Effect of a step on the moments of rows without a gradient.
    pub enum UntouchedRows {
        /// Paper, exact: the moments decay, as in Adam over the whole matrix.
        Decay = "decay",
        /// Authors: no effect, although the bias correction counts every step.
        Freeze = "freeze",
    }

    /// Adam's proposal before any row has moments.
    pub enum EmptyState {
        /// Paper, exact: Adam's first step, from moments of zero.
        ZeroMoments = "zero_moments",
        /// Authors: the gradient itself.
        RawGradient = "raw_gradient",
    }

    /// Treatment of a step for which no token was accepted.
    pub enum RejectedBatch {
        /// Paper, exact: the step is not counted.
        NoStep = "no_step",
        /// Authors: a step without a gradient, which the bias correction counts; with
        /// [`UntouchedRows::Decay`] all rows decay.
        Counts = "counts",
    }

    /// Precision in which the model's own moments are stored.
    pub enum StateDtype {
        /// All presets: 32-bit floats.
        F32 = "f32",
        /// Rounded to `bf16` after every step, as in the released code's runs. All other numbers
        /// keep their precision.
        Bf16 = "bf16",
    }

    /// Formula of `m_F`, nats.
    pub enum PolicyShift {
        /// Paper, authors: `½ lr² s²` of the sampled token alone (eq. 9 and 10).
        Sampled = "sampled",
        /// `½ lr² q`: the mean of `½ lr² s²` over the policy, which is the second-order KL
        /// divergence.
        Expected = "expected",
        /// Exact: the KL divergence itself, old policy to new.
        Kl = "kl",
    }

    /// Formula of `m_H`, reward units.
    pub enum ObjectiveShift {
        /// Paper, authors: the expansion up to second order (eq. 8 and 10).
        Quadratic = "quadratic",
        /// Exact: the change of the ratio surrogate itself, `A (pi'(a) / pi(a) - 1)`.
        Surrogate = "surrogate",
    }

    /// Treatment of tokens without a gradient of their own, because their advantage is 0.
    pub enum ZeroAdvantage {
        /// Paper, authors: tested like all others; under Adam, momentum may move them.
        Test = "test",
        /// Exact: kept and not counted.
        Accept = "accept",
    }
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

    /// The authors' released code, except its `bf16` arithmetic. It has no groups.
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

    /// The last-layer model without approximations that cost nothing to avoid.
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

    /// The switches on which the moments depend, in saved form.
    pub(crate) fn of_state(&self) -> [Setting; 10] {
        macro_rules! settings {
            ($($key:ident)*) => { [$(Setting::of(stringify!($key), self.$key)),*] };
        }
        settings!(
            feature probabilities temperature outside_action token_gradient moment_input
            moment_update untouched_rows rejected_batch state_dtype
        )
    }
}

/// A switch of [`Semantics`] with the names of its values in configuration files.
pub trait Switch: Copy + PartialEq + 'static {
    /// Name of each value, the paper's first.
    const NAMES: &'static [&'static str];
    /// The values, in the order of their names.
    const VALUES: &'static [Self];
}

/// The value of a switch with the names of all values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub key: &'static str,
    pub names: &'static [&'static str],
    /// Index into `names`.
    pub index: u8,
}

impl Setting {
    fn of<S: Switch>(key: &'static str, value: S) -> Self {
        let index = S::VALUES.iter().position(|&x| x == value).unwrap_or(0) as u8;
        Self {
            key,
            names: S::NAMES,
            index,
        }
    }
}
