//! A CUDA driver for machines without a GPU: it runs the same kernels, compiled for the CPU, and finds their mistakes.
//!
//! [`load`] compiles kernels and driver into a `libcuda.so` and loads it. Who asks for CUDA's driver later in this process, as `cudarc`
//! does, gets it. A child process gets it through `LD_LIBRARY_PATH` ([`Emulator::folder`]).
//!
//! A launch is done when it returns, and its error is the launch's. One line on stderr says what went wrong and where:
//!
//! * an address outside of device memory, in freed memory or just beside an allocation; an index outside of an array whose length the
//!   compiler knows, `__shared__` ones above all; a misaligned address; an argument that is not device memory
//! * threads that wait for others that never come, and threads of one block that meet at different `__syncthreads`
//! * memory that nobody wrote is filled with a byte, `CUDA_EMULATOR_FILL` (255): a result that changes with it was read too early
//! * threads and blocks run in an order drawn from `CUDA_EMULATOR_SEED`: a result that changes with it lacks a barrier
//!
//! Further settings: `CUDA_EMULATOR_DEVICES` (1), `CUDA_EMULATOR_MEMORY` in bytes per device (16 GiB), `CUDA_EMULATOR_THREADS` (all cores, at
//! most 4), and `CUDA_EMULATOR_STRICT=1`, which takes device memory out of the reach of host code.

mod compile;

use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Why there is no emulator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// This machine has no C++ compiler.
    NoCompiler(String),
    /// The kernels do not compile, or something else is in the way.
    Broken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::NoCompiler(text) | Self::Broken(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Failure {}

/// A driver with kernels, on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emulator {
    folder: PathBuf,
}

impl Emulator {
    /// The folder that holds `libcuda.so` and `libcuda.so.1`, for the `LD_LIBRARY_PATH` of a child process.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Compiles `curvature.cu` of the folder `kernels`, unless that was done before, without loading it. `$CXX` names the compiler; otherwise
/// it is `c++`, `g++` or `clang++`.
///
/// # Errors
///
/// Without a compiler, and with kernels that do not compile.
pub fn build(kernels: &Path) -> Result<Emulator, Failure> {
    compile::library(kernels).map(|folder| Emulator { folder })
}

/// [`build`]s and loads the emulator into this process, for good.
///
/// # Errors
///
/// As [`build`]; and where this process already has another CUDA driver, a real one or an emulator with other kernels.
pub fn load(kernels: &Path) -> Result<Emulator, Failure> {
    let emulator = build(kernels)?;
    let driver = |name: &Path| {
        open(name).map_err(|error| Failure::Broken(format!("`{}` does not load: {error}", name.display())))
    };
    // A library that is loaded is found by its own name, wherever it came from: later searches for these two names end here.
    let names = ["libcuda.so", "libcuda.so.1"];
    let [ours, same] = names.map(|name| driver(&emulator.folder.join(name)));
    let (ours, same) = (ours?, same?);
    for name in names {
        if same != ours || driver(Path::new(name))? != ours {
            return Err(Failure::Broken(format!(
                "this process has already loaded another CUDA driver as `{name}` (load the emulator first)"
            )));
        }
    }
    Ok(emulator)
}

/// [`load`] for a test. `None`, with a line on stderr, where there is no compiler: the test is to return.
///
/// # Panics
///
/// When the emulator cannot be had for another reason, or at all where `CAPO_REQUIRE_EMULATOR` is 1.
#[must_use]
pub fn for_tests(kernels: &Path) -> Option<Emulator> {
    let required = std::env::var_os("CAPO_REQUIRE_EMULATOR").is_some_and(|value| value == "1");
    match load(kernels) {
        Ok(emulator) => Some(emulator),
        Err(Failure::NoCompiler(error)) if !required => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Loads a library and never unloads it; where its `cuInit` lies.
fn open(name: &Path) -> Result<usize, libloading::Error> {
    // SAFETY: The initialisers of a CUDA driver only set up the library itself; the symbol's address is taken and not called.
    unsafe {
        let library = Library::open(Some(name), RTLD_NOW | RTLD_LOCAL)?;
        let address = library.get::<*const ()>(b"cuInit")?.into_raw();
        std::mem::forget(library);
        Ok(address.addr())
    }
}
