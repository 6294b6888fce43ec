//! Limits on settings, alone and together.

use anyhow::{Result, bail};

use super::Config;

/// Refuses settings that are out of range or do not fit together.
///
/// # Errors
///
/// The first such setting, with its value and its limit.
pub(super) fn check(config: &Config) -> Result<()> {
    let (rollout, train) = (&config.rollout, &config.train);
    let at_least_one = [
        ("rollout.num_generations", rollout.num_generations as u64),
        ("rollout.max_completion_length", rollout.max_completion_length as u64),
        ("train.max_steps", train.max_steps),
        ("train.per_device_train_batch_size", train.per_device_train_batch_size as u64),
        ("train.gradient_accumulation_steps", train.gradient_accumulation_steps as u64),
        ("train.num_iterations", train.num_iterations as u64),
        ("logging.logging_steps", config.logging.logging_steps),
        ("number of `[[reward]]` tables", config.reward.len() as u64),
    ];
    for (key, value) in at_least_one {
        if value == 0 {
            bail!("`{key}` is 0 (it must be at least 1)");
        }
    }
    let ranges = [
        (
            "rollout.temperature",
            f64::from(rollout.temperature),
            0.0,
            100.0,
            "for greedy evaluation see `[eval]`; sampling needs more than 0",
        ),
        ("rollout.top_p", f64::from(rollout.top_p), 0.0, 1.0, "1 is off"),
        ("train.loss_temperature", train.loss_temperature, 0.0, 100.0, "1 is the model's own distribution"),
    ];
    for (key, value, low, high, hint) in ranges {
        if !(value > low && value <= high) {
            bail!("`{key}` is {value} (it must be above {low} and at most {high}; {hint})");
        }
    }
    let from_zero = [
        ("train.learning_rate", train.learning_rate, f64::MAX),
        ("train.warmup_ratio", train.warmup_ratio, 1.0),
        ("train.weight_decay", train.weight_decay, f64::MAX),
        ("train.adam_beta1", train.adam_beta1, 1.0 - f64::EPSILON),
        ("train.adam_beta2", train.adam_beta2, 1.0 - f64::EPSILON),
        ("train.adam_epsilon", train.adam_epsilon, f64::MAX),
        ("train.max_grad_norm", train.max_grad_norm, f64::MAX),
    ];
    for (key, value, high) in from_zero {
        if !(value >= 0.0 && value <= high) {
            let limit = if high == f64::MAX {
                "it must be finite, 0 or more".to_owned()
            } else {
                format!("it must be between 0 and {high}")
            };
            bail!("`{key}` is {value} ({limit})");
        }
    }
    check_sizes(config)
}

fn check_sizes(config: &Config) -> Result<()> {
    let (group, train) = (config.rollout.num_generations, &config.train);
    let (step, rollout) = (train.step_batch_size(), train.rollout_size());
    if step % group != 0 {
        bail!(
            "one optimizer step takes {step} completions (`train.per_device_train_batch_size` {} × `train.gradient_accumulation_steps` {}), which is not a multiple of `rollout.num_generations` {group} (a step holds whole groups)",
            train.per_device_train_batch_size,
            train.gradient_accumulation_steps
        );
    }
    if rollout % step != 0 {
        bail!(
            "one rollout makes {rollout} completions, which is not a multiple of the {step} of an optimizer step (set `train.steps_per_generation` to a multiple of `train.gradient_accumulation_steps`)"
        );
    }
    let per_rollout = train.steps_per_rollout();
    if train.save_steps % per_rollout != 0 {
        bail!(
            "`train.save_steps` is {}, but checkpoints are written between rollouts, every {per_rollout} steps (use a multiple)",
            train.save_steps
        );
    }
    Ok(())
}
