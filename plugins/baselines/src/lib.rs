//! The advantages and objectives that GRPO, Dr.GRPO and REINFORCE are made of, as plain types.
//!
//! Nothing registers itself here: a host and each plugin offer these types under their own ids.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod advantage;
mod objective;

pub use advantage::{GroupCentered, GroupNormalized, RewardAsAdvantage};
pub use objective::{ByCompletion, ByFixedLength, ClippedSurrogate, DefaultReduction, PolicyGradient, ReductionName};
