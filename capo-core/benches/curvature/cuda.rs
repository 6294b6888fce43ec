//! The model on a CUDA device: what a step costs, beside what its arithmetic and its memory traffic
//! cannot be faster than.

use std::ffi::{CString, c_void};
use std::time::Instant;

use capo_core::cuda::{self, Buffer, Device, Features, Stream};
use capo_core::{Arrays, CurvatureModel, Granularity, Step};
use cudarc::driver::{result, sys};
use divan::Bencher;

use super::data::{Data, VOCABULARY};
use super::{ADAM, Shape};

/// The paper's batch at the width of a 7B model; or B, T, K and D of `CAPO_BENCH_SHAPE`, to try the
/// benchmark where there is no GPU.
fn shape() -> Shape {
    let said = std::env::var("CAPO_BENCH_SHAPE").unwrap_or_default();
    let numbers: Vec<usize> = said
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    if let [b, t, k, d] = numbers[..] {
        Shape(b, t, k, d, 1)
    } else {
        Shape(24, 1024, 50, 3584, 1)
    }
}

/// Roots and reciprocals in registers, as many as one proposal has: `sink` is never written.
const SPECIAL_FUNCTIONS: &str = r#"
extern "C" __global__ void special_functions(float x, unsigned rounds, float* sink) {
    float y[8];
    for (int at = 0; at < 8; at++) y[at] = x + threadIdx.x + at;
    for (unsigned round = 0; round < rounds; round++)
        for (int at = 0; at < 8; at++) {
            float root;
            asm volatile("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(y[at]));
            asm volatile("rcp.approx.ftz.f32 %0, %1;" : "=f"(y[at]) : "f"(root));
        }
    float total = 0;
    for (int at = 0; at < 8; at++) total += y[at];
    if (total == -1.0f) *sink = total;
}
"#;

/// A batch on the device, its features in bf16.
struct OnDevice {
    data: Data,
    hidden: Buffer<u16>,
    topk_ids: Buffer<u32>,
    seen_ids: Buffer<u32>,
    topk_logits: Buffer<f32>,
    action_logits: Buffer<f32>,
    logsumexp: Buffer<f32>,
}

impl OnDevice {
    fn new(device: &Device) -> Self {
        let data = Data::new(shape());
        let bits: Vec<u16> = data
            .hidden
            .iter()
            .map(|x| (x.to_bits() >> 16) as u16)
            .collect();
        Self {
            hidden: device.upload(&bits).unwrap(),
            topk_ids: device.upload(&data.topk_ids).unwrap(),
            seen_ids: device.upload(&data.seen_ids).unwrap(),
            topk_logits: device.upload(&data.topk_logits).unwrap(),
            action_logits: device.upload(&data.action_logits).unwrap(),
            logsumexp: device.upload(&data.logsumexp).unwrap(),
            data,
        }
    }

    /// The step of the batch, or of one that gave `seen` rows their moments.
    fn step(&self, seen: bool) -> Step<'_> {
        let mut step = self.data.step(ADAM, seen);
        step.batch.arrays = Arrays::Cuda(cuda::Arrays {
            device: 0,
            stream: Stream::default(),
            hidden: Features::Bf16(self.hidden.slice()),
            topk_ids: if seen {
                self.seen_ids.slice()
            } else {
                self.topk_ids.slice()
            },
            topk_logits: self.topk_logits.slice(),
            action_logits: self.action_logits.slice(),
            logsumexp: self.logsumexp.slice(),
        });
        step
    }

    /// A model in which every other row has moments.
    fn model(&self, granularity: Granularity) -> CurvatureModel {
        self.data.model(granularity, self.step(true))
    }
}

/// The batch on the first device; `None` without one.
fn on_device() -> Option<OnDevice> {
    Device::open(0).ok().map(|device| OnDevice::new(&device))
}

/// Supports alone.
#[divan::bench(sample_count = 9, sample_size = 1)]
fn prepare(bencher: Bencher) {
    let Some(batch) = on_device() else { return };
    let model = batch.data.empty_model(Granularity::Token);
    bencher
        .counter(batch.data.elements())
        .bench_local(|| drop(batch.data.prepare(&model, batch.step(false))));
}

/// Proposal, shifts and decision of every token under Adam.
#[divan::bench(sample_count = 9, sample_size = 1)]
fn token_adam(bencher: Bencher) {
    let Some(batch) = on_device() else { return };
    let model = batch.model(Granularity::Token);
    bencher
        .counter(batch.data.elements())
        .bench_local(|| batch.data.assess(&model, batch.step(false)));
}

/// Proposal, shifts and decision of every completion under Adam.
#[divan::bench(sample_count = 9, sample_size = 1)]
fn completion_adam(bencher: Bencher) {
    let Some(batch) = on_device() else { return };
    let model = batch.model(Granularity::Completion);
    bencher
        .counter(batch.data.elements())
        .bench_local(|| batch.data.assess(&model, batch.step(false)));
}

/// Proposal, shifts and decision of every token, and the moments' step, as in `study/peers`.
#[divan::bench(sample_count = 9, sample_size = 1)]
fn token_adam_and_update(bencher: Bencher) {
    let Some(batch) = on_device() else { return };
    let mut model = batch.model(Granularity::Token);
    let data = &batch.data;
    bencher
        .counter(data.elements())
        .bench_local(|| data.assess_and_commit(&mut model, batch.step(false)));
}

/// Everything that the mask does in a step.
#[divan::bench(sample_count = 9, sample_size = 1)]
fn all(bencher: Bencher) {
    let Some(batch) = on_device() else { return };
    let mut model = batch.model(Granularity::Token);
    bencher
        .counter(batch.data.elements())
        .bench_local(|| batch.data.all(&mut model, batch.step(false)));
}

/// Prints what bounds the times, measured on the device, and what a step takes of its memory.
pub fn describe() {
    let batch = match Device::open(0) {
        Ok(device) => OnDevice::new(&device),
        Err(error) => return println!("cuda: {error}"),
    };
    let shape @ Shape(b, t, k, d, _) = shape();
    println!("shape: {shape}, bf16 features, f32 moments");
    let bandwidth = bandwidth();
    println!("memory bandwidth GB/s: {:.0}", bandwidth / 1e9);
    let elements = (b * t * k * d) as f64;
    // A proposal takes a root and a reciprocal of each element; its rows, and what it reads of
    // features, at least once.
    let features = (b * t * d * 2) as f64;
    let free = || result::mem_get_info().unwrap().0 as f64;
    let before = free();
    let mut model = batch.model(Granularity::Token);
    batch.data.all(&mut model, batch.step(false));
    let state = (model.rows() * d * 8 + VOCABULARY * 16) as f64;
    println!("rows with moments: {}", model.rows());
    println!("state MB: {:.0}", state / 1e6);
    println!(
        "memory beside state MB: {:.0}",
        (before - free() - state) / 1e6
    );
    let traffic = |passes: f64, states: f64| (passes * features + states * state) / bandwidth;
    match special_functions() {
        Some(rate) => {
            println!("roots and reciprocals, 1e9/s: {:.0}", rate / 1e9);
            println!(
                "bound token_adam ms: {:.2}",
                1e3 * (2.0 * elements / rate).max(traffic(1.0, 1.0))
            );
            println!(
                "bound all ms: {:.2}",
                1e3 * (2.0 * elements / rate + traffic(5.0, 4.0))
            );
        }
        None => {
            println!("bound: NVRTC is missing, without which the rate of roots is not measured")
        }
    }
}

/// Bytes per second, read and written, of a copy within the device's memory.
fn bandwidth() -> f64 {
    const SIZE: usize = 1 << 30;
    // SAFETY: the context is current since the device was opened and used; both blocks are as large
    // as what is copied.
    unsafe {
        let source = result::malloc_sync(SIZE).unwrap();
        let target = result::malloc_sync(SIZE).unwrap();
        let copy =
            || result::memcpy_dtod_async(target, source, SIZE, std::ptr::null_mut()).unwrap();
        let seconds = best_of(&copy);
        result::free_sync(source)
            .and(result::free_sync(target))
            .unwrap();
        2.0 * SIZE as f64 / seconds
    }
}

/// Roots and reciprocals per second; `None` without NVRTC.
fn special_functions() -> Option<f64> {
    const ROUNDS: u32 = 4096;
    if !capo_cuda::kernels::has_compiler() {
        return None;
    }
    let ptx = cudarc::nvrtc::compile_ptx(SPECIAL_FUNCTIONS).ok()?;
    let image = CString::new(ptx.to_src()).ok()?;
    // SAFETY: the image is PTX that ends in NUL; the arguments are the kernel's, which writes
    // nothing.
    unsafe {
        let module = result::module::load_data(image.as_ptr().cast()).ok()?;
        let kernel = result::module::get_function(module, c"special_functions".to_owned()).ok()?;
        let device = result::device::get(0).ok()?;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let blocks = 8 * result::device::get_attribute(device, attribute).ok()? as u32;
        let launch = || {
            let x = 1.5f32;
            let rounds = ROUNDS;
            let sink = 0u64;
            let mut arguments: [*mut c_void; 3] = [
                (&raw const x).cast_mut().cast(),
                (&raw const rounds).cast_mut().cast(),
                (&raw const sink).cast_mut().cast(),
            ];
            let stream = std::ptr::null_mut();
            result::launch_kernel(
                kernel,
                (blocks, 1, 1),
                (256, 1, 1),
                0,
                stream,
                &mut arguments,
            )
            .unwrap();
        };
        let count = f64::from(blocks) * 256.0 * 8.0 * 2.0 * f64::from(ROUNDS);
        Some(count / best_of(&launch))
    }
}

/// Seconds of the fastest of some runs of queued work.
fn best_of(work: &dyn Fn()) -> f64 {
    let run = || {
        let start = Instant::now();
        work();
        result::ctx::synchronize().unwrap();
        start.elapsed().as_secs_f64()
    };
    (0..10).map(|_| run()).fold(f64::INFINITY, f64::min)
}
