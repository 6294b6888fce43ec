//! Work on the batch's own stream, and from several threads.

#![allow(unsafe_code, reason = "streams are handles")]

use std::ffi::c_void;

use capo_core::cuda::{Features, Slice, Stream};
use capo_core::{Arrays, CurvatureModel, Granularity, Semantics, Step, cuda};
use cudarc::driver::result::stream::{StreamKind, create, wait_event};
use cudarc::driver::result::{event, malloc_sync, memcpy_htod_async};
use cudarc::driver::sys::{CUevent_flags, CUevent_wait_flags};

use super::agreement::step_with;
use super::suite::device::{self, emulator, uploaded};
use super::suite::fixture::{ADAM, Batch, Dims, OPEN, Rng, bits};
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
    let Arrays::Cuda(arrays) = device::arrays(&scene.batch) else {
        unreachable!("the arrays lie on the device")
    };
    // SAFETY: `new_stream` made it, or it is the default one.
    let stream = unsafe { Stream::from_raw(stream) };
    step_with(
        scene,
        Arrays::Cuda(cuda::Arrays { stream, ..arrays }),
        &ADAM,
        0.1,
    )
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
        seen.extend(bits(
            &assessment,
            &model.batch_shift(&prepared, mask).unwrap(),
        ));
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
        assert!(
            run(&scenes, own, granularity, Semantics::EXACT) == expected,
            "{granularity:?}"
        );
    }
}

/// Each on a stream of its own, then both on the default one.
#[test]
fn models_on_two_threads_do_not_interfere() {
    let both = [scenes(501), scenes(502)];
    let run = |own: &[Scene], stream| run(own, stream, Granularity::Batch, Semantics::EXACT);
    let alone = both.each_ref().map(|own| run(own, std::ptr::null_mut()));
    for streams in [[new_stream() as usize, new_stream() as usize], [0; 2]] {
        std::thread::scope(|scope| {
            let start = |at: usize| {
                let own = &both[at];
                scope.spawn(move || {
                    (0..3)
                        .map(|_| run(own, streams[at] as *mut c_void))
                        .collect::<Vec<_>>()
                })
            };
            for (at, thread) in [start(0), start(1)].into_iter().enumerate() {
                assert!(
                    thread.join().unwrap().iter().all(|seen| *seen == alone[at]),
                    "thread {at}"
                );
            }
        });
    }
}

/// A batch's arrays in memory of their own, which work on one stream has yet to write.
struct Coming {
    hidden: Slice<'static, f32>,
    topk_ids: Slice<'static, u32>,
    matrices: [Slice<'static, f32>; 3],
}

impl Coming {
    /// Memory for a batch of these dimensions.
    fn of(batch: &Batch) -> Self {
        let Batch {
            hidden,
            topk_ids,
            topk_logits,
            action_logits,
            logsumexp,
            ..
        } = batch;
        let matrices = [topk_logits, action_logits, logsumexp].map(|values| room(values));
        Self {
            hidden: room(hidden),
            topk_ids: room(topk_ids),
            matrices,
        }
    }

    /// Queues the copies that write `batch`.
    fn write(&self, batch: &Batch, stream: *mut c_void) {
        queue(self.hidden, &batch.hidden, stream);
        queue(self.topk_ids, &batch.topk_ids, stream);
        let values = [&batch.topk_logits, &batch.action_logits, &batch.logsumexp];
        self.matrices
            .iter()
            .zip(values)
            .for_each(|(to, values)| queue(*to, values, stream));
    }

    fn arrays(&self, stream: *mut c_void) -> Arrays<'static> {
        let [topk_logits, action_logits, logsumexp] = self.matrices;
        let (hidden, topk_ids) = (Features::F32(self.hidden), self.topk_ids);
        // SAFETY: `new_stream` made it, or it is a default one.
        let stream = unsafe { Stream::from_raw(stream) };
        Arrays::Cuda(cuda::Arrays {
            device: 0,
            stream,
            hidden,
            topk_ids,
            topk_logits,
            action_logits,
            logsumexp,
        })
    }
}

/// Memory for as many values, kept for the life of the process.
fn room<T>(values: &[T]) -> Slice<'static, T> {
    // SAFETY: `new_stream` made the device's context current on this thread.
    unsafe { Slice::from_raw(malloc_sync(size_of_val(values)).unwrap(), values.len()) }
}

fn queue<T>(to: Slice<'static, T>, values: &[T], stream: *mut c_void) {
    // SAFETY: There is room for the values, which are read before the call returns.
    unsafe { memcpy_htod_async(to.address(), values, stream.cast()) }.unwrap();
}

/// The model's results for scenes whose arrays are still to be written on their streams, in turn,
/// by `write`.
fn run_coming(
    scenes: &[Scene],
    coming: &[Coming],
    streams: &[*mut c_void],
    write: impl Fn(&Coming, &Batch, usize),
) -> (Vec<u64>, Vec<u8>) {
    let mut model = CurvatureModel::new(OPEN, Granularity::Token, Semantics::EXACT).unwrap();
    let (mut seen, mut kept) = (Vec::new(), Vec::new());
    let of = |at: usize| (&coming[at % coming.len()], streams[at % streams.len()]);
    let step = |(at, scene)| step_with(scene, of(at).0.arrays(of(at).1), &ADAM, 0.1);
    let steps: Vec<Step> = scenes.iter().enumerate().map(step).collect();
    for (at, scene) in scenes.iter().enumerate() {
        write(of(at).0, &scene.batch, at);
        let mask = &scene.batch.mask;
        let prepared = model.prepare(&steps[at], mask).unwrap();
        seen.extend(bits(
            &model.assess(&prepared).unwrap(),
            &model.batch_shift(&prepared, mask).unwrap(),
        ));
        model.commit(&prepared, mask).unwrap();
        // Its end would wait for its stream.
        kept.push(prepared);
    }
    (seen, model.save().unwrap())
}

/// Calls on two streams: the trainer has ordered them by events and writes the same memory again,
/// or it has memory for each and orders nothing.
#[test]
fn calls_on_several_streams_follow_each_other() {
    let (scenes, streams) = (scenes(503), [new_stream(), new_stream()]);
    let expected = run(&scenes, streams[0], Granularity::Token, Semantics::EXACT);
    let each: Vec<_> = scenes
        .iter()
        .map(|scene| Coming::of(&scene.batch))
        .collect();
    let event = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING).unwrap();
    for _ in 0..5 {
        let ordered = run_coming(&scenes, &each[..1], &streams, |coming, batch, at| {
            let [stream, other] = [streams[at % 2], streams[1 - at % 2]];
            // SAFETY: Event and streams live.
            unsafe {
                event::record(event, other.cast()).unwrap();
                wait_event(
                    stream.cast(),
                    event,
                    CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT,
                )
                .unwrap();
            }
            coming.write(batch, stream);
        });
        assert!(ordered == expected);
        let free = run_coming(&scenes, &each, &streams, |coming, batch, at| {
            coming.write(batch, streams[at % 2])
        });
        assert!(free == expected);
    }
}

/// The per-thread default stream has one handle for all threads. A batch that one thread has queued
/// there is right on another.
#[test]
fn a_batch_on_the_default_stream_of_another_thread_is_waited_for() {
    const PER_THREAD: usize = 2;
    let (scenes, own) = (scenes(504), new_stream());
    let expected = run(&scenes, own, Granularity::Token, Semantics::EXACT);
    let each: Vec<_> = scenes
        .iter()
        .map(|scene| Coming::of(&scene.batch))
        .collect();
    for _ in 0..5 {
        let got = run_coming(
            &scenes,
            &each,
            &[PER_THREAD as *mut c_void],
            |coming, batch, _| {
                let write = || {
                    new_stream();
                    coming.write(batch, PER_THREAD as *mut c_void);
                };
                std::thread::scope(|scope| scope.spawn(write).join().unwrap());
            },
        );
        assert!(got == expected);
    }
}
