//! Metrics of a step.

use capo_plugin::{OptimizerKind, Point};

use super::line::Values;
use super::mismatch::mismatch;
use super::names::{self, APPLIED, MEAN_WEIGHT, REJECTED_GRADIENT, REJECTION_RATE};
use crate::stages::effect::Effect;
use crate::stages::owners::metric_name;
use crate::stages::record::StepRecord;

/// The host's metrics of a step; `rejected_so_far` is the rejected share of the run's tokens.
pub fn step(record: &StepRecord, rejected_so_far: f64) -> Values {
    let mut values = of_batch(record);
    values.push(("mask/rejected_so_far", rejected_so_far));
    values.extend(of_gradient(record));
    let effect = record.applied.effect.iter();
    values.extend(effect.flat_map(of_effect));
    let mut values: Values = values
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    values.extend(of_masks(record));
    values.extend(of_weights(record));
    for (control, share) in &record.applied.shares {
        values.push((metric_name(Point::StepControl, control, APPLIED), *share));
    }
    let sampled = record.batch.sampled();
    if let Some(sampler) = &sampled.sampler_logps {
        let training = record.batch.scored.old_logps();
        let mask = sampled.completion_mask();
        values.extend(mismatch(training, sampler, mask, sampled.dims()));
    }
    values
}

/// `count` as a share of the step's completion tokens.
fn of_tokens(record: &StepRecord, count: u64) -> f64 {
    count as f64 / record.batch.sampled().completion_tokens().max(1) as f64
}

fn of_batch(record: &StepRecord) -> Vec<(&'static str, f64)> {
    let sampled = record.batch.sampled();
    let completions = sampled.dims().completions as usize;
    let without_advantage = (0..completions)
        .filter(|&b| {
            let advantages = &record.batch.advantages[sampled.dims().row(b)];
            advantages.iter().all(|advantage| *advantage == 0.0)
        })
        .count();
    let entropies = record.batch.scored.entropy().iter();
    let entropy = entropies
        .zip(sampled.completion_mask())
        .filter(|(_, mask)| **mask == 1)
        .map(|(entropy, _)| f64::from(*entropy))
        .sum::<f64>();
    let (computed, distinct) = record.passes;
    vec![
        ("tokens/computed", computed as f64),
        ("tokens/distinct", distinct as f64),
        ("tokens/padding", sampled.sequences.padding() as f64),
        (
            names::ZERO_ADVANTAGE,
            without_advantage as f64 / completions.max(1) as f64,
        ),
        (names::REJECTED, of_tokens(record, record.rejected_tokens())),
        (
            "entropy",
            entropy / sampled.completion_tokens().max(1) as f64,
        ),
    ]
}

/// Metrics of the loss, its gradient, and the step that the optimizer took.
fn of_gradient(record: &StepRecord) -> Vec<(&'static str, f64)> {
    let StepRecord {
        info,
        reduced,
        applied,
        second_pass,
        ..
    } = record;
    let mut values = vec![
        ("loss", reduced.loss),
        ("learning_rate", info.optimizer.learning_rate),
        (
            "mask/rejected_gradient_share",
            reduced.rejected.iter().sum(),
        ),
        ("step_skipped", f64::from(u8::from(!applied.taken))),
    ];
    values.extend(reduced.policy_loss.map(|loss| ("policy_loss", loss)));
    values.extend(second_pass.map(|time| ("timing_s/second_moment", time.as_secs_f64())));
    if let Some(outcome) = applied.outcome {
        values.push(("grad_norm", outcome.grad_norm));
        if info.optimizer.kind == OptimizerKind::ADAMW_KEPT_AND_REJECTED {
            let second = reduced.completions_with_rest(&record.batch.sampled().dims());
            values.push(("rejected_grad_norm", outcome.rejected_grad_norm));
            values.push(("grad_norm_unmasked", outcome.grad_norm_unmasked));
            values.push(("second_pass_completions", second as f64));
        }
    }
    if !applied.shares.is_empty() {
        values.push(("step_control/applied", applied.share()));
    }
    values
}

fn of_effect(effect: &Effect) -> Vec<(&'static str, f64)> {
    let Effect {
        kl,
        update_norm,
        head,
        tail_mass,
        kept_advantage,
    } = *effect;
    let mut values = vec![
        ("step/kl", kl),
        ("step/update_norm", update_norm),
        ("step/tail_mass", tail_mass),
    ];
    if let Some([kl, unused]) = head {
        values.push(("step/last_layer_kl", kl));
        values.push(("step/unused_head_update", unused));
    }
    values.extend(kept_advantage.map(|advantage| ("step/kept_advantage", advantage)));
    values
}

fn of_masks(record: &StepRecord) -> Values {
    let mut values = Values::new();
    let gradients = &record.reduced.rejected;
    for (mask, gradient) in record.decision.rejected.iter().zip(gradients) {
        let rate = of_tokens(record, mask.tokens.len() as u64);
        values.push((metric_name(Point::Mask, &mask.by, REJECTION_RATE), rate));
        let name = metric_name(Point::Mask, &mask.by, REJECTED_GRADIENT);
        values.push((name, *gradient));
    }
    values
}

fn of_weights(record: &StepRecord) -> Values {
    let mut values = Values::new();
    let gradients = &record.reduced.weighted_away;
    for (weight, gradient) in record.decision.factors.iter().zip(gradients) {
        let mut below_one = 0_u64;
        let mut count = 0_u64;
        for (_, factor) in weight.of_tokens() {
            below_one += u64::from(factor < 1.0);
            count += 1;
        }
        let below_one = below_one as f64 / count.max(1) as f64;
        for (name, value) in [
            (MEAN_WEIGHT, weight.mean()),
            ("below_one", below_one),
            (names::WEIGHTED_AWAY, *gradient),
        ] {
            values.push((metric_name(Point::Weight, &weight.by, name), value));
        }
    }
    values
}
