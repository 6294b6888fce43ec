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
    let StepRecord {
        info,
        batch,
        decision,
        reduced,
        applied,
        ..
    } = record;
    let sampled = batch.sampled();
    let tokens = sampled.completion_tokens();
    let of_tokens = |count: u64| count as f64 / tokens.max(1) as f64;
    let completions = sampled.dims().completions as usize;
    let untaught = |b: &usize| {
        batch.advantages[sampled.dims().row(*b)]
            .iter()
            .all(|advantage| *advantage == 0.0)
    };
    let untaught = (0..completions).filter(untaught).count() as f64 / completions.max(1) as f64;
    let real = batch
        .scored
        .entropy()
        .iter()
        .zip(sampled.completion_mask())
        .filter(|(_, mask)| **mask == 1);
    let entropy = real.map(|(entropy, _)| f64::from(*entropy)).sum::<f64>() / tokens.max(1) as f64;
    let (computed, distinct) = record.passes;
    let mut values: Vec<(&str, f64)> = vec![
        ("tokens/computed", computed as f64),
        ("tokens/distinct", distinct as f64),
        ("tokens/padding", sampled.sequences.padding() as f64),
        ("loss", reduced.loss),
        (names::ZERO_ADVANTAGE, untaught),
        ("learning_rate", info.optimizer.learning_rate),
        (names::REJECTED, of_tokens(record.rejected_tokens())),
        ("mask/rejected_so_far", rejected_so_far),
        (
            "mask/rejected_gradient_share",
            reduced.rejected.iter().sum(),
        ),
        ("step_skipped", f64::from(u8::from(!applied.taken))),
        ("entropy", entropy),
    ];
    values.extend(reduced.policy_loss.map(|loss| ("policy_loss", loss)));
    values.extend(
        record
            .second_pass
            .map(|time| ("timing_s/second_moment", time.as_secs_f64())),
    );
    if let Some(outcome) = applied.outcome {
        values.push(("grad_norm", outcome.grad_norm));
        if info.optimizer.kind == OptimizerKind::ADAMW_KEPT_AND_REJECTED {
            values.push(("rejected_grad_norm", outcome.rejected_grad_norm));
            values.push(("grad_norm_unmasked", outcome.grad_norm_unmasked));
            values.push((
                "second_pass_completions",
                reduced.completions_with_rest(&sampled.dims()) as f64,
            ));
        }
    }
    values.extend(applied.effect.iter().flat_map(of_effect));
    if !applied.shares.is_empty() {
        values.push(("step_control/applied", applied.share()));
    }
    let mut values: Values = values
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    for (mask, gradient) in decision.rejected.iter().zip(&reduced.rejected) {
        let name = |name: &str| metric_name(Point::Mask, &mask.by, name);
        values.push((name(REJECTION_RATE), of_tokens(mask.tokens.len() as u64)));
        values.push((name(REJECTED_GRADIENT), *gradient));
    }
    for (weight, away) in decision.factors.iter().zip(&reduced.weighted_away) {
        let name = |name: &str| metric_name(Point::Weight, &weight.by, name);
        let factors = || weight.of_tokens().map(|(_, factor)| factor);
        let count = factors().count().max(1) as f64;
        values.push((name(MEAN_WEIGHT), weight.mean()));
        values.push((
            name("below_one"),
            factors().filter(|factor| *factor < 1.0).count() as f64 / count,
        ));
        values.push((name(names::WEIGHTED_AWAY), *away));
    }
    let shares = applied.shares.iter();
    values.extend(
        shares.map(|(control, share)| (metric_name(Point::StepControl, control, APPLIED), *share)),
    );
    if let Some(sampler) = &sampled.sampler_logps {
        values.extend(mismatch(
            batch.scored.old_logps(),
            sampler,
            sampled.completion_mask(),
            sampled.dims(),
        ));
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
    let of_all = [
        ("step/kl", kl),
        ("step/update_norm", update_norm),
        ("step/tail_mass", tail_mass),
    ];
    let of_head = |[kl, unused]: [f64; 2]| {
        [
            ("step/last_layer_kl", kl),
            ("step/unused_head_update", unused),
        ]
    };
    let kept = kept_advantage.map(|advantage| ("step/kept_advantage", advantage));
    of_all
        .into_iter()
        .chain(head.map(of_head).into_iter().flatten())
        .chain(kept)
        .collect()
}
