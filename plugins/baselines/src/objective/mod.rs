//! Per-token losses and their derivatives by the log-probability, one file for each family.
//!
//! `evaluate` visits a batch's tokens, `ratio` compares probabilities, `kl` adds the penalty, and
//! `defaults` holds the keys' defaults for each id. A family computes a token's loss from its
//! ratio.

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
