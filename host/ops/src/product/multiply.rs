//! Products of matrices in tiles.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::super::number::round_to_bf16;
use super::instructions::Instructions;
use super::operand::{Factors, LINES, STEP, Sums};
use super::pack::{Matrix, Panel, Side, panels};
use super::tile;

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

/// Sizes of a product.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Length of the axis over which is summed.
    pub(super) inner: usize,
}

/// Matrices `[M, R]` and `[N, R]`, whose product has the inner products of their lines, `[M, N]`.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) left: Matrix<'a>,
    pub(super) right: Matrix<'a>,
}

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

/// The products of all pairs behind each other. All have these sizes.
pub(super) fn multiply<N: Number>(
    instructions: Instructions,
    pairs: &[Pair<'_>],
    sizes: Sizes,
) -> Vec<N> {
    let Sizes { rows, columns, .. } = sizes;
    let count = pairs.len() * rows * columns;
    let mut out = Vec::with_capacity(count);
    let room = &mut out.spare_capacity_mut()[..count];
    if let [pair] = pairs {
        write(instructions, *pair, sizes, room);
    } else {
        pairs
            .par_iter()
            .zip(room.par_chunks_mut(rows * columns))
            .for_each(|(pair, room)| write(instructions, *pair, sizes, room));
    }
    // SAFETY: each `write` has written all of its part.
    unsafe { out.set_len(count) };
    out
}

/// One operand of a product: `lines` lines of a matrix.
#[derive(Clone, Copy)]
struct Lines<'a> {
    matrix: Matrix<'a>,
    side: Side,
    lines: usize,
}

impl Lines<'_> {
    /// Panels of the lines of `range`, with these numbers of each.
    fn panels(&self, range: Range<usize>, numbers: &Range<usize>) -> Vec<Panel> {
        panels(self.matrix, self.side, range, numbers)
    }

    /// Panels of all lines, packed by all threads if `parallel`.
    fn all_panels(&self, numbers: &Range<usize>, parallel: bool) -> Vec<Panel> {
        let parts = (0..self.lines)
            .step_by(STRIP * LINES)
            .map(|line| line..(line + STRIP * LINES).min(self.lines));
        if parallel {
            let parts: Vec<_> = parts.collect();
            parts
                .into_par_iter()
                .flat_map(|part| self.panels(part, numbers))
                .collect()
        } else {
            parts.flat_map(|part| self.panels(part, numbers)).collect()
        }
    }
}

/// Writes the product of a pair to `out`.
fn write<N: Number>(
    instructions: Instructions,
    pair: Pair<'_>,
    sizes: Sizes,
    out: &mut [MaybeUninit<N>],
) {
    let Sizes {
        rows,
        columns,
        inner,
    } = sizes;
    let threads = rayon::current_num_threads();
    let parallel = threads > 1 && rows * columns * inner >= PARALLEL;
    let left = Lines {
        matrix: pair.left,
        side: Side::Left,
        lines: rows,
    };
    let right = Lines {
        matrix: pair.right,
        side: Side::Right,
        lines: columns,
    };
    // The smaller operand is packed first and as a whole. Each thread packs its strips of the other
    // one, which are its own.
    let by_rows = rows >= columns;
    let [own, other] = if by_rows {
        [left, right]
    } else {
        [right, left]
    };
    let all = own.lines.div_ceil(LINES);
    let share = if parallel {
        all.div_ceil(2 * threads)
    } else {
        all
    };
    let strip = STRIP.min(share) * LINES;
    for from in (0..inner).step_by(CHUNK) {
        let numbers = from..(from + CHUNK).min(inner);
        let others = other.all_panels(&numbers, parallel);
        let write_one = |number: usize, mut out: Strip<'_, N>| {
            let lines = number * strip..((number + 1) * strip).min(own.lines);
            let product = StripProduct {
                instructions,
                own: &own.panels(lines, &numbers),
                others: &others,
                by_rows,
                steps: numbers.len().div_ceil(STEP),
                adds: from > 0,
            };
            tile::configured(instructions, || product.write(&mut out));
        };
        let strips = strips(out, columns, by_rows, strip).into_iter().enumerate();
        if parallel {
            let strips: Vec<_> = strips.collect();
            strips
                .into_par_iter()
                .for_each(|(number, out)| write_one(number, out));
        } else {
            strips.for_each(|(number, out)| write_one(number, out));
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

/// The product of a strip's own panels with all panels of the other operand.
struct StripProduct<'a> {
    instructions: Instructions,
    own: &'a [Panel],
    others: &'a [Panel],
    /// True if the own panels are the left ones.
    by_rows: bool,
    steps: usize,
    /// True if the product is added to what an earlier chunk has written.
    adds: bool,
}

thread_local! {
    /// Sums of a strip and a group. To write zeros for each strip took a twentieth of the time.
    static SUMS: RefCell<Vec<Sums>> = const { RefCell::new(Vec::new()) };
}

impl StripProduct<'_> {
    fn write<N: Number>(&self, out: &mut [&mut [MaybeUninit<N>]]) {
        SUMS.with_borrow_mut(|room| {
            let count = self.own.len() * self.others.len().min(GROUP);
            if room.len() < count {
                room.resize(count, Sums::ZERO);
            }
            for (group, others) in self.others.chunks(GROUP).enumerate() {
                self.sum_group(others, room);
                self.store_group(group, others.len(), room, out);
            }
        });
    }

    /// Computes the sums of each own panel with each of `others`.
    fn sum_group(&self, others: &[Panel], sums: &mut [Sums]) {
        for from in (0..self.steps).step_by(STEPS) {
            let steps = STEPS.min(self.steps - from);
            for (own, sums) in self.own.iter().zip(sums.chunks_mut(others.len())) {
                for (other, sums) in others.iter().zip(sums) {
                    let [left, right] = if self.by_rows {
                        [own, other]
                    } else {
                        [other, own]
                    };
                    let factors = Factors {
                        left: left.operand(from),
                        right: right.operand(from),
                        steps,
                        lines: LINES,
                    };
                    tile::multiply(self.instructions, factors, sums, from == 0);
                }
            }
        }
    }

    /// Writes or adds the sums of a group of `count` panels to `out`.
    fn store_group<N: Number>(
        &self,
        group: usize,
        count: usize,
        sums: &[Sums],
        out: &mut [&mut [MaybeUninit<N>]],
    ) {
        for (own, sums) in sums.chunks(count).take(self.own.len()).enumerate() {
            for (other, sums) in sums.iter().enumerate() {
                let other = group * GROUP + other;
                let [row, column] = if self.by_rows {
                    [own, other]
                } else {
                    [other, own]
                };
                let rows = (row * LINES)..((row + 1) * LINES).min(out.len());
                let store = Store {
                    sums,
                    out: &mut out[rows],
                    column: column * LINES,
                    adds: self.adds,
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
