//! The `host` executable.

use std::process::ExitCode;
use std::time::Instant;

// Page faults dominate the speed of training on a CPU with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let started = Instant::now();
    // Candle's worker threads spin between operations, which starves the others where cores are few.
    set_default("CANDLE_BARRIER_POOL_SPIN_LIMIT", || "0".to_owned());
    // Without a setting, candle counts the cores anew, from `/proc/cpuinfo`, at every matrix product.
    set_default("RAYON_NUM_THREADS", || candle_core::utils::get_num_threads().to_string());
    keep_freed_memory();
    host::commands::main(started)
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
