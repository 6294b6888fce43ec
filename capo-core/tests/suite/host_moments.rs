//! The trainer's own moments.

use capo_core::{CurvatureModel, Granularity, HostMoments, Semantics, Step};

use super::device;
use super::fixture::{ADAM, Dims, GRANULARITIES, PRESETS, Rng, assert_close, model, shifts, wide};
use super::scene::Scene;
use super::whole::{Optimizer, Whole, as_host_moments};

const DIMS: Dims = Dims(4, 3, 3, 18, 9);
const RATE: f64 = 0.05;
const STEPS: u64 = 4;

/// The scene's step with moments of the trainer after `steps` steps.
fn step_with<'a>(
    scene: &'a Scene,
    (exp_avg, exp_avg_sq): (&'a [f32], &'a [f32]),
    steps: u64,
) -> Step<'a> {
    let moments = HostMoments {
        arrays: device::moments(exp_avg, exp_avg_sq),
        steps,
    };
    Step {
        moments: Some(moments),
        ..scene.step(&ADAM, RATE)
    }
}

/// A model and dense moments after the same steps.
fn history(semantics: Semantics, granularity: Granularity) -> (CurvatureModel, Whole) {
    let mut rng = Rng(90);
    let mut model = model(semantics, granularity);
    let mut whole = Whole {
        semantics,
        optimizer: Optimizer::new(ADAM, DIMS),
    };
    for _ in 0..STEPS {
        let scene = Scene::full(&mut rng, DIMS, 1.0);
        scene.commit(&mut model, &ADAM);
        whole.commit(&scene, &scene.batch.mask);
    }
    (model, whole)
}

#[test]
fn the_trainers_moments_work_like_the_models_own() {
    let scene = Scene::random(&mut Rng(91), DIMS, 1.0);
    for (semantics, granularity) in PRESETS
        .into_iter()
        .flat_map(|x| GRANULARITIES.map(|y| (x, y)))
    {
        let (own, whole) = history(semantics, granularity);
        let (exp_avg, exp_avg_sq) = as_host_moments(&whole.optimizer);
        let (plain, step) = (
            scene.step(&ADAM, RATE),
            step_with(&scene, (&exp_avg, &exp_avg_sq), STEPS),
        );
        let expected = scene.assess(&own, &ADAM, RATE);
        let shift = own
            .batch_shift(
                &own.prepare(&plain, &scene.batch.mask).unwrap(),
                &scene.batch.mask,
            )
            .unwrap();
        // Neither a model without history nor one with another asks its own moments.
        let mut other = model(semantics, granularity);
        Scene::full(&mut Rng(92), DIMS, 1.0).commit(&mut other, &ADAM);
        for host in [model(semantics, granularity), other, own] {
            let prepared = host.prepare(&step, &scene.batch.mask).unwrap();
            let got = host.assess(&prepared).unwrap();
            for ((name, got), (_, expected)) in shifts(&got).into_iter().zip(shifts(&expected)) {
                assert_close(name, got, &wide(expected), 1e-6);
            }
            let batch = host.batch_shift(&prepared, &scene.batch.mask).unwrap();
            assert_close(
                "batch",
                &[batch.m_f as f32, batch.m_h as f32],
                &[shift.m_f, shift.m_h],
                1e-6,
            );
        }
    }
}

#[test]
fn a_commit_with_the_trainers_moments_changes_nothing() {
    let scene = Scene::full(&mut Rng(94), DIMS, 1.0);
    let (mut own, whole) = history(Semantics::EXACT, Granularity::Token);
    let (exp_avg, exp_avg_sq) = as_host_moments(&whole.optimizer);
    let (before, rows) = (own.save().unwrap(), own.rows());
    let step = step_with(&scene, (&exp_avg, &exp_avg_sq), STEPS);
    for token_mask in [scene.batch.mask.clone(), vec![0; scene.batch.mask.len()]] {
        own.commit(&own.prepare(&step, &scene.batch.mask).unwrap(), &token_mask)
            .unwrap();
        assert_eq!(
            (own.save().unwrap(), own.steps(), own.rows()),
            (before.clone(), STEPS, rows)
        );
    }
}

#[test]
fn moments_of_another_size_are_refused() {
    let scene = Scene::full(&mut Rng(95), DIMS, 1.0);
    let right = vec![0.0; 9 * 18];
    let refused = |exp_avg: &[f32], exp_avg_sq: &[f32]| {
        let step = step_with(&scene, (exp_avg, exp_avg_sq), 1);
        model(Semantics::PAPER, Granularity::Token)
            .prepare(&step, &scene.batch.mask)
            .unwrap_err()
            .to_string()
    };
    let said = [refused(&right[1..], &right), refused(&right, &[])];
    assert_eq!(
        include_str!("mistakes_in_the_moments.txt")
            .lines()
            .collect::<Vec<_>>(),
        said
    );
}

#[test]
fn a_row_whose_moments_are_not_finite_rejects_the_tokens_that_touch_it() {
    let scene = Scene::full(&mut Rng(96), DIMS, 1.0);
    let (own, whole) = history(Semantics::EXACT, Granularity::Token);
    let row = scene.batch.topk_ids[0];
    for (first, poison) in [(true, f32::NAN), (true, f32::INFINITY), (false, f32::NAN)] {
        let (mut exp_avg, mut exp_avg_sq) = as_host_moments(&whole.optimizer);
        (if first { &mut exp_avg } else { &mut exp_avg_sq })[row as usize * 18 + 4] = poison;
        let step = step_with(&scene, (&exp_avg, &exp_avg_sq), STEPS);
        let got = own
            .assess(&own.prepare(&step, &scene.batch.mask).unwrap())
            .unwrap();
        let touches = |at: usize| {
            scene.batch.topk_ids[at * 3..][..3].contains(&row) || scene.batch.action_ids[at] == row
        };
        for at in 0..12 {
            assert_eq!(
                (got.token_mask[at] == 0, got.m_f[at].is_nan()),
                (touches(at), touches(at)),
                "token {at}, {poison} in the first moment: {first}"
            );
        }
        assert_eq!(
            got.rejected.not_finite,
            (0..12).filter(|&at| touches(at)).count()
        );
    }
}
