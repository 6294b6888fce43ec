//! The `host` executable.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::time::Instant;

use capo_loader::watchdog;
use capo_system::signals;
use mimalloc::MiMalloc;

// With the system's allocator, page faults dominate the time of training on a CPU.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator(MiMalloc);

/// Stack size of the working thread, bytes: `ulimit -s` may give the main thread less than is
/// needed.
const STACK: usize = 8 << 20;

fn main() -> ! {
    let started = Instant::now();
    // Candle's worker threads spin between operations. With few cores, this starves the other
    // threads.
    set_default("CANDLE_BARRIER_POOL_SPIN_LIMIT", || "0".to_owned());
    // Without this setting, candle counts the cores in `/proc/cpuinfo` at every matrix product.
    set_default("RAYON_NUM_THREADS", || {
        candle_core::utils::get_num_threads().to_string()
    });
    keep_freed_memory();
    signals::survive_file_limit();
    let thread = std::thread::Builder::new()
        .name("main".into())
        .stack_size(STACK);
    let code = match thread.spawn(move || host::commands::main(started)) {
        // The standard library has already reported a panic.
        Ok(thread) => thread.join().unwrap_or(101),
        Err(_) => host::commands::main(started),
    };
    let _ = std::io::stdout().flush();
    watchdog::exit(code)
}

/// Allocates from mimalloc. If memory runs out, it ends the process with a message, because no code
/// here could continue.
struct Allocator(MiMalloc);

// SAFETY: each call is passed on unchanged to an allocator that fulfils this contract.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller fulfils the contract that the called method requires.
        given(unsafe { self.0.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        given(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        given(unsafe { self.0.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { self.0.dealloc(memory, layout) }
    }
}

fn given(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        watchdog::no_memory(bytes)
    } else {
        memory
    }
}

/// Lets the process retain freed memory for the next step. Requesting it from the system again took
/// a third of a step's time.
fn keep_freed_memory() {
    // The option `mi_option_purge_delay`, for which the crate has no name.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: the option exists, -1 is a valid value, and setting it is allowed at any time.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
    }
}

/// Sets an environment variable unless the user has set it. Only `main` may call this, before
/// anything else.
fn set_default(name: &str, value: impl FnOnce() -> String) {
    if std::env::var_os(name).is_none() {
        // SAFETY: `main` calls this before any thread is started, so no other thread reads the
        // environment at the same time.
        unsafe { std::env::set_var(name, value()) };
    }
}
