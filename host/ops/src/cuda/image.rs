//! The kernels as machine code for a device, compiled once for a machine, and its functions, each
//! looked up once.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaModule};
use candle_core::cuda_backend::cudarc::nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts};
use candle_core::cuda_backend::{CudaDevice, DeviceId, WrapErr};
use capo_cuda::kernels::{Kernels, OPTIONS};

/// The translation unit, without its `#include` lines.
const SOURCES: [&str; 11] = [
    include_str!("../../kernels/common.cuh"),
    include_str!("../../kernels/logits.cuh"),
    include_str!("../../kernels/elementwise.cuh"),
    include_str!("../../kernels/norms.cuh"),
    include_str!("../../kernels/rope.cuh"),
    include_str!("../../kernels/attention.cuh"),
    include_str!("../../kernels/matrix.cuh"),
    include_str!("../../kernels/attention_bf16.cuh"),
    include_str!("../../kernels/decode.cuh"),
    include_str!("../../kernels/add_rows.cuh"),
    include_str!("../../kernels/optimizer.cuh"),
];

/// For a GPU that is newer than NVRTC: PTX, which its driver compiles.
const ANY_GPU: &str = "compute_80";

/// A device's kernels.
struct Loaded {
    device: DeviceId,
    module: Arc<CudaModule>,
    /// The functions that were launched.
    functions: HashMap<String, CudaFunction>,
}

static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

fn loaded() -> MutexGuard<'static, Vec<Loaded>> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernels as one unit.
static SOURCE: LazyLock<String> = LazyLock::new(|| {
    SOURCES
        .iter()
        .flat_map(|source| source.lines())
        .filter(|line| !line.starts_with("#include"))
        .collect::<Vec<_>>()
        .join("\n")
});

fn kernels() -> Kernels<'static> {
    Kernels {
        name: "policy",
        source: &SOURCE,
    }
}

/// The name of a device's architecture.
fn architecture(device: &CudaDevice) -> Result<String> {
    let (major, minor) = device.cuda_stream().context().compute_capability().w()?;
    Ok(format!("sm_{major}{minor}"))
}

/// True if the device's kernels are compiled already, by this process or by one that kept them.
pub fn are_kernels_kept(device: &CudaDevice) -> Result<bool> {
    let is_loaded = loaded().iter().any(|loaded| loaded.device == device.id());
    Ok(is_loaded || kernels().kept(&architecture(device)?).is_some())
}

/// Loads the kernels. If they are not kept, compiles and keeps them.
pub fn load_kernels(device: &CudaDevice) -> Result<()> {
    place(&mut loaded(), device).map(|_| ())
}

/// The place of the device's kernels, which are loaded at first use.
fn place(all: &mut Vec<Loaded>, device: &CudaDevice) -> Result<usize> {
    if let Some(place) = all.iter().position(|loaded| loaded.device == device.id()) {
        return Ok(place);
    }
    let architecture = architecture(device)?;
    let context = device.cuda_stream().context().clone();
    // A crash may have left a file that the driver refuses.
    let kept = kernels()
        .kept(&architecture)
        .and_then(|image| context.load_module(Ptx::from_binary(image)).ok());
    let module = match kept {
        Some(module) => module,
        None => context
            .load_module(Ptx::from_binary(compiled(&architecture)?))
            .w()?,
    };
    all.push(Loaded {
        device: device.id(),
        module,
        functions: HashMap::new(),
    });
    Ok(all.len() - 1)
}

/// The kernel `name` of the device. The driver looks for each once.
pub(super) fn kernel(device: &CudaDevice, name: &str) -> Result<CudaFunction> {
    let mut all = loaded();
    let place = place(&mut all, device)?;
    let Loaded {
        module, functions, ..
    } = &mut all[place];
    if let Some(function) = functions.get(name) {
        return Ok(function.clone());
    }
    let function = module.load_function(name).w()?;
    functions.insert(name.to_owned(), function.clone());
    Ok(function)
}

/// The kernels for an architecture, in a form that the driver takes.
fn compiled(architecture: &str) -> Result<Vec<u8>> {
    if let Ok(image) = kernels().compile(architecture) {
        return Ok(image);
    }
    let options = CompileOptions {
        arch: Some(ANY_GPU),
        options: OPTIONS.map(str::to_owned).to_vec(),
        ..CompileOptions::default()
    };
    let ptx = compile_ptx_with_opts(&*SOURCE, options).w()?.to_src();
    Ok([ptx.as_bytes(), &[0]].concat())
}
