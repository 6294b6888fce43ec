//! The advantages and objectives of GRPO and its relatives, as plain types.
//!
//! This crate registers nothing: a host and each plugin offer these types under their own ids.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod advantage;
mod checks;
mod objective;

pub use advantage::{
    Aggregation, Baseline, GroupCentered, GroupNormalized, LeaveOneOut, ReinforcePlusPlus, RewardAsAdvantage,
    ScaleRewards,
};
pub use objective::{
    ByCompletion, ByFixedLength, ByToken, Cispo, ClippedSurrogate, CorrectionMode, Dapo, Defaults, Gspo, KlEstimator,
    Level, Luspo, PolicyGradient, Rloo, Sapo, Vespo,
};
