//! Moments go where the batch lies.

use capo_core::{Arrays, CurvatureModel, Granularity, Semantics, UntouchedRows};

use super::agreement::{compare_states, step_with};
use super::streams::{new_stream, step_on};
use super::suite::device::{arrays, emulator, host_arrays};
use super::suite::fixture::{ADAM, Dims, OPEN, Rng};
use super::suite::scene::Scene;

fn commit(model: &mut CurvatureModel, scene: &Scene, arrays: Arrays) {
    let prepared = model
        .prepare(&step_with(scene, arrays, &ADAM, 0.1), &scene.batch.mask)
        .unwrap();
    model.assess(&prepared).unwrap();
    model.commit(&prepared, &scene.batch.mask).unwrap();
}

/// Whichever batches lie on the device, the rows keep their moments and their age.
#[test]
fn moments_follow_the_batch_in_both_directions() {
    let mut rng = Rng(700);
    let scenes: [Scene; 6] = std::array::from_fn(|_| Scene::loose(&mut rng, Dims(2, 8, 3, 20, 60)));
    for untouched_rows in [UntouchedRows::Decay, UntouchedRows::Freeze] {
        let semantics = Semantics {
            untouched_rows,
            ..Semantics::PAPER
        };
        let model = || CurvatureModel::new(OPEN, Granularity::Completion, semantics).unwrap();
        let (mut host, mut both) = (model(), model());
        for (scene, on_device) in scenes.iter().zip([true, false, true, true, false, false]) {
            let (on_host, batch) = (host_arrays(&scene.batch, &scene.batch.hidden), &scene.batch);
            commit(&mut host, scene, on_host);
            commit(
                &mut both,
                scene,
                if on_device { arrays(batch) } else { on_host },
            );
            compare_states(
                &format!("{untouched_rows:?}"),
                &both.save().unwrap(),
                &host.save().unwrap(),
            );
        }
    }
}

/// A first step that failed binds to no vocabulary and no width.
#[test]
fn a_model_without_steps_takes_a_batch_of_other_dimensions() {
    let Some(emulator) = emulator() else { return };
    let (small, large) = (
        Scene::loose(&mut Rng(701), Dims(1, 9, 3, 4, 5)),
        Scene::loose(&mut Rng(702), Dims(1, 9, 3, 40, 500)),
    );
    let new = || CurvatureModel::new(OPEN, Granularity::Batch, Semantics::PAPER).unwrap();
    let mut model = new();
    for left in 4..12 {
        let prepared = model
            .prepare(&step_on(&small, new_stream()), &small.batch.mask)
            .unwrap();
        emulator.set_allocations(Some(left));
        let result = model.commit(&prepared, &small.batch.mask);
        emulator.set_allocations(None);
        if result.is_ok() {
            break;
        }
        let (mut other, mut fresh) = (model, new());
        commit(&mut other, &large, arrays(&large.batch));
        commit(&mut fresh, &large, arrays(&large.batch));
        assert!(
            other.save().unwrap() == fresh.save().unwrap(),
            "after {left} allocations"
        );
        model = new();
    }
}
