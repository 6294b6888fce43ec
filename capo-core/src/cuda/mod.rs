//! The model on a CUDA device: the same numbers, computed on the batch's device.
//!
//! If a [`LastLayer`](crate::LastLayer) has [`Arrays`] in device memory, the model computes and
//! keeps its moments there. Only a few numbers per token cross to the host. The driver is loaded
//! for the first such batch, so this crate needs no CUDA to build, load or run.
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
//! With several ranks, the row sums of a step also cross to the host, where they are added. They
//! come from the kernels of the moment update, and return through them (`sums.rs`).
//!
//! Decisions are O(N) and use the same code as for host memory. Equal inputs give equal bits. The
//! results differ from the CPU's only by rounding: a single token's direction uses fast roots and
//! quotients, to 2 ulps.

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

pub use arrays::{Arrays, Features, Plain, Slice, Stream};
pub use driver::{Buffer, Device};
pub(crate) use effects::effects;
pub(crate) use moments::Moments;
pub(crate) use pairs::Pairs;
pub(crate) use sums::Local;
pub(crate) use supports::collect;

/// The blocks of a launch, in two dimensions, and the number of threads in each.
#[derive(Debug, Clone, Copy)]
struct Grid {
    columns: u32,
    rows: u32,
    threads: u32,
}

/// Default number of threads in a block.
const THREADS: u32 = 256;

/// Lanes of a warp.
const WARP: u32 = 32;

/// Most pairs of a short segment, for which a warp is enough, and of a medium one.
const MEDIUM: u32 = 64;
const LONG: u32 = 1024;

/// Warps of a block for a medium segment and for a long one, as in the kernels.
const MEDIUM_WARPS: u32 = 4;
const LONG_WARPS: u32 = 16;

/// Number of a feature's columns that a warp processes at a time.
const TILE: usize = 256;

/// Blocks of THREADS threads for `count` threads.
fn threads(count: usize) -> Grid {
    Grid {
        columns: count.div_ceil(THREADS as usize) as u32,
        rows: 1,
        threads: THREADS,
    }
}

/// Blocks of THREADS threads for `count` warps.
fn warps(count: usize) -> Grid {
    threads(count * WARP as usize)
}
