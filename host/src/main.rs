//! The `host` executable.

use std::process::ExitCode;
use std::time::Instant;

// Page faults dominate the speed of training on a CPU with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let started = Instant::now();
    let spin_limit = "CANDLE_BARRIER_POOL_SPIN_LIMIT";
    if std::env::var_os(spin_limit).is_none() {
        // Candle's worker threads spin between operations, which starves the others where cores are few.
        // SAFETY: nothing has started a thread yet, so nobody reads the environment at the same time.
        unsafe { std::env::set_var(spin_limit, "0") };
    }
    host::cli::main(started)
}
