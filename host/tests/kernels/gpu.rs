//! The emulated device, and what the tests compare.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cuda_emulator::Emulator;
use cudarc::driver::{CudaContext, CudaModule, CudaSlice, CudaStream, DeviceRepr};
use cudarc::nvrtc::Ptx;

/// A copy of the kernels under the name that the emulator looks for.
fn kernels() -> PathBuf {
    let (from, to) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels"), Path::new(env!("CARGO_TARGET_TMPDIR")));
    let to = to.join("policy-kernels");
    std::fs::create_dir_all(&to).unwrap();
    for name in ["common.cuh", "attention.cuh", "layers.cuh", "logits.cuh", "policy.cu"] {
        let copy = if name == "policy.cu" { "curvature.cu" } else { name };
        std::fs::write(to.join(copy), std::fs::read(from.join(name)).unwrap()).unwrap();
    }
    to
}

fn emulator() -> Option<&'static Emulator> {
    static EMULATOR: OnceLock<Option<Emulator>> = OnceLock::new();
    EMULATOR.get_or_init(|| cuda_emulator::for_tests(&kernels())).as_ref()
}

pub struct Gpu {
    pub stream: Arc<CudaStream>,
    pub module: Arc<CudaModule>,
}

impl Gpu {
    pub fn open() -> Option<Self> {
        emulator()?;
        let context = CudaContext::new(0).unwrap();
        let module = context.load_module(Ptx::from_src("policy")).unwrap();
        Some(Self { stream: context.default_stream(), module })
    }

    pub fn put<T: DeviceRepr>(&self, values: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(values).unwrap()
    }

    pub fn get<T: DeviceRepr + Clone + Default>(&self, slice: &CudaSlice<T>) -> Vec<T> {
        self.stream.clone_dtoh(slice).unwrap()
    }

    /// Memory that nobody wrote.
    pub fn fresh<T: DeviceRepr>(&self, len: usize) -> CudaSlice<T> {
        // SAFETY: the kernels under test write every element.
        unsafe { self.stream.alloc(len) }.unwrap()
    }
}

/// Launches a kernel of the policy with these arguments, each a reference to a value of the parameter's type.
macro_rules! launch {
    ($gpu:expr, $name:expr, $blocks:expr, $($argument:expr),*) => {{
        let function = $gpu.module.load_function($name).unwrap();
        let config = cudarc::driver::LaunchConfig { grid_dim: ($blocks as u32, 1, 1), block_dim: (256, 1, 1), shared_mem_bytes: 0 };
        use cudarc::driver::PushKernelArg as _;
        // SAFETY: the arguments are those of the kernel's parameters; the emulator checks addresses.
        unsafe { $gpu.stream.launch_builder(&function)$(.arg($argument))*.launch(config) }.unwrap();
    }};
}

pub fn wave(count: usize, phase: f64) -> Vec<f32> {
    (0..count).map(|i| (2.3 * (1.7 * i as f64 + phase).sin() + 0.9 * (0.013 * i as f64).cos()) as f32).collect()
}

pub fn assert_close(what: &str, actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let difference = (f64::from(*actual) - expected).abs();
        assert!(difference <= tolerance * expected.abs().max(1.0), "{what} [{i}]: {actual}, expected {expected}");
    }
}

/// `values` as bf16 bits, and what these stand for; the values are halves of small integers, which bf16 holds.
pub fn coarse(values: &[f32]) -> (Vec<u16>, Vec<f32>) {
    let coarse: Vec<f32> = values.iter().map(|value| (value * 8.0).round() / 8.0).collect();
    (coarse.iter().map(|value| (value.to_bits() >> 16) as u16).collect(), coarse)
}

pub fn widened(bits: &[u16]) -> Vec<f32> {
    bits.iter().map(|bits| f32::from_bits(u32::from(*bits) << 16)).collect()
}
