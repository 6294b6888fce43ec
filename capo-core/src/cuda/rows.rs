//! Moments of the rows that a batch touches, with Adam's rule for them, in the kernels' form.

#![allow(unsafe_code, reason = "kernel launches")]

use super::arrays::Plain;
use super::driver::{Argument, Buffer};
use super::pairs::Hidden;
use super::segments::Segments;
use super::{Pairs, Slice, threads};
use crate::Error;
use crate::optimizer::Adam;
use crate::semantics::UntouchedRows;

/// Adam at one step, in the kernels' layout.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AdamArgument {
    beta1: f64,
    beta2: f64,
    eps: f64,
    unbias1: f64,
    unbias2: f64,
    steps: u64,
    decay: i32,
}

impl Argument for AdamArgument {}

impl AdamArgument {
    /// Adam's rule for a proposal after `steps` steps.
    pub fn proposal(adam: &Adam, steps: u64) -> Self {
        let &Adam {
            beta1,
            beta2,
            eps,
            unbias1,
            unbias2,
            untouched_rows,
        } = adam;
        let decay = i32::from(untouched_rows == UntouchedRows::Decay);
        Self {
            beta1,
            beta2,
            eps,
            unbias1,
            unbias2,
            steps,
            decay,
        }
    }

    /// Adam's rule for an update of the moments after `steps` steps.
    pub fn update(adam: &Adam, steps: u64) -> Self {
        Self {
            unbias1: 1.0,
            unbias2: 1.0,
            ..Self::proposal(adam, steps)
        }
    }
}

/// Moments of one segment's row with Adam's rule for them, in the kernels' layout.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Row([u64; 6]);

// SAFETY: six numbers of eight bytes.
unsafe impl Plain for Row {}

/// `[R]`: rows of all segments, of the trainer's moments, `[V, D]` each.
pub(super) fn dense(
    pairs: &Pairs,
    segments: &Segments,
    exp_avg: &Slice<f32>,
    exp_avg_sq: &Slice<f32>,
    adam: AdamArgument,
) -> Result<Buffer<Row>, Error> {
    let Segments {
        values,
        starts,
        count,
        ..
    } = segments;
    let Pairs {
        queue,
        rows,
        hidden: Hidden { width, .. },
        ..
    } = pairs;
    let out = queue.buffer::<Row>(*count as usize)?;
    // SAFETY: the moments are `[V, D]`, as checked by `Step::check`, and rows are below V.
    unsafe {
        queue.launch(
            "dense_rows",
            threads(*count as usize),
            &[
                count, values, starts, rows, exp_avg, exp_avg_sq, width, &adam, &out,
            ],
        )?;
    }
    Ok(out)
}
