//! Defaults of the clipped surrogate's keys for each id.

use capo_plugin::prelude::*;

use super::ratio::Level;

/// Default values of an id's keys.
pub trait Defaults: Send {
    /// Rule that reduces losses to one number.
    const REDUCTION: Reduction;
    /// Level at which probabilities are compared.
    const LEVEL: Level = Level::Token;
    /// Lower clip of the ratio, as a distance from 1.
    const EPSILON: f32 = 0.2;
    /// Upper clip of the ratio, as a distance from 1; `None` means equal to the lower.
    const EPSILON_HIGH: Option<f32> = None;
}

/// Mean over completions of the mean over their tokens (GRPO).
#[derive(Debug, Clone)]
pub struct ByCompletion;

impl Defaults for ByCompletion {
    const REDUCTION: Reduction = Reduction::COMPLETION_MEAN;
}

/// Sum over tokens ÷ (B · `max_completion_length`) (Dr.GRPO).
#[derive(Debug, Clone)]
pub struct ByFixedLength;

impl Defaults for ByFixedLength {
    const REDUCTION: Reduction = Reduction::FIXED_LENGTH;
}

/// Mean over all tokens (BNPO).
#[derive(Debug, Clone)]
pub struct ByToken;

impl Defaults for ByToken {
    const REDUCTION: Reduction = Reduction::TOKEN_MEAN;
}

/// Mean over all tokens, with a wider clip above 1 than below (DAPO).
#[derive(Debug, Clone)]
pub struct Dapo;

impl Defaults for Dapo {
    const REDUCTION: Reduction = Reduction::TOKEN_MEAN;
    const EPSILON_HIGH: Option<f32> = Some(0.28);
}

/// One ratio per completion; a geometric mean moves far less than a token's ratio (GSPO).
#[derive(Debug, Clone)]
pub struct Gspo;

impl Defaults for Gspo {
    const REDUCTION: Reduction = Reduction::COMPLETION_MEAN;
    const LEVEL: Level = Level::Sequence;
    const EPSILON: f32 = 3e-4;
    const EPSILON_HIGH: Option<f32> = Some(4e-4);
}

/// One ratio per completion as in [`Gspo`], with each completion weighted by its length (LUSPO).
#[derive(Debug, Clone)]
pub struct Luspo;

impl Defaults for Luspo {
    const REDUCTION: Reduction = Reduction::COMPLETION_SUM;
    const LEVEL: Level = Level::Sequence;
    const EPSILON: f32 = Gspo::EPSILON;
    const EPSILON_HIGH: Option<f32> = Gspo::EPSILON_HIGH;
}

/// One ratio per completion, which counts as one action (RLOO).
#[derive(Debug, Clone)]
pub struct Rloo;

impl Defaults for Rloo {
    const REDUCTION: Reduction = Reduction::COMPLETION_MEAN;
    const LEVEL: Level = Level::SequenceProduct;
}
