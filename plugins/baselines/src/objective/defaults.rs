//! Defaults of the clipped surrogate's keys under each id.

use capo_plugin::prelude::*;

use super::ratio::Level;

/// The values of an id's keys when its table does not say.
pub trait Defaults: Send {
    /// How losses become one number.
    const REDUCTION: Reduction;
    /// Over what probabilities are compared.
    const LEVEL: Level = Level::Token;
    /// How far below 1 the ratio counts.
    const EPSILON: f32 = 0.2;
    /// How far above; none: as far as below.
    const EPSILON_HIGH: Option<f32> = None;
}

/// Mean over completions of their means (GRPO).
#[derive(Debug, Clone)]
pub struct ByCompletion;

impl Defaults for ByCompletion {
    const REDUCTION: Reduction = Reduction::COMPLETION_MEAN;
}

/// Sum ÷ (B · `max_completion_length`) (Dr.GRPO).
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

/// Mean over all tokens, and more room above 1 than below (DAPO).
#[derive(Debug, Clone)]
pub struct Dapo;

impl Defaults for Dapo {
    const REDUCTION: Reduction = Reduction::TOKEN_MEAN;
    const EPSILON_HIGH: Option<f32> = Some(0.28);
}

/// One ratio per completion, whose mean over tokens moves far less than a token's (GSPO).
#[derive(Debug, Clone)]
pub struct Gspo;

impl Defaults for Gspo {
    const REDUCTION: Reduction = Reduction::COMPLETION_MEAN;
    const LEVEL: Level = Level::Sequence;
    const EPSILON: f32 = 3e-4;
    const EPSILON_HIGH: Option<f32> = Some(4e-4);
}

/// One ratio per completion as in [`Gspo`], with each completion counting by its length (LUSPO).
#[derive(Debug, Clone)]
pub struct Luspo;

impl Defaults for Luspo {
    const REDUCTION: Reduction = Reduction::COMPLETION_SUM;
    const LEVEL: Level = Level::Sequence;
    const EPSILON: f32 = Gspo::EPSILON;
    const EPSILON_HIGH: Option<f32> = Gspo::EPSILON_HIGH;
}

/// A completion as one action (RLOO).
#[derive(Debug, Clone)]
pub struct Rloo;

impl Defaults for Rloo {
    const REDUCTION: Reduction = Reduction::COMPLETION_MEAN;
    const LEVEL: Level = Level::SequenceProduct;
}

/// `importance_sampling_level` where a table does not say it, like those below for `reduction`.
pub(super) fn token() -> Level {
    Level::Token
}

pub(super) fn token_mean() -> Reduction {
    Reduction::TOKEN_MEAN
}

pub(super) fn completion_mean() -> Reduction {
    Reduction::COMPLETION_MEAN
}

pub(super) const ABOUT_REDUCTION: &str =
    "how losses become one number: `completion_mean`, `fixed_length`, `token_mean` or `completion_sum`";
