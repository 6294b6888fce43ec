//! The `host` executable.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::time::Instant;

use capo_loader::watchdog;
use mimalloc::MiMalloc;

// Page faults dominate the speed of training on a CPU with the system's allocator.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator(MiMalloc);

/// Stack of the thread that does the work: `ulimit -s` may leave the first one less than it needs.
const STACK: usize = 8 << 20;

fn main() -> ! {
    let started = Instant::now();
    // Candle's worker threads spin between operations, which starves the others where cores are few.
    set_default("CANDLE_BARRIER_POOL_SPIN_LIMIT", || "0".to_owned());
    // Without a setting, candle counts the cores anew, from `/proc/cpuinfo`, at every matrix product.
    set_default("RAYON_NUM_THREADS", || candle_core::utils::get_num_threads().to_string());
    keep_freed_memory();
    watchdog::survive_file_limit();
    let thread = std::thread::Builder::new().name("main".into()).stack_size(STACK);
    let code = match thread.spawn(move || host::commands::main(started)) {
        // The standard library has told of a panic.
        Ok(thread) => thread.join().unwrap_or(101),
        Err(_) => host::commands::main(started),
    };
    let _ = std::io::stdout().flush();
    watchdog::exit(code)
}

/// Memory from mimalloc, or the end of the process with a sentence: without it nothing here could go on.
struct Allocator(MiMalloc);

// SAFETY: each call is passed on as it is to an allocator that keeps this contract.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that are asked for.
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
    if memory.is_null() { watchdog::no_memory(bytes) } else { memory }
}

/// Memory that was freed stays with the process, for the next step needs it again: asking the system for it anew took a third of a step's time.
fn keep_freed_memory() {
    // `mi_option_purge_delay`, which the crate has no name for.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: the option exists, and -1 is among its values; setting it is allowed at any time.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
    }
}

/// Sets an environment variable that the user has not set. Only for `main`, before anything else.
fn set_default(name: &str, value: impl FnOnce() -> String) {
    if std::env::var_os(name).is_none() {
        // SAFETY: `main` calls this before any thread is started, so nobody reads the environment at the same time.
        unsafe { std::env::set_var(name, value()) };
    }
}
