//! Work on the batch's own stream, and from several threads.

#![allow(unsafe_code, reason = "streams are handles")]

use std::ffi::c_void;

use capo_core::cuda::Stream;
use capo_core::{Arrays, CurvatureModel, Granularity, Semantics, Step, cuda};
use cudarc::driver::result::stream::{StreamKind, create};

use super::agreement::step_with;
use super::suite::device::{self, emulator, uploaded};
use super::suite::fixture::{ADAM, Dims, OPEN, Rng, bits};
use super::suite::scene::Scene;

/// A stream that does not wait for the default one, kept for the life of the process.
pub fn new_stream() -> *mut c_void {
    // An upload makes the device's context current on this thread.
    uploaded(&[0.0f32]);
    cuda::Device::open(0).unwrap().upload(&[0.0f32]).unwrap();
    create(StreamKind::NonBlocking).unwrap().cast()
}

/// The scene's step, its batch on the device and its work on `stream`.
pub fn step_on<'a>(scene: &'a Scene, stream: *mut c_void) -> Step<'a> {
    let Arrays::Cuda(arrays) = device::arrays(&scene.batch) else { unreachable!("the arrays lie on the device") };
    // SAFETY: `new_stream` made it, or it is the default one.
    let stream = unsafe { Stream::from_raw(stream) };
    step_with(scene, Arrays::Cuda(cuda::Arrays { stream, ..arrays }), &ADAM, 0.1)
}

fn scenes(seed: u64) -> [Scene; 3] {
    let mut rng = Rng(seed);
    std::array::from_fn(|_| Scene::loose(&mut rng, Dims(2, 40, 5, 300, 40)))
}

/// Bits of what a model says of the scenes, and its state in the end.
pub fn run(
    scenes: &[Scene],
    stream: *mut c_void,
    granularity: Granularity,
    semantics: Semantics,
) -> (Vec<u64>, Vec<u8>) {
    let mut model = CurvatureModel::new(OPEN, granularity, semantics).unwrap();
    let mut seen = Vec::new();
    for scene in scenes {
        let mask = &scene.batch.mask;
        let prepared = model.prepare(&step_on(scene, stream), mask).unwrap();
        let assessment = model.assess(&prepared).unwrap();
        seen.extend(bits(&assessment, &model.batch_shift(&prepared, mask).unwrap()));
        model.commit(&prepared, mask).unwrap();
    }
    emulator().inspect(|emulator| emulator.set_stream(std::ptr::null()));
    (seen, model.save().unwrap())
}

#[test]
fn all_work_of_a_batch_is_on_its_stream() {
    let (scenes, own) = (scenes(500), new_stream());
    for granularity in [Granularity::Token, Granularity::Completion] {
        let expected = run(&scenes, std::ptr::null_mut(), granularity, Semantics::EXACT);
        // The batches' arrays are uploaded before the emulator watches the stream.
        for scene in &scenes {
            step_on(scene, own);
        }
        emulator().inspect(|emulator| emulator.set_stream(own));
        assert!(run(&scenes, own, granularity, Semantics::EXACT) == expected, "{granularity:?}");
    }
}

/// Each on a stream of its own, then both on the default one.
#[test]
fn models_on_two_threads_do_not_meet() {
    let both = [scenes(501), scenes(502)];
    let run = |own: &[Scene], stream| run(own, stream, Granularity::Batch, Semantics::EXACT);
    let alone = both.each_ref().map(|own| run(own, std::ptr::null_mut()));
    for streams in [[new_stream() as usize, new_stream() as usize], [0; 2]] {
        std::thread::scope(|scope| {
            let start = |at: usize| {
                let own = &both[at];
                scope.spawn(move || (0..3).map(|_| run(own, streams[at] as *mut c_void)).collect::<Vec<_>>())
            };
            for (at, thread) in [start(0), start(1)].into_iter().enumerate() {
                assert!(thread.join().unwrap().iter().all(|seen| *seen == alone[at]), "thread {at}");
            }
        });
    }
}

/// The per-thread default stream has one handle: what a thread's queued work may still use is no memory for another thread.
#[test]
fn threads_with_one_handle_share_no_memory() {
    let Some(emulator) = emulator() else { return };
    let [scene, ..] = scenes(503);
    let has_enough = |allocations| {
        let (step, model) =
            (step_on(&scene, 2 as *mut c_void), CurvatureModel::new(OPEN, Granularity::Token, Semantics::EXACT));
        emulator.set_allocations(allocations);
        let prepared = model.unwrap().prepare(&step, &scene.batch.mask);
        emulator.set_allocations(None);
        prepared.is_ok()
    };
    let finds_its_own = || has_enough(None) && has_enough(Some(0));
    // A test beside this one that needs memory may have taken it.
    assert!((0..100).any(|_| finds_its_own()));
    assert!(std::thread::scope(|scope| !scope.spawn(|| has_enough(Some(0))).join().unwrap()));
}
