//! The device, and what the tests compare.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use cuda_emulator::Emulator;
use cudarc::driver::{CudaContext, CudaModule, CudaSlice, CudaStream, DeviceRepr};
use cudarc::nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts};

/// The kernels' sources.
fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// The image for the device: the unit compiled as the host does it. Where the emulator has the kernels already, any text will do. None,
/// with a line on stderr, without a device.
fn image() -> Option<Ptx> {
    static EMULATOR: OnceLock<Option<Emulator>> = OnceLock::new();
    if std::env::var_os("CAPO_TEST_DEVICE").is_none_or(|device| device != "cuda") {
        let emulator = EMULATOR.get_or_init(|| cuda_emulator::for_tests(&kernels()));
        return emulator.as_ref().map(|_| Ptx::from_src("policy"));
    }
    let text = |name: &str| std::fs::read_to_string(kernels().join(name)).unwrap();
    let included = |line: &str| match line.strip_prefix("#include \"") {
        Some(name) => text(name.trim_end_matches('"')),
        None => format!("{line}\n"),
    };
    let source: String = text("policy.cu").lines().map(included).collect();
    let options = vec!["--std=c++17".to_owned()];
    let options = CompileOptions { arch: Some("compute_80"), options, ..CompileOptions::default() };
    Some(compile_ptx_with_opts(source, options).unwrap())
}

pub struct Gpu {
    pub stream: Arc<CudaStream>,
    pub module: Arc<CudaModule>,
}

impl Gpu {
    pub fn open() -> Option<Self> {
        let image = image()?;
        let context = CudaContext::new(0).unwrap();
        let module = context.load_module(image).unwrap();
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
        // SAFETY: the arguments are those of the kernel's parameters.
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
