//! The time that a run takes, in lines.

use super::{duration, grouped};
use crate::run::Resources;
use crate::run::estimate::Estimate;
use crate::run::pace::measure;

/// Lines for the run's header: the time of the whole run, and of each part of a step.
pub fn pace(resources: &mut Resources, estimate: &Estimate) -> Vec<String> {
    let (parts, evaluation) = match measure(resources, estimate) {
        Ok(measured) => measured,
        Err(error) => return vec![format!("time       not measured: {error:#}")],
    };
    let (config, steps) = (&resources.config, resources.config.train.max_steps);
    let step: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    let (mut all, mut evaluated) = (step * steps as f64, String::new());
    if evaluation > 0.0 {
        // The first comes before training.
        let count = 1 + config.evaluations(0..steps);
        all += evaluation * count as f64;
        evaluated = format!(" and {count} evaluations of {}", shown(evaluation));
    }
    let tokens = config.sizes.step * (estimate.prompt_tokens + config.rollout.max_completion_length);
    let (all, step, tokens) = (duration(all), shown(step), grouped(tokens as u64));
    let first = format!(
        "time       about {all} if every completion has its full length ({tokens} tokens a step): {steps} steps of {step}{evaluated}"
    );
    let parts = parts.iter().map(|(name, seconds)| format!("  {name:<32} {:>10}", shown(*seconds)));
    std::iter::once(first).chain(parts).collect()
}

/// A duration of any length; a small model's steps take milliseconds.
fn shown(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.0} ms", 1000.0 * seconds) } else { duration(seconds) }
}
