//! The exact shifts beside the quadratic ones, and what is said of each decision.

use capo_core::{
    Acceptance, Assessment, CurvatureModel, Granularity, PolicyShift, Reason, Rejections,
    Semantics, Step,
};

use super::fixture::{ADAM, Dims, GRANULARITIES, OPEN, PRESETS, Rng, SGD, model};
use super::scene::Scene;

const DIMS: Dims = Dims(6, 4, 4, 9, 8);
/// The paper's model, but for the mean of the policy shift over the policy, which is the
/// divergence's quadratic form.
const EXPECTED: Semantics = Semantics {
    policy_shift: PolicyShift::Expected,
    ..Semantics::PAPER
};

fn assess(
    step: &Step,
    mask: &[u8],
    acceptance: Acceptance,
    granularity: Granularity,
    semantics: Semantics,
) -> Assessment {
    let mut model = CurvatureModel::new(acceptance, granularity, semantics).unwrap();
    Scene::full(&mut Rng(101), DIMS, 1.0).commit(&mut model, &step.optimizer);
    model.assess(&model.prepare(step, mask).unwrap()).unwrap()
}

/// Halving the learning rate divides what the quadratic forms leave out by eight.
#[test]
fn quadratic_forms_and_exact_shifts_agree_to_third_order() {
    let scene = Scene::full(&mut Rng(100), DIMS, 1.0);
    for optimizer in [SGD, ADAM] {
        let model = model(EXPECTED, Granularity::Batch);
        for at in 0..24 {
            let token_mask: Vec<u8> = (0..24).map(|x| u8::from(x == at)).collect();
            let remainders = |lr: f64| {
                let prepared = model
                    .prepare(&scene.step(&optimizer, lr), &scene.batch.mask)
                    .unwrap();
                let shift = model.batch_shift(&prepared, &token_mask).unwrap();
                (
                    shift.kl - shift.m_f,
                    shift.surrogate - shift.m_h,
                    shift.kl,
                    shift.surrogate,
                )
            };
            let (one, half) = (remainders(1e-3), remainders(0.5e-3));
            for (what, ratio) in [("kl", one.0 / half.0), ("surrogate", one.1 / half.1)] {
                assert!((ratio - 8.0).abs() < 0.4, "token {at} {what}: {ratio}");
            }
            // And these are small parts of shifts of second and first order.
            assert!(((one.2 / half.2) - 4.0).abs() < 0.1 && ((one.3 / half.3) - 2.0).abs() < 0.1);
        }
    }
}

/// Every test on, with bounds that split the batch in several ways.
fn bounds(open: &Assessment) -> Acceptance {
    let middle = |x: &[f32], share: f64| {
        let mut x: Vec<f32> = x.iter().copied().filter(|&x| x != 0.0).collect();
        x.sort_by(f32::total_cmp);
        let at = ((x.len() - 1) as f64 * share) as usize;
        0.5 * (f64::from(x[at]) + f64::from(x[at + 1]))
    };
    Acceptance {
        fisher_threshold: Some(middle(&open.m_f, 0.6)),
        hessian_range: Some([middle(&open.m_h, 0.2), middle(&open.m_h, 0.7)]),
        low_end_kept: false,
    }
}

/// The reason that follows from the shifts alone.
fn reason(acceptance: &Acceptance, m_f: f32, m_h: f64) -> Reason {
    if m_f.is_nan() {
        return Reason::NotFinite;
    }
    let fisher = acceptance
        .fisher_threshold
        .is_some_and(|bound| f64::from(m_f) >= bound);
    let hessian = acceptance
        .hessian_range
        .is_some_and(|[low, high]| !(m_h > low && m_h < high));
    match (fisher, hessian) {
        (false, false) => Reason::None,
        (true, false) => Reason::Fisher,
        (false, true) => Reason::Hessian,
        (true, true) => Reason::Both,
    }
}

#[test]
fn reasons_masks_and_counts_agree() {
    let mut seen = vec![];
    for semantics in PRESETS {
        let mut scene = Scene::random(&mut Rng(102), DIMS, 1.0);
        scene
            .derivatives
            .iter_mut()
            .for_each(|x| *x = if *x == 0.0 { 0.3 } else { *x });
        scene
            .batch
            .advantages
            .iter_mut()
            .for_each(|x| *x = if *x == 0.0 { 0.3 } else { *x });
        let first = scene.batch.mask.iter().position(|&x| x != 0).unwrap();
        scene.batch.hidden[first * 9] = f32::NAN;
        for optimizer in [SGD, ADAM] {
            let step = scene.step(&optimizer, 0.1);
            let run = |acceptance| {
                assess(
                    &step,
                    &scene.batch.mask,
                    acceptance,
                    Granularity::Token,
                    semantics,
                )
            };
            let acceptance = bounds(&run(OPEN));
            let got = run(acceptance);
            let mut counts = Rejections::default();
            for at in 0..24 {
                let valid = scene.batch.mask[at] != 0;
                let expected = if valid {
                    reason(&acceptance, got.m_f[at], f64::from(got.m_h[at]))
                } else {
                    Reason::None
                };
                assert_eq!(got.reasons[at], expected, "token {at}");
                assert_eq!(
                    got.token_mask[at],
                    u8::from(valid && expected == Reason::None),
                    "token {at}"
                );
                counts.fisher += usize::from(matches!(expected, Reason::Fisher | Reason::Both));
                counts.hessian += usize::from(matches!(expected, Reason::Hessian | Reason::Both));
                counts.not_finite += usize::from(expected == Reason::NotFinite);
                counts.total += usize::from(expected != Reason::None);
                seen.push(expected as u8);
            }
            assert_eq!(got.rejected, counts);
            assert_eq!(
                got.tokens,
                scene.batch.mask.iter().filter(|&&x| x != 0).count()
            );
        }
    }
    for reason in [
        Reason::None,
        Reason::Fisher,
        Reason::Hessian,
        Reason::Both,
        Reason::NotFinite,
    ] {
        assert!(seen.contains(&(reason as u8)), "{reason:?} never came up");
    }
}

/// Against the first-order term read off at a learning rate at which it is all that `m_H` has.
#[test]
fn counts_decisions_changed_by_the_second_order() {
    let mut changed = 0;
    for (semantics, granularity) in PRESETS
        .into_iter()
        .flat_map(|x| GRANULARITIES.map(|y| (x, y)))
    {
        for optimizer in [SGD, ADAM] {
            let scene = Scene::full(&mut Rng(103), DIMS, 1.0);
            let run = |acceptance, lr: f64| {
                assess(
                    &scene.step(&optimizer, lr),
                    &scene.batch.mask,
                    acceptance,
                    granularity,
                    semantics,
                )
            };
            let (open, slopes) = (run(OPEN, 0.3), run(OPEN, 1e-8));
            let acceptance = if granularity == Granularity::Batch {
                between(&open, &slopes)
            } else {
                bounds(&open)
            };
            let got = run(acceptance, 0.3);
            let count = (0..24).filter(|&at| {
                let first_order = f64::from(slopes.m_h[at]) * 0.3e8;
                let linear = reason(&acceptance, got.m_f[at], first_order);
                (linear == Reason::None) != (got.token_mask[at] == 1)
            });
            assert_eq!(
                got.changed_by_second_order,
                count.count(),
                "{granularity:?}"
            );
            changed += got.changed_by_second_order;
        }
    }
    assert!(changed > 50, "{changed}");
}

/// An upper end between the batch's shift to first order and in full.
fn between(open: &Assessment, slopes: &Assessment) -> Acceptance {
    let middle = 0.5 * (f64::from(slopes.m_h[0]) * 0.3e8 + f64::from(open.m_h[0]));
    Acceptance {
        fisher_threshold: None,
        hessian_range: Some([f64::NEG_INFINITY, middle]),
        low_end_kept: false,
    }
}

#[test]
fn a_one_sided_interval_may_keep_its_low_end() {
    let scene = Scene::full(&mut Rng(104), DIMS, 1.0);
    for (semantics, granularity) in PRESETS
        .into_iter()
        .flat_map(|x| GRANULARITIES.map(|y| (x, y)))
    {
        for (low_end_kept, kept) in [(true, 24), (false, 0)] {
            let acceptance = Acceptance {
                hessian_range: Some([0.0, 1.0]),
                low_end_kept,
                ..OPEN
            };
            let got = assess(
                &scene.step(&ADAM, 0.0),
                &scene.batch.mask,
                acceptance,
                granularity,
                semantics,
            );
            assert!(
                got.m_h
                    .iter()
                    .chain(&got.m_f)
                    .chain(&got.kl)
                    .chain(&got.surrogate)
                    .all(|&x| x == 0.0)
            );
            assert_eq!(
                got.token_mask
                    .iter()
                    .map(|&x| usize::from(x))
                    .sum::<usize>(),
                kept
            );
            assert_eq!(
                (got.rejected.hessian, got.changed_by_second_order),
                (24 - kept, 0)
            );
            assert!(got.reasons.iter().all(|&x| x
                == if low_end_kept {
                    Reason::None
                } else {
                    Reason::Hessian
                }));
        }
    }
}

/// The paper's model divides by no probability: its own shifts are finite, and decide.
#[test]
fn a_non_finite_exact_shift_is_nan_and_decides_nothing() {
    let mut scene = Scene::full(&mut Rng(105), DIMS, 1.0);
    let inside = |scene: &Scene, at: usize| {
        scene.batch.topk_ids[at * 4..][..4].contains(&scene.batch.action_ids[at])
    };
    for at in 0..24 {
        if !inside(&scene, at) {
            scene.batch.action_logits[at] = -1e4;
        }
    }
    let got = assess(
        &scene.step(&SGD, 1e4),
        &scene.batch.mask,
        OPEN,
        Granularity::Token,
        Semantics::PAPER,
    );
    assert_eq!(got.token_mask, scene.batch.mask);
    assert!(
        got.m_f
            .iter()
            .chain(&got.m_h)
            .chain(&got.kl)
            .all(|x| x.is_finite())
    );
    for at in 0..24 {
        assert_eq!(
            got.surrogate[at].is_nan(),
            !inside(&scene, at),
            "token {at}"
        );
        assert!(
            got.surrogate[at].is_nan() || got.surrogate[at] < 1e3,
            "token {at}: {}",
            got.surrogate[at]
        );
    }
}
