//! Sizes of a run's loops and arrays: products of settings, computed once and with overflow checks.

use anyhow::{Context, Result, ensure};

use super::{RolloutConfig, TrainConfig};

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
        let (micro_batch, accumulation) = (
            train.per_device_train_batch_size,
            train.gradient_accumulation_steps,
        );
        let factors = format!(
            "`train.per_device_train_batch_size` {micro_batch} × `train.gradient_accumulation_steps` {accumulation}"
        );
        let step = micro_batch.checked_mul(accumulation).filter(|step| *step <= MOST_COMPLETIONS).with_context(|| {
            format!("{factors} are more completions of one optimizer step than the {MOST_COMPLETIONS} that are possible (lower one of them)")
        })?;
        ensure!(
            step.is_multiple_of(group),
            "one optimizer step takes {step} completions ({factors}), which is not a multiple of `rollout.num_generations` {group} (a step holds whole groups)"
        );
        let completions = completions(train)?;
        let hint = match train.generation_batch_size {
            0 => {
                "set `train.steps_per_generation` to a multiple of `train.gradient_accumulation_steps`"
            }
            _ => "set `train.generation_batch_size` to a multiple of it",
        };
        ensure!(
            completions.is_multiple_of(step),
            "one rollout makes {completions} completions, which is not a multiple of the {step} of an optimizer step ({hint})"
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
    let (micro_batch, said) = (
        train.per_device_train_batch_size,
        train.generation_batch_size,
    );
    if said > 0 {
        ensure!(
            train.steps_per_generation == 0,
            "`train.generation_batch_size` is {said} and `train.steps_per_generation` {} (set one of them: the first is the second × `train.per_device_train_batch_size`)",
            train.steps_per_generation
        );
        ensure!(
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
    micro_batch.checked_mul(passes).filter(|size| *size <= MOST_COMPLETIONS).with_context(|| {
        format!("`train.per_device_train_batch_size` {micro_batch} × `{key}` {passes} are more completions of one rollout than the {MOST_COMPLETIONS} that are possible (lower one of them)")
    })
}
