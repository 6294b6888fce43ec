//! Sizes of a run's loops and arrays: products of settings, computed once and with overflow checks.

use anyhow::Result;

use super::{ConfigError, RolloutConfig, TrainConfig};
use crate::require;

/// Largest number of completions of one rollout: their arrays are allocated before any length is
/// known.
const MOST_COMPLETIONS: usize = 1 << 20;

/// Sizes of the parts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of completions of one optimizer step; a multiple of the group's size.
    pub step: usize,
    /// Number of completions of one rollout; a multiple of `step`.
    pub rollout: usize,
    /// Number of prompts of one rollout.
    pub prompts: usize,
    /// Number of optimizer steps made from one rollout.
    pub steps_per_rollout: u64,
}

impl Sizes {
    /// Computes the sizes, each at least 1, from settings.
    pub(super) fn new(rollout: &RolloutConfig, train: &TrainConfig) -> Result<Self> {
        let group = rollout.num_generations;
        let micro_batch = train.per_device_train_batch_size;
        let accumulation = train.gradient_accumulation_steps;
        let factors = format!(
            "`train.per_device_train_batch_size` {micro_batch} × \
             `train.gradient_accumulation_steps` {accumulation}"
        );
        let step = product(micro_batch, accumulation).ok_or_else(|| {
            ConfigError::conflict(
                [
                    "train.per_device_train_batch_size",
                    "train.gradient_accumulation_steps",
                ],
                format!(
                    "{factors} are more completions of one optimizer step than the \
                     {MOST_COMPLETIONS} that are possible (lower one of them)"
                ),
            )
        })?;
        require!(
            [
                "train.per_device_train_batch_size",
                "train.gradient_accumulation_steps",
                "rollout.num_generations"
            ],
            step.is_multiple_of(group),
            "one optimizer step takes {step} completions ({factors}), which is not a multiple of \
             `rollout.num_generations` {group} (a step holds whole groups)"
        );
        let completions = completions(train)?;
        let hint = match train.generation_batch_size {
            0 => {
                "set `train.steps_per_generation` to a multiple of \
                 `train.gradient_accumulation_steps`"
            }
            _ => "set `train.generation_batch_size` to a multiple of it",
        };
        require!(
            [
                "train.generation_batch_size",
                "train.steps_per_generation",
                "train.gradient_accumulation_steps",
                "train.per_device_train_batch_size"
            ],
            completions.is_multiple_of(step),
            "one rollout makes {completions} completions, which is not a multiple of the {step} \
             of an optimizer step ({hint})"
        );
        // Both factors have limits far below the square root of the largest number.
        let steps_per_rollout = (completions / step) as u64 * train.num_iterations as u64;
        Ok(Self {
            step,
            rollout: completions,
            prompts: completions / group,
            steps_per_rollout,
        })
    }
}

/// Number of completions of one rollout, which its backward passes consume.
fn completions(train: &TrainConfig) -> Result<usize> {
    let said = train.generation_batch_size;
    if said > 0 {
        require!(
            [
                "train.generation_batch_size",
                "train.steps_per_generation",
                "train.per_device_train_batch_size"
            ],
            train.steps_per_generation == 0,
            "`train.generation_batch_size` is {said} and `train.steps_per_generation` {} (set one \
             of them: the first is the second × `train.per_device_train_batch_size`)",
            train.steps_per_generation
        );
        require!(
            ["train.generation_batch_size"],
            said <= MOST_COMPLETIONS,
            "`train.generation_batch_size` is {said} (it must be at most {MOST_COMPLETIONS})"
        );
        return Ok(said);
    }
    let (key, passes) = match train.steps_per_generation {
        0 => (
            "train.gradient_accumulation_steps",
            train.gradient_accumulation_steps,
        ),
        passes => ("train.steps_per_generation", passes),
    };
    let micro_batch = train.per_device_train_batch_size;
    product(micro_batch, passes).ok_or_else(|| {
        let sentence = format!(
            "`train.per_device_train_batch_size` {micro_batch} × `{key}` {passes} are more \
             completions of one rollout than the {MOST_COMPLETIONS} that are possible (lower one \
             of them)"
        );
        ConfigError::conflict(["train.per_device_train_batch_size", key], sentence).into()
    })
}

/// A number of completions, unless it exceeds the limit.
fn product(micro_batch: usize, passes: usize) -> Option<usize> {
    micro_batch
        .checked_mul(passes)
        .filter(|completions| *completions <= MOST_COMPLETIONS)
}
