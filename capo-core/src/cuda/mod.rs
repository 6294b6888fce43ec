//! The model on a CUDA device: the same numbers, computed where the batch lies.
//!
//! A [`LastLayer`](crate::LastLayer) whose arrays are [`Arrays`] in device memory is worked on there, and its model's moments
//! live there; what crosses to the host are a few numbers per token. The driver is loaded when the first such batch comes, so
//! that this crate needs no CUDA to build, load or run.
//!
//! | step | kernels |
//! |---|---|
//! | supports: probabilities and `u` of each token's rows | `supports.cuh` |
//! | pairs sorted by subset, row and token | `scan.cuh`, `sort.cuh` |
//! | moments of each row, and Adam's rule for them | `rows.cuh` |
//! | projections `D h`, D from each token's own gradient | `tokens.cuh` |
//! | projections `D h`, D from a subset's gradient; moment update | `subsets.cuh` |
//! | `s`, `q`, KL and gain of each token | `reactions.cuh` |
//!
//! With several ranks, the sums of the rows that a step touches cross to the host too, to be added up. They come from the kernels of the
//! moment update, and go back through them (`sums.rs`).
//!
//! Decisions, which are O(N), are made by the same code as for host memory. Results have the same bits whenever the inputs
//! have; they are those of the CPU but for rounding: the direction of a single token is made of fast roots and quotients, to 2 ulps.

mod arrays;
mod coefficients;
mod driver;
mod effects;
mod image;
mod moments;
mod pairs;
mod rows;
mod segments;
mod sums;
mod supports;

pub use arrays::{Arrays, Features, Slice, Stream};
pub use driver::{Buffer, Device, Plain};
pub(crate) use effects::effects;
pub(crate) use moments::Moments;
pub(crate) use pairs::Pairs;
pub(crate) use sums::Local;
pub(crate) use supports::collect;

/// Queues a kernel: `launch!(queue, "name", blocks, threads, arguments...)`, whose types are those that the kernel declares.
macro_rules! launch {
    ($queue:expr, $kernel:expr, $blocks:expr, $threads:expr, $($argument:expr),* $(,)?) => {
        $queue.launch($kernel, $blocks, $threads, &mut [$($crate::cuda::driver::argument(&$argument)),*])
    };
}
use launch;

/// Threads of a block where nothing else is said.
const THREADS: u32 = 256;

/// Lanes of a warp.
const WARP: u32 = 32;

/// Warps of a block for a long segment.
const LONG_WARPS: u32 = 16;

/// Columns of a feature that a warp works on at a time.
const TILE: usize = 256;

/// Blocks of THREADS threads for `count` of them.
fn blocks(count: usize) -> (u32, u32) {
    (count.div_ceil(THREADS as usize) as u32, 1)
}

/// Blocks of THREADS threads for `count` warps.
fn warps(count: usize) -> (u32, u32) {
    blocks(count * WARP as usize)
}
