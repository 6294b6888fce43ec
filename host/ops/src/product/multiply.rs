//! Products of matrices in tiles.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::super::number::round_to_bf16;
use super::instructions::Instructions;
use super::pack::{Matrix, Pairing, Panel, Side, panels};
use super::tile::{self, LINES, STEP, Sums};

/// Numbers of the inner axis that are packed at a time.
pub(super) const CHUNK: usize = 4096;
/// Steps that are multiplied at a time: a panel's stay in the first cache, a group's in the second.
const STEPS: usize = 16;
/// Panels of a thread's strip, and panels of the other operand that are multiplied with them at a
/// time.
const STRIP: usize = 8;
const GROUP: usize = 16;
/// Smallest number of multiplications for which a second thread pays off.
const PARALLEL: usize = 1 << 20;

/// Rows, columns and length of the inner axis of a product.
pub(super) type Sizes = (usize, usize, usize);

/// A number of a result.
pub(crate) trait Number: Copy + Send {
    fn of(sum: f32) -> Self;
    fn plus(self, sum: f32) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn of(sum: f32) -> Self {
        sum
    }

    #[inline(always)]
    fn plus(self, sum: f32) -> Self {
        self + sum
    }
}

/// For inner axes up to [`CHUNK`], because sums would be rounded at each chunk.
impl Number for bf16 {
    #[inline(always)]
    fn of(sum: f32) -> Self {
        Self::from_bits(round_to_bf16(sum))
    }

    #[inline(always)]
    fn plus(self, sum: f32) -> Self {
        Self::of(self.to_f32() + sum)
    }
}

/// For each pair of matrices `[M, R]` and `[N, R]`, the inner products of their lines `[M, N]`.
pub(super) fn multiply<N: Number>(
    instructions: Instructions,
    pairs: &[(Matrix<'_>, Matrix<'_>)],
    sizes @ (rows, columns, _): Sizes,
) -> Vec<N> {
    let count = pairs.len() * rows * columns;
    let mut out = Vec::with_capacity(count);
    let room = &mut out.spare_capacity_mut()[..count];
    let work = |(pair, room): (&(_, _), _)| write(instructions, *pair, sizes, room);
    if let [pair] = pairs {
        work((pair, room));
    } else {
        pairs
            .par_iter()
            .zip(room.par_chunks_mut(rows * columns))
            .for_each(work);
    }
    // SAFETY: each `write` has written all of its part.
    unsafe { out.set_len(count) };
    out
}

/// Writes the product to `out`.
fn write<N: Number>(
    instructions: Instructions,
    (left, right): (Matrix<'_>, Matrix<'_>),
    (rows, columns, inner): Sizes,
    out: &mut [MaybeUninit<N>],
) {
    let threads = rayon::current_num_threads();
    let parallel = threads > 1 && rows * columns * inner >= PARALLEL;
    // The smaller operand is packed first and as a whole. Each thread packs its strips of the other
    // one.
    let by_rows = rows >= columns;
    let ((own, own_side, own_lines), (other, other_side, other_lines)) = {
        let (left, right) = ((left, Side::Left, rows), (right, Side::Right, columns));
        if by_rows {
            (left, right)
        } else {
            (right, left)
        }
    };
    let all = own_lines.div_ceil(LINES);
    let strip = STRIP.min(if parallel {
        all.div_ceil(2 * threads)
    } else {
        all
    }) * LINES;
    for from in (0..inner).step_by(CHUNK) {
        let numbers = from..(from + CHUNK).min(inner);
        let parts = (0..other_lines)
            .step_by(STRIP * LINES)
            .map(|line| line..(line + STRIP * LINES).min(other_lines));
        let pack = |lines: Range<usize>| panels(other, other_side, Pairing::Apart, lines, &numbers);
        let others: Vec<Panel> = if parallel {
            parts
                .collect::<Vec<_>>()
                .into_par_iter()
                .flat_map(pack)
                .collect()
        } else {
            parts.flat_map(pack).collect()
        };
        let work = |(number, mut out): (usize, Strip<'_, N>)| {
            let lines = number * strip..((number + 1) * strip).min(own_lines);
            let own = panels(own, own_side, Pairing::Apart, lines, &numbers);
            tile::configured(instructions, || {
                let steps = numbers.len().div_ceil(STEP);
                write_strip(
                    instructions,
                    (&own, &others),
                    by_rows,
                    steps,
                    (&mut out, from > 0),
                );
            });
        };
        let strips = strips(out, columns, by_rows, strip).into_iter().enumerate();
        if parallel {
            strips.collect::<Vec<_>>().into_par_iter().for_each(work);
        } else {
            strips.for_each(work);
        }
    }
}

/// Rows of a result, or parts of rows.
pub(super) type Strip<'a, N> = Vec<&'a mut [MaybeUninit<N>]>;

/// The rows of `out`, each `columns` long, in strips of so many rows; or strips of so many columns
/// of all rows.
pub(super) fn strips<N>(
    out: &mut [MaybeUninit<N>],
    columns: usize,
    by_rows: bool,
    strip: usize,
) -> Vec<Strip<'_, N>> {
    if by_rows {
        return out
            .chunks_mut(strip * columns)
            .map(|out| out.chunks_mut(columns).collect())
            .collect();
    }
    let mut strips: Vec<Strip<'_, N>> = Vec::new();
    strips.resize_with(columns.div_ceil(strip), || {
        Vec::with_capacity(out.len() / columns)
    });
    for row in out.chunks_mut(columns) {
        strips
            .iter_mut()
            .zip(row.chunks_mut(strip))
            .for_each(|(strip, part)| strip.push(part));
    }
    strips
}

/// Multiplies a strip's own panels with all panels of the other operand. The own panels are the
/// left ones if `by_rows`. The sums are written to `out`, or added if `adds`.
fn write_strip<N: Number>(
    instructions: Instructions,
    (own, others): (&[Panel], &[Panel]),
    by_rows: bool,
    steps: usize,
    (out, adds): (&mut [&mut [MaybeUninit<N>]], bool),
) {
    SUMS.with_borrow_mut(|room| {
        let count = own.len() * others.len().min(GROUP);
        if room.len() < count {
            room.resize(count, Sums::ZERO);
        }
        write_groups(
            instructions,
            (own, others),
            by_rows,
            steps,
            (out, adds),
            room,
        );
    });
}

thread_local! {
    /// Sums of a strip and a group. Zeros for each strip took a twentieth of the time.
    static SUMS: RefCell<Vec<Sums>> = const { RefCell::new(Vec::new()) };
}

/// [`write_strip`] with `room` for the sums.
fn write_groups<N: Number>(
    instructions: Instructions,
    (own, others): (&[Panel], &[Panel]),
    by_rows: bool,
    steps: usize,
    (out, adds): (&mut [&mut [MaybeUninit<N>]], bool),
    sums: &mut [Sums],
) {
    for (group, others) in others.chunks(GROUP).enumerate() {
        for from in (0..steps).step_by(STEPS) {
            let count = STEPS.min(steps - from);
            for (own, sums) in own.iter().zip(sums.chunks_mut(others.len())) {
                for (other, sums) in others.iter().zip(sums) {
                    let [left, right] = if by_rows { [own, other] } else { [other, own] };
                    let (left, right) = (left.operand(from), right.operand(from));
                    tile::multiply(instructions, count, left, right, (sums, from == 0));
                }
            }
        }
        for (own, sums) in sums.chunks(others.len()).take(own.len()).enumerate() {
            for (other, sums) in sums.iter().enumerate() {
                let other = group * GROUP + other;
                let (row, column) = if by_rows { (own, other) } else { (other, own) };
                let rows = (row * LINES)..((row + 1) * LINES).min(out.len());
                let store = Store {
                    sums,
                    out: &mut out[rows],
                    column: column * LINES,
                    adds,
                };
                pulp::Arch::new().dispatch(store);
            }
        }
    }
}

/// Writes sums to rows from a column on, or adds them.
pub(super) struct Store<'a, 'b, N> {
    pub(super) sums: &'a Sums,
    pub(super) out: &'a mut [&'b mut [MaybeUninit<N>]],
    pub(super) column: usize,
    pub(super) adds: bool,
}

impl<N: Number> pulp::NullaryFnOnce for Store<'_, '_, N> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self {
            sums,
            out,
            column,
            adds,
        } = self;
        for (out, sums) in out.iter_mut().zip(&sums.0) {
            let out = &mut out[column..];
            let count = out.len().min(LINES);
            if adds {
                for (out, sum) in out.iter_mut().zip(sums) {
                    // SAFETY: an earlier chunk has written it.
                    out.write(unsafe { out.assume_init() }.plus(*sum));
                }
            } else if let Some(out) = out.first_chunk_mut::<LINES>() {
                for lane in 0..LINES {
                    out[lane].write(N::of(sums[lane]));
                }
            } else {
                for lane in 0..count {
                    out[lane].write(N::of(sums[lane]));
                }
            }
        }
    }
}
