//! Verifiable rewards, one file each: `exact_match`, `number`, `math`, `regex`, `format`,
//! `soft_overlong`, `command` and `environment`.
//!
//! The trainer has them built in, and a plugin offers them to other hosts of `capo-plugin`.
//! `number` and `math` find and compare answers with the crate `math-answer`.

#![deny(unsafe_code)]
#![deny(missing_docs)]

mod command;
mod environment;
mod exact_match;
mod format;
mod math;
mod number;
pub mod program;
mod regex;
mod soft_overlong;

#[cfg(test)]
mod tests;

use capo_plugin::Rollout;

/// Fills `rewards` with the result of `one` for each completion.
fn each(
    rollout: &Rollout<'_>,
    rewards: &mut [f32],
    one: impl Fn(&capo_plugin::Completion<'_>) -> f32,
) {
    for (reward, completion) in rewards.iter_mut().zip(&rollout.completions) {
        *reward = one(completion);
    }
}
