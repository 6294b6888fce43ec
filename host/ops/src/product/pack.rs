//! Matrices copied into the order in which the kernel reads them.

use std::ops::Range;

use half::bf16;
use rayon::prelude::*;

use super::super::round_to_bf16;

/// Number of pairs of a line that are written before the next line.
const BLOCK: usize = 16;

/// The numbers of a matrix, in the order of memory.
#[derive(Clone, Copy)]
pub(super) enum Values<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

/// A matrix whose number `i` of line `l` is `values[l * line + i * inner]`.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) values: Values<'a>,
    pub(super) line: usize,
    pub(super) inner: usize,
}

impl Matrix<'_> {
    /// The matrix with lines and columns exchanged.
    pub(super) fn transposed(self) -> Self {
        Self { line: self.inner, inner: self.line, ..self }
    }
}

/// A number that can be rounded to bf16.
trait Number: Copy + Sync {
    /// Bits of the number as bf16.
    fn bits(self) -> u32;
}

impl Number for f32 {
    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from(round_to_bf16(self))
    }
}

impl Number for bf16 {
    #[inline(always)]
    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}

/// Two consecutive numbers as one word, the first in the low half.
#[inline(always)]
fn pair(first: impl Number, second: impl Number) -> u32 {
    first.bits() | second.bits() << 16
}

/// Panels of `WIDTH` lines each. For each pair index of the inner axis, the lines' pairs are adjacent. Zeros fill the last panel and the
/// last pair.
pub(super) struct Panels<const WIDTH: usize> {
    pairs: Vec<[u32; WIDTH]>,
    /// Number of pairs in a line.
    depth: usize,
}

impl<const WIDTH: usize> Panels<WIDTH> {
    /// Panels of the first `lines` lines of `matrix`, the first `inner` numbers of each.
    pub(super) fn new(matrix: Matrix<'_>, lines: usize, inner: usize) -> Self {
        let depth = inner.div_ceil(2);
        let mut pairs = vec![[0; WIDTH]; lines.div_ceil(WIDTH) * depth];
        let Matrix { values, line, inner: step } = matrix;
        pairs.par_chunks_mut(depth).enumerate().for_each(|(number, panel)| {
            let lines = number * WIDTH..((number + 1) * WIDTH).min(lines);
            match values {
                Values::F32(values) => fill(panel, &values[lines.start * line..], lines.len(), inner, (line, step)),
                Values::Bf16(values) => fill(panel, &values[lines.start * line..], lines.len(), inner, (line, step)),
            }
        });
        Self { pairs, depth }
    }

    /// The pairs in range `depth` of panel `number`.
    pub(super) fn part(&self, number: usize, depth: &Range<usize>) -> &[[u32; WIDTH]] {
        &self.pairs[number * self.depth..][depth.clone()]
    }
}

/// Fills one panel with `lines` lines, whose numbers are stored as in [`Matrix`].
fn fill<const WIDTH: usize, T: Number>(
    panel: &mut [[u32; WIDTH]],
    values: &[T],
    lines: usize,
    inner: usize,
    (line, step): (usize, usize),
) {
    let odd = inner % 2 == 1;
    if line == 1 {
        for (number, pairs) in panel.iter_mut().enumerate() {
            let of = |at: usize| &values[at * step..][..lines];
            let first = of(2 * number);
            if odd && 2 * number + 1 == inner {
                pairs.iter_mut().zip(first).for_each(|(pair, first)| *pair = first.bits());
            } else {
                let second = of(2 * number + 1);
                pairs.iter_mut().zip(first).zip(second).for_each(|((to, first), second)| *to = pair(*first, *second));
            }
        }
        return;
    }
    // Writes go line by line over a part of the panel that fits in the nearest cache.
    for (block, panel) in panel.chunks_mut(BLOCK).enumerate() {
        let from = 2 * BLOCK * block;
        let count = (2 * panel.len()).min(inner - from);
        for number in 0..lines {
            let values = &values[number * line + from * step..];
            if step == 1 {
                let (twos, rest) = values[..count].as_chunks::<2>();
                panel.iter_mut().zip(twos).for_each(|(to, [first, second])| to[number] = pair(*first, *second));
                if let ([last], Some(to)) = (rest, panel.last_mut()) {
                    to[number] = last.bits();
                }
            } else {
                for (at, to) in panel.iter_mut().enumerate() {
                    let second = if 2 * at + 1 < count { values[(2 * at + 1) * step].bits() } else { 0 };
                    to[number] = values[2 * at * step].bits() | second << 16;
                }
            }
        }
    }
}
