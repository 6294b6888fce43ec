//! State of the model after the device fails.

use std::ffi::{OsStr, c_void};
use std::process::Command;

use capo_core::{CurvatureModel, Error, Granularity, Semantics, cuda};

use super::streams::{new_stream, step_on};
use super::suite;
use super::suite::device::{emulator, uploaded};
use super::suite::fixture::{Dims, Rng};
use super::suite::scene::Scene;

/// Calls `ask` with ever more memory until it has enough; every failure before that is the same
/// sentence.
fn with_ever_more_memory<X>(mut ask: impl FnMut(u64) -> Result<X, Error>) -> (X, u64) {
    let mut left = 0;
    loop {
        match ask(left) {
            Ok(answer) => return (answer, left),
            Err(error) => {
                let error = error.to_string();
                let start = "the CUDA device failed with `CUDA_ERROR_OUT_OF_MEMORY` in taking ";
                let end = " bytes of memory (keep fewer logits, or use a smaller batch)";
                assert!(error.starts_with(start) && error.ends_with(end), "{error}");
                left += 1;
                assert!(left < 1000, "{error}");
            }
        }
    }
}

/// Two steps, the second with rows for a second slab.
fn scenes() -> [Scene; 2] {
    let mut rng = Rng(600);
    [
        Scene::loose(&mut rng, Dims(1, 30, 30, 3, 2000)),
        Scene::loose(&mut rng, Dims(1, 60, 30, 3, 2000)),
    ]
}

fn model() -> CurvatureModel {
    suite::fixture::model(Semantics::PAPER, Granularity::Completion)
}

/// Commits a scene on this stream.
fn commit(model: &mut CurvatureModel, scene: &Scene, stream: *mut c_void) {
    let mask = &scene.batch.mask;
    model
        .commit(&model.prepare(&step_on(scene, stream), mask).unwrap(), mask)
        .unwrap();
}

/// Wherever memory ends in a commit, the state is what it was before, and with enough memory the
/// step goes on from there.
#[test]
fn a_commit_without_memory_changes_nothing() {
    let Some(emulator) = emulator() else { return };
    let (scenes, mut model, mut undisturbed) = (scenes(), model(), model());
    for scene in &scenes {
        let mask = &scene.batch.mask;
        commit(&mut undisturbed, scene, std::ptr::null_mut());
        let before = model.save().unwrap();
        let ((), failures) = with_ever_more_memory(|left| {
            // Memory that was given back is used on its own stream only.
            let prepared = model.prepare(&step_on(scene, new_stream()), mask).unwrap();
            emulator.set_allocations(Some(left));
            let result = model.commit(&prepared, mask);
            emulator.set_allocations(None);
            if result.is_err() {
                assert!(model.save().unwrap() == before, "after {left} allocations");
            }
            result
        });
        assert!(failures > 4, "{failures}");
        assert!(model.save().unwrap() == undisturbed.save().unwrap());
    }
    assert!(model.rows() > 1024, "{}", model.rows());
}

#[test]
fn an_assessment_without_memory_can_be_repeated() {
    let Some(emulator) = emulator() else { return };
    let ([first, second], mut model) = (scenes(), model());
    commit(&mut model, &first, std::ptr::null_mut());
    let mask = &second.batch.mask;
    let expected = model
        .assess(
            &model
                .prepare(&step_on(&second, std::ptr::null_mut()), mask)
                .unwrap(),
        )
        .unwrap();
    let (got, failures) = with_ever_more_memory(|left| {
        let step = step_on(&second, new_stream());
        emulator.set_allocations(Some(left));
        let result = model
            .prepare(&step, mask)
            .and_then(|prepared| model.assess(&prepared));
        emulator.set_allocations(None);
        result
    });
    assert!(failures > 4, "{failures}");
    assert!(got == expected);
}

/// Runs a test in a process of its own with this setting; whether it passes, and what it says.
fn run_with(test: &str, setting: &str, value: &OsStr) -> (bool, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        &format!("cuda::faults::{test}"),
        "--exact",
        "--include-ignored",
        "--nocapture",
        "--quiet",
    ]);
    let output = command.env(setting, value).output().unwrap();
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Needs some 300 kB at a time, and as much again on every stream if nothing is returned.
#[test]
#[ignore = "another test runs it with little memory"]
fn many_streams() {
    let scenes = scenes();
    for _ in 0..12 {
        commit(&mut model(), &scenes[1], new_stream());
    }
}

#[test]
fn memory_of_idle_streams_goes_where_it_is_needed() {
    if emulator().is_some() {
        let (passes, said) = run_with("many_streams", "CUDA_EMULATOR_MEMORY", "1000000".as_ref());
        assert!(passes, "{said}");
        let (passes, said) = run_with("many_streams", "CUDA_EMULATOR_MEMORY", "100000".as_ref());
        assert!(
            !passes && said.contains("CUDA_ERROR_OUT_OF_MEMORY"),
            "{said}"
        );
    }
}

#[test]
#[ignore = "another test runs it"]
fn opening() {
    emulator();
    eprintln!("{:?}", cuda::Device::open(0));
}

#[test]
fn a_machine_without_devices_is_named() {
    if emulator().is_none() {
        return;
    }
    let said = run_with("opening", "CUDA_EMULATOR_DEVICES", "0".as_ref()).1;
    let sentence = "the CUDA device failed with `CUDA_ERROR_NO_DEVICE` in starting the driver (run with `--device cpu`)";
    assert!(said.contains(sentence), "{said}");
}

#[test]
fn memory_comes_back_and_serves_again() {
    if emulator().is_none() {
        return;
    }
    uploaded(&[0.0f32]);
    let free = || cudarc::driver::result::mem_get_info().unwrap().0;
    let (scenes, stream) = (scenes(), new_stream());
    let mut model = model();
    let mut round = || {
        let scene = &scenes[0];
        let prepared = model
            .prepare(&step_on(scene, stream), &scene.batch.mask)
            .unwrap();
        model.assess(&prepared).unwrap();
        model.commit(&prepared, &scene.batch.mask).unwrap();
    };
    (0..3).for_each(|_| round());
    // Other tests take memory meanwhile, so that a round is to be found that takes none.
    let kept = (0..50).any(|_| {
        let before = free();
        round();
        free() == before
    });
    assert!(kept, "every round takes memory");
}
