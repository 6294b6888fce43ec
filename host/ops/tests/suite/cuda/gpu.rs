//! The device, and what the tests compare.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use candle_core::{DType, Device, Tensor};
use capo_cuda::kernels::OPTIONS;
use cuda_emulator::Emulator;
use cudarc::driver::{CudaContext, CudaModule, CudaSlice, CudaStream, DeviceRepr};
use cudarc::nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts};
use host_ops::testing::distance;

/// The kernels' sources.
fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

static EMULATOR: OnceLock<Option<Emulator>> = OnceLock::new();

/// The image for the device: the unit compiled as the host does it. Where the emulator has the
/// kernels already, any text will do. None, with a line on stderr, without a device.
fn image() -> Option<Ptx> {
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
    let options = OPTIONS.map(str::to_owned).to_vec();
    let options = CompileOptions {
        arch: Some("compute_80"),
        options,
        ..CompileOptions::default()
    };
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
        Some(Self {
            stream: context.default_stream(),
            module,
        })
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

/// Storage types of the kernels' tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Dtype {
    F32,
    Bf16,
}
pub use Dtype::{Bf16, F32};

impl Dtype {
    /// A kernel's name for this type.
    pub fn of(self, kernel: &str) -> String {
        format!("{kernel}_{}", if self == F32 { "f32" } else { "bf16" })
    }

    /// The numbers as they are stored, in a tensor on the CPU.
    pub fn tensor(self, values: &[f32], shape: &[usize]) -> Tensor {
        let tensor = Tensor::from_slice(values, shape, &Device::Cpu).unwrap();
        if self == F32 {
            tensor
        } else {
            tensor
                .to_dtype(DType::BF16)
                .unwrap()
                .to_dtype(DType::F32)
                .unwrap()
        }
    }
}

impl Gpu {
    /// A tensor's numbers in a storage type, as bytes.
    pub fn store(&self, dtype: Dtype, tensor: &Tensor) -> CudaSlice<u8> {
        let values = floats(tensor);
        let halves = |value: &f32| ((value.to_bits() >> 16) as u16).to_le_bytes();
        let bytes: Vec<u8> = match dtype {
            F32 => values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            Bf16 => values.iter().flat_map(halves).collect(),
        };
        self.put(&bytes)
    }

    /// Memory for numbers that nobody wrote.
    pub fn room(&self, dtype: Dtype, len: usize) -> CudaSlice<u8> {
        self.fresh(len * if dtype == F32 { 4 } else { 2 })
    }

    pub fn load(&self, dtype: Dtype, memory: &CudaSlice<u8>) -> Vec<f32> {
        let bytes = self.get(memory);
        match dtype {
            F32 => bytes
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
                .collect(),
            Bf16 => bytes
                .chunks_exact(2)
                .map(|bytes| f32::from_le_bytes([0, 0, bytes[0], bytes[1]]))
                .collect(),
        }
    }
}

pub fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor
        .flatten_all()
        .unwrap()
        .to_dtype(DType::F32)
        .unwrap()
        .to_vec1()
        .unwrap()
}

/// Compares what `run` gives with `expected`, for the type of storage. It must give the same bits
/// in each order of threads.
pub fn check(what: &str, dtype: Dtype, run: impl Fn() -> Vec<Vec<f32>>, expected: &[&Tensor]) {
    let bits = |results: &[Vec<f32>]| {
        results
            .concat()
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    };
    let found = run();
    for seed in 1..4 {
        if let Some(Some(emulator)) = EMULATOR.get() {
            emulator.set_seed(seed);
        }
        assert!(
            bits(&run()) == bits(&found),
            "{what} in {dtype:?}: the bits depend on the order of threads"
        );
    }
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let apart = distance(
            &Tensor::from_slice(found, expected.shape(), &Device::Cpu).unwrap(),
            expected,
        );
        let tolerance = if dtype == F32 { 5e-6 } else { 1.0 / 128.0 };
        assert!(
            apart <= tolerance,
            "{what} in {dtype:?}, result {place}: {apart:e}"
        );
    }
}

/// Launches a kernel of the policy with these arguments, each a reference to a value of the
/// parameter's type.
macro_rules! launch {
    ($gpu:expr, $name:expr, ($columns:expr, $rows:expr), $($argument:expr),*) => {
        launch!(@ $gpu, $name, ($columns as u32, $rows as u32, 1), 256, $($argument),*)
    };
    ($gpu:expr, $name:expr, $blocks:expr; $threads:expr, $($argument:expr),*) => {
        launch!(@ $gpu, $name, ($blocks as u32, 1, 1), $threads, $($argument),*)
    };
    ($gpu:expr, $name:expr, $blocks:expr, $($argument:expr),*) => {
        launch!(@ $gpu, $name, ($blocks as u32, 1, 1), 256, $($argument),*)
    };
    (@ $gpu:expr, $name:expr, $grid:expr, $threads:expr, $($argument:expr),*) => {{
        let function = $gpu.module.load_function($name).unwrap();
        let config = cudarc::driver::LaunchConfig { grid_dim: $grid, block_dim: ($threads, 1, 1), shared_mem_bytes: 0 };
        use cudarc::driver::PushKernelArg as _;
        // SAFETY: the arguments are those of the kernel's parameters.
        unsafe { $gpu.stream.launch_builder(&function)$(.arg($argument))*.launch(config) }.unwrap();
    }};
}

pub fn wave(count: usize, phase: f64) -> Vec<f32> {
    (0..count)
        .map(|i| (2.3 * (1.7 * i as f64 + phase).sin() + 0.9 * (0.013 * i as f64).cos()) as f32)
        .collect()
}

pub fn assert_close(what: &str, actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let difference = (f64::from(*actual) - expected).abs();
        assert!(
            difference <= tolerance * expected.abs().max(1.0),
            "{what} [{i}]: {actual}, expected {expected}"
        );
    }
}
