//! A CUDA driver for machines without a GPU: it runs the same kernels, compiled for the CPU, and
//! finds their mistakes.
//!
//! [`load`] compiles kernels and driver into a `libcuda.so` and loads it. Code in this process that
//! asks for CUDA's driver afterwards, such as `cudarc`, gets this one. A child process gets it
//! through `LD_LIBRARY_PATH` ([`build`] gives the folder). A stand-in for NVRTC comes along. It
//! takes any source without `#include` and returns an image for this driver, whose kernels are
//! compiled already.
//!
//! A kernel has run when its launch returns, and the launch returns the kernel's error, unless work
//! is [late](#late-work). One line on stderr says what went wrong and where:
//!
//! * an address outside of device memory, in freed memory or just beside an allocation; an index
//!   outside of an array whose length the compiler knows, `__shared__` ones above all; a misaligned
//!   address; an argument that is not device memory
//! * threads that wait for others that never come, and threads of one block that meet at different
//!   `__syncthreads`
//! * memory that nobody wrote is filled with a byte, `CUDA_EMULATOR_FILL` (255): a result that
//!   changes with it was read too early
//! * threads and blocks run in an order drawn from `CUDA_EMULATOR_SEED`, in every other block by
//!   chance, in the others with some warps as far ahead as barriers let them: a result that changes
//!   with it lacks a barrier
//!
//! # Late work
//!
//! With `CUDA_EMULATOR_LATE=1`, or [`Emulator::set_late`], the work of streams (launches, copies,
//! fills, memory in stream order, events) runs when somebody waits for it or earlier, in any
//! order that CUDA permits: the seed decides. A result that changes with the seed lacks an order
//! between streams.
//!
//! * The work of one stream keeps its order, and events order streams. The default stream waits for
//!   all streams that are not `NON_BLOCKING`, and they wait for it. `CU_STREAM_PER_THREAD`, handle
//!   2, is another stream on each OS thread; its work outlives the thread.
//! * A call that waits runs the work: a wait for a stream, an event or the context, a copy to
//!   pageable memory, a free outside of stream order. Asking whether work is done may run some.
//! * A copy from pageable memory takes its source along when it is queued; a copy from or to pinned
//!   memory does not.
//! * Memory that is freed in stream order is overwritten at that point of the stream, and the same
//!   stream gets it again at once. Memory taken in stream order is overwritten too, so that numbers
//!   that were written too early are lost.
//! * Addresses are checked when work runs. The next call afterwards returns its error, at
//!   the latest a call that waits for it. The error stays, and the context does nothing more.
//!
//! Machine code of a GPU is refused. Further settings: `CUDA_EMULATOR_DEVICES` (1),
//! `CUDA_EMULATOR_MEMORY` in bytes per device (16 GiB), `CUDA_EMULATOR_THREADS` (all cores, at most
//! 4), `CUDA_EMULATOR_STRICT=1`, which takes device memory out of the reach of host code, and
//! `CUDA_EMULATOR_TRACE`, a file that gets a line for each launch, product, copy, fill, allocation
//! and wait.

mod compile;

use std::ffi::c_void;
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

/// A driver with kernels in this process.
#[derive(Debug, Clone)]
pub struct Emulator {
    folder: PathBuf,
    set_seed: extern "C" fn(u64),
    set_fill: extern "C" fn(u8),
    set_late: extern "C" fn(bool),
    set_stream: extern "C" fn(*const c_void),
    set_allocations: extern "C" fn(u64),
}

impl Emulator {
    /// The folder of [`build`].
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Sets the order in which threads and blocks of later launches run, and late work, for the
    /// whole process.
    pub fn set_seed(&self, seed: u64) {
        (self.set_seed)(seed);
    }

    /// Sets the byte that fills later allocations and the `__shared__` memory of later launches,
    /// for the whole process.
    pub fn set_fill(&self, fill: u8) {
        (self.set_fill)(fill);
    }

    /// Lets later work run after the call that queues it, or not, for the whole process. All work
    /// that was queued runs first.
    pub fn set_late(&self, late: bool) {
        (self.set_late)(late);
    }

    /// Refuses this thread's work on any stream but this one; null permits all.
    pub fn set_stream(&self, stream: *const c_void) {
        (self.set_stream)(stream);
    }

    /// How many more of this thread's allocations succeed; `None`: as many as there is memory for.
    pub fn set_allocations(&self, left: Option<u64>) {
        (self.set_allocations)(left.unwrap_or(u64::MAX));
    }
}

/// Compiles the `.cu` file of the folder `kernels`, unless that was done before. Gives the folder
/// that holds `libcuda.so`, `libcuda.so.1` and `libnvrtc.so`, for the `LD_LIBRARY_PATH` of a child
/// process. `$CXX` names the compiler; otherwise it is `c++`, `g++` or `clang++`.
pub fn build(kernels: &Path) -> Result<PathBuf, Failure> {
    compile::library(kernels)
}

/// Makes a folder like CUDA's own: `bin/nvcc` compiles candle's kernels for the CPU, `lib` has the
/// driver, cuBLAS, cuRAND, NVRTC and the runtime. A program built with it, as with CUDA's
/// toolchain, runs on the emulator if `lib` is in its `LD_LIBRARY_PATH`. The driver has the kernels
/// of the folders `kernels` too. Gives the folder's absolute path.
pub fn toolkit(home: &Path, kernels: &[PathBuf]) -> Result<PathBuf, Failure> {
    compile::toolkit(home, kernels)
}

/// [`build`]s and loads the emulator into this process, for good.
pub fn load(kernels: &Path) -> Result<Emulator, Failure> {
    let folder = build(kernels)?;
    let driver = folder.join("libcuda.so");
    for (name, symbol) in [
        ("libcuda.so", "cuInit"),
        ("libcuda.so.1", "cuInit"),
        ("libnvrtc.so", "nvrtcVersion"),
    ] {
        // A library that is loaded is found by its own name, wherever it came from: later searches
        // for `name` end here.
        let ours: *const () = find(&driver, symbol)?;
        let by_path: *const () = find(&folder.join(name), symbol)?;
        let by_name: *const () = find(Path::new(name), symbol)?;
        if by_path != ours || by_name != ours {
            let error = format!(
                "this process has already loaded another `{name}` (load the emulator first, and once)"
            );
            return Err(Failure::Broken(error));
        }
    }
    let (set_seed, set_fill) = (
        find(&driver, "cuda_emulator_set_seed")?,
        find(&driver, "cuda_emulator_set_fill")?,
    );
    let set_late = find(&driver, "cuda_emulator_set_late")?;
    let set_stream = find(&driver, "cuda_emulator_set_stream")?;
    let set_allocations = find(&driver, "cuda_emulator_set_allocations")?;
    Ok(Emulator {
        folder,
        set_seed,
        set_fill,
        set_late,
        set_stream,
        set_allocations,
    })
}

/// [`load`] for a test. `None`, with a line on stderr, where there is no compiler: the test is to
/// return.
///
/// # Panics
///
/// When the emulator cannot be had for another reason, or at all where `CAPO_REQUIRE_EMULATOR` is
/// 1.
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

/// Loads a library, never to unload it, and finds `symbol`, of type `T`.
fn find<T: Copy>(library: &Path, symbol: &str) -> Result<T, Failure> {
    // SAFETY: A driver's initialisers set up the library alone. The callers ask for addresses, and
    // for functions named `cuda_emulator_set_...` by their types there.
    let found = unsafe {
        Library::open(Some(library), RTLD_NOW | RTLD_LOCAL).and_then(|opened| {
            let found = *opened.get::<T>(symbol.as_bytes())?;
            std::mem::forget(opened);
            Ok(found)
        })
    };
    found
        .map_err(|error| Failure::Broken(format!("`{}` does not load: {error}", library.display())))
}
