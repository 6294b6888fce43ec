//! The kernels as machine code for a device, compiled once for a machine, and its functions, each
//! looked up once.

use std::collections::HashMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::Result;
use candle_core::cuda_backend::cudarc::driver::{CudaFunction, CudaModule};
use candle_core::cuda_backend::cudarc::nvrtc::{
    CompileOptions, Ptx, compile_ptx_with_opts, result as nvrtc, sys,
};
use candle_core::cuda_backend::{CudaDevice, DeviceId, WrapErr};

use super::super::kernels::{self, OPTIONS};

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
    /// Those that were launched.
    functions: HashMap<String, CudaFunction>,
}

static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

fn loaded() -> MutexGuard<'static, Vec<Loaded>> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernels as one unit.
fn source() -> String {
    let lines = SOURCES.iter().flat_map(|source| source.lines());
    lines
        .filter(|line| !line.starts_with("#include"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The name of a device's architecture.
fn architecture(device: &CudaDevice) -> Result<String> {
    let (major, minor) = device.cuda_stream().context().compute_capability().w()?;
    Ok(format!("sm_{major}{minor}"))
}

/// Where the machine code is kept. Another compiler may write what this driver does not take, so
/// its version is in the name.
fn file(architecture: &str) -> Option<PathBuf> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: NVRTC writes two numbers.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }
        .result()
        .ok()?;
    kernels::file(&[
        &source(),
        &OPTIONS.concat(),
        architecture,
        &format!("{major}.{minor}"),
    ])
}

/// True if the device's kernels are compiled already, by this process or by one that kept them.
pub fn are_kernels_kept(device: &CudaDevice) -> Result<bool> {
    let is_loaded = loaded().iter().any(|loaded| loaded.device == device.id());
    Ok(
        is_loaded
            || file(&architecture(device)?).is_some_and(|file| kernels::kept(&file).is_some()),
    )
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
    let (architecture, context) = (
        architecture(device)?,
        device.cuda_stream().context().clone(),
    );
    let file = file(&architecture);
    let load = |image| context.load_module(Ptx::from_binary(image));
    // A crash may have left a file that the driver refuses.
    let kept = file
        .as_deref()
        .and_then(kernels::kept)
        .and_then(|image| load(image).ok());
    let module = kept.map_or_else(|| load(compiled(&architecture, file)?).w(), Ok)?;
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

/// The kernels for an architecture, in a form that the driver takes. Machine code is kept in
/// `file`.
fn compiled(architecture: &str, file: Option<PathBuf>) -> Result<Vec<u8>> {
    let Some(image) = machine_code(architecture) else {
        let options = OPTIONS.map(str::to_owned).to_vec();
        let options = CompileOptions {
            arch: Some(ANY_GPU),
            options,
            ..CompileOptions::default()
        };
        let ptx = compile_ptx_with_opts(source(), options).w()?.to_src();
        return Ok([ptx.as_bytes(), &[0]].concat());
    };
    // Where nothing can be kept, the next start compiles again.
    let _ = file.map(|file| kernels::keep(&file, &image));
    Ok(image)
}

/// Machine code, which needs no compiler of the driver's; `None` if NVRTC does not know the
/// architecture.
fn machine_code(architecture: &str) -> Option<Vec<u8>> {
    let source = CString::new(source()).ok()?;
    let program = nvrtc::create_program(&source, None).ok()?;
    let architecture = format!("--gpu-architecture={architecture}");
    let options = [&[&*architecture], &OPTIONS[..]].concat();
    // SAFETY: the program was just created, and is destroyed once. The code has the size that NVRTC
    // says.
    unsafe {
        let code = nvrtc::compile_program(program, &options).and_then(|()| {
            let mut size = 0;
            sys::nvrtcGetCUBINSize(program, &raw mut size).result()?;
            let mut code = vec![0; size];
            sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()).result()?;
            Ok(code)
        });
        let _ = nvrtc::destroy_program(program);
        code.ok()
    }
}
