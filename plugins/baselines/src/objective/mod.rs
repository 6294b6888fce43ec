//! Losses per token, and their derivatives by the log-probability, a file for each family.
//!
//! `evaluate` goes over a batch's tokens, `ratio` says whose probabilities are compared over what, `kl` what distance from a reference costs, `defaults` what an id's keys are where
//! its table does not say; a family says what a token's loss is, given its ratio.

mod cispo;
mod clipped;
mod clips;
mod correction;
mod defaults;
mod evaluate;
mod kl;
mod policy_gradient;
mod ratio;
mod sapo;
mod term;
mod vespo;

pub use cispo::Cispo;
pub use clipped::ClippedSurrogate;
pub use correction::CorrectionMode;
pub use defaults::{ByCompletion, ByFixedLength, ByToken, Dapo, Defaults, Gspo, Luspo, Rloo};
pub use kl::KlEstimator;
pub use policy_gradient::PolicyGradient;
pub use ratio::Level;
pub use sapo::Sapo;
pub use vespo::Vespo;

#[cfg(test)]
mod tests;
