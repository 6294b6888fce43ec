//! The mask's reports.

use capo_core::{Assessment, BatchShift, Certificate, Reason};
use capo_plugin::prelude::*;

/// Reported quantiles of a batch's shifts, with their names.
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

/// Records the shifts of one step on all tokens that reached the mask (`before`) and on the kept
/// tokens (`after`).
pub(crate) fn batch_shifts(ctx: &mut Ctx<'_>, before: &BatchShift, after: &BatchShift) {
    for (prefix, shift) in [("", before), ("masked_", after)] {
        let BatchShift {
            m_f,
            m_h,
            kl,
            surrogate,
            ..
        } = *shift;
        for (name, value) in [
            ("m_f", m_f),
            ("m_h", m_h),
            ("kl", kl),
            ("surrogate", surrogate),
        ] {
            ctx.record(&format!("{prefix}{name}_batch"), value);
        }
    }
}

/// Records shifts, decisions and their reasons, per token and in total.
pub(crate) fn assessment(ctx: &mut Ctx<'_>, assessment: &Assessment) {
    let share = |count: usize| count as f64 / assessment.tokens.max(1) as f64;
    ctx.record("rejected_fisher", share(assessment.rejected.fisher));
    ctx.record("rejected_hessian", share(assessment.rejected.hessian));
    ctx.record("rejected_not_finite", share(assessment.rejected.not_finite));
    ctx.record(
        "changed_by_second_order",
        share(assessment.changed_by_second_order),
    );
    quantiles(ctx, "m_f", assessed(assessment, &assessment.m_f));
    quantiles(ctx, "m_h_abs", assessed(assessment, &assessment.m_h));
    kept(ctx, "masked_m_f", assessment, &assessment.m_f);
    kept(ctx, "masked_m_h", assessment, &assessment.m_h);
    certificate(ctx, &assessment.certificate);
    ctx.record_tokens("m_f", &assessment.m_f);
    ctx.record_tokens("m_h", &assessment.m_h);
    ctx.record_tokens("kl", &assessment.kl);
    ctx.record_tokens("surrogate", &assessment.surrogate);
    let reasons: Vec<f32> = assessment
        .reasons
        .iter()
        .map(|&reason| f32::from(reason as u8))
        .collect();
    ctx.record_tokens("reason", &reasons);
}

/// Records mean and largest value over kept tokens; nothing if no token was kept.
fn kept(ctx: &mut Ctx<'_>, name: &str, assessment: &Assessment, values: &[f32]) {
    let kept = || {
        values
            .iter()
            .zip(&assessment.token_mask)
            .filter(|(_, keep)| **keep != 0)
            .map(|(value, _)| f64::from(*value))
    };
    if let Some(largest) = kept().reduce(f64::max) {
        ctx.record(
            &format!("{name}_mean"),
            kept().sum::<f64>() / kept().count() as f64,
        );
        ctx.record(&format!("{name}_max"), largest);
    }
}

/// Absolute values of all tokens that were assessed and are finite.
fn assessed(assessment: &Assessment, values: &[f32]) -> Vec<f32> {
    let there =
        |&at: &usize| assessment.token_mask[at] != 0 || assessment.reasons[at] != Reason::None;
    (0..values.len())
        .filter(there)
        .map(|at| values[at].abs())
        .filter(|value| value.is_finite())
        .collect()
}

/// Records the nearest-rank quantiles of `values`; nothing if there are none.
fn quantiles(ctx: &mut Ctx<'_>, name: &str, mut values: Vec<f32>) {
    for (suffix, share) in QUANTILES {
        let rank = (share * values.len() as f64).ceil() as usize;
        if rank > 0 {
            let (_, value, _) = values.select_nth_unstable_by(rank - 1, f32::total_cmp);
            ctx.record(&format!("{name}_{suffix}"), f64::from(*value));
        }
    }
}

/// Records the terms of the paper's theorem on monotonic improvement.
fn certificate(ctx: &mut Ctx<'_>, certificate: &Certificate) {
    let Certificate {
        step_norm,
        hessian_bound,
        omega,
        gap,
    } = *certificate;
    let holds = f64::from(u8::from(certificate.holds()));
    for (name, value) in [
        ("step_norm", step_norm),
        ("hessian_bound", hessian_bound),
        ("omega", omega),
        ("gap", gap),
        ("holds", holds),
    ] {
        ctx.record(&format!("theorem_{name}"), value);
    }
}
