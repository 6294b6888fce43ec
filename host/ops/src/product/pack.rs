//! Matrices copied into the order in which the tiles are read.

// The compiler does not inline the vectors' instructions into the closures of iterators.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use half::bf16;

use super::super::number::round_to_bf16;
use super::operand::{LINES, Operand, STEP, Strides, TILE};

/// Sixteen words; on x86-64 a type that lies in one line of the cache.
#[cfg(target_arch = "x86_64")]
pub(super) type Row = std::arch::x86_64::__m512i;
#[cfg(not(target_arch = "x86_64"))]
pub(super) type Row = [u32; TILE];

/// Words of a tile, and those of its transpose.
type Square = [[u32; TILE]; TILE];

/// Steps of a panel that are written at a time.
const STEPS: usize = 4;

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
        Self {
            line: self.inner,
            inner: self.line,
            ..self
        }
    }
}

/// The operand of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Its tiles are `[line][pair]`.
    Left,
    /// Its tiles are `[pair][line]`.
    Right,
}

/// [`LINES`] lines as `[step][tile][WORDS]`. Zeros fill up lines and steps. The two numbers of a
/// word are [`TILE`] apart in their line, which is the faster way to pack both operands.
pub(super) struct Panel(Vec<Row>);

impl Panel {
    /// The steps from `step` on.
    pub(super) fn operand(&self, step: usize) -> Operand<'_> {
        Operand {
            words: bytemuck::cast_slice(&self.0[step * LINES..]),
            strides: Strides::PACKED,
        }
    }
}

/// Panels of some lines of a matrix, with some numbers of each.
pub(super) fn panels(
    matrix: Matrix<'_>,
    side: Side,
    lines: Range<usize>,
    numbers: &Range<usize>,
) -> Vec<Panel> {
    let mut panels = empty(lines.len(), numbers.len());
    fill(&mut panels, matrix, side, lines, numbers);
    panels
}

/// Room for panels of so many lines with so many numbers each.
pub(super) fn empty(lines: usize, numbers: usize) -> Vec<Panel> {
    let rows = numbers.div_ceil(STEP) * LINES;
    (0..lines.div_ceil(LINES))
        .map(|_| Panel(Vec::with_capacity(rows)))
        .collect()
}

/// Fills [`empty`] panels.
pub(super) fn fill(
    panels: &mut [Panel],
    matrix: Matrix<'_>,
    side: Side,
    lines: Range<usize>,
    numbers: &Range<usize>,
) {
    let start = lines.start * matrix.line + numbers.start * matrix.inner;
    let arch = pulp::Arch::new();
    match matrix.values {
        Values::F32(values) => arch.dispatch(Fill {
            panels,
            values: &values[start..],
            line: matrix.line,
            inner: matrix.inner,
            side,
            lines: lines.len(),
            numbers: numbers.len(),
        }),
        Values::Bf16(values) => arch.dispatch(Fill {
            panels,
            values: &values[start..],
            line: matrix.line,
            inner: matrix.inner,
            side,
            lines: lines.len(),
            numbers: numbers.len(),
        }),
    }
}

/// Fills empty panels. A closure instead would be compiled for the narrowest vectors.
struct Fill<'a, T> {
    panels: &'a mut [Panel],
    /// The numbers from the first of the first line on.
    values: &'a [T],
    /// As in [`Matrix`], as the next one.
    line: usize,
    inner: usize,
    side: Side,
    /// Number of lines.
    lines: usize,
    /// Number of a line's numbers.
    numbers: usize,
}

impl<T: Number> pulp::NullaryFnOnce for Fill<'_, T> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self {
            panels,
            values,
            line,
            inner,
            side,
            lines,
            numbers,
        } = self;
        // Either a row of words has a pair of numbers of each line, or it is a line.
        let by_pair = line == 1;
        #[cfg(target_arch = "x86_64")]
        let simd = pulp::x86::V4::try_new();
        // Few steps of all panels at a time, so that whole pages are read of either order.
        let mut tiles = [[[0; TILE]; TILE]; 2];
        for from in (0..numbers).step_by(STEPS * STEP) {
            for (number, panel) in panels.iter_mut().enumerate() {
                for at in (from..numbers).step_by(STEP).take(STEPS) {
                    let count = STEP.min(numbers - at);
                    if count < STEP || lines - number * LINES < LINES {
                        tiles = [[[0; TILE]; TILE]; 2];
                    }
                    for (tile, words) in tiles.iter_mut().enumerate() {
                        let first = number * LINES + tile * TILE;
                        if first >= lines {
                            break;
                        }
                        let values = &values[first * line + at * inner..];
                        let some = TILE.min(lines - first);
                        for row in 0..if by_pair { TILE } else { some } {
                            let pair = if by_pair {
                                pair_of_lines(values, inner, row, some, count)
                            } else {
                                line_of_pairs(&values[row * line..], inner, count)
                            };
                            #[cfg(target_arch = "x86_64")]
                            let word = match simd {
                                Some(simd) => T::by_vectors(simd, pair),
                                None => words_of(pair),
                            };
                            #[cfg(not(target_arch = "x86_64"))]
                            let word = words_of(pair);
                            words[row] = word;
                        }
                        if by_pair == (side == Side::Left) {
                            #[cfg(target_arch = "x86_64")]
                            match simd {
                                Some(simd) => turn_by_vectors(simd, words),
                                None => turn(words),
                            }
                            #[cfg(not(target_arch = "x86_64"))]
                            turn(words);
                        }
                    }
                    for tile in tiles {
                        panel
                            .0
                            .extend_from_slice(&bytemuck::cast::<Square, [Row; TILE]>(tile));
                    }
                }
            }
        }
    }
}

/// The numbers of pair `pair` of `lines` lines that lie side by side, for a step of `count`
/// numbers.
#[inline(always)]
fn pair_of_lines<T: Number>(
    values: &[T],
    inner: usize,
    pair: usize,
    lines: usize,
    count: usize,
) -> [[T; TILE]; 2] {
    let mut halves = [[T::ZERO; TILE]; 2];
    for half in 0..2 {
        let start = half * TILE + pair;
        if start >= count {
            break;
        }
        read(&mut halves[half], &values[start * inner..], 1, lines);
    }
    halves
}

/// The numbers of all pairs of one line, for a step of `count` numbers.
#[inline(always)]
fn line_of_pairs<T: Number>(values: &[T], inner: usize, count: usize) -> [[T; TILE]; 2] {
    let mut halves = [[T::ZERO; TILE]; 2];
    for half in 0..2 {
        let start = half * TILE;
        if start >= count {
            break;
        }
        read(
            &mut halves[half],
            &values[start * inner..],
            inner,
            count - start,
        );
    }
    halves
}

/// At most 16 numbers, `step` apart, the first `count` of `values`.
#[inline(always)]
fn read<T: Number>(own: &mut [T; TILE], values: &[T], step: usize, count: usize) {
    if step == 1 && count >= TILE {
        own.copy_from_slice(&values[..TILE]);
    } else {
        own.iter_mut()
            .zip(values.iter().step_by(step))
            .take(count)
            .for_each(|(to, from)| *to = *from);
    }
}

/// A number that is rounded to bf16.
trait Number: Copy {
    const ZERO: Self;

    fn widened(self) -> f32;

    /// [`words_of`] with AVX-512.
    #[cfg(target_arch = "x86_64")]
    fn by_vectors(simd: pulp::x86::V4, pair: [[Self; TILE]; 2]) -> [u32; TILE];
}

impl Number for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn by_vectors(simd: pulp::x86::V4, pair: [[Self; TILE]; 2]) -> [u32; TILE] {
        use std::arch::x86_64::__m512;

        use bytemuck::cast;

        let simd = simd.avx512f;
        let odd = simd._mm512_set1_epi32(1);
        let upper = simd._mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let mut halves: [Row; 2] = cast(pair);
        for half in 0..2 {
            let (number, bits): (__m512, Row) = (cast(halves[half]), halves[half]);
            let last = simd._mm512_and_si512(simd._mm512_srli_epi32::<16>(bits), odd);
            let above = simd._mm512_add_epi32(bits, simd._mm512_set1_epi32(0x7fff));
            let rounded = simd._mm512_add_epi32(above, last);
            let nan =
                simd._mm512_cmp_ps_mask::<{ std::arch::x86_64::_CMP_UNORD_Q }>(number, number);
            let rounded =
                simd._mm512_mask_or_epi32(rounded, nan, bits, simd._mm512_set1_epi32(QUIET));
            halves[half] = simd._mm512_and_si512(rounded, upper);
        }
        let [first, second] = halves;
        cast(simd._mm512_or_si512(simd._mm512_srli_epi32::<16>(first), second))
    }
}

impl Number for bf16 {
    const ZERO: Self = Self::ZERO;

    #[inline(always)]
    fn widened(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn by_vectors(simd: pulp::x86::V4, pair: [[Self; TILE]; 2]) -> [u32; TILE] {
        use bytemuck::cast;

        let simd = simd.avx512f;
        let [first, second]: [std::arch::x86_64::__m256i; 2] = cast(pair);
        let first = simd._mm512_cvtepu16_epi32(first);
        let second = simd._mm512_cvtepu16_epi32(second);
        cast(simd._mm512_or_si512(first, simd._mm512_slli_epi32::<16>(second)))
    }
}

/// A bit of every quiet NaN.
const QUIET: i32 = 0x0040_0000;

/// Pairs of numbers, rounded: words with the first number in the low half.
#[inline(always)]
fn words_of<T: Number>(pair: [[T; TILE]; 2]) -> [u32; TILE] {
    let [low, high] =
        pair.map(|numbers| numbers.map(|number| u32::from(round_to_bf16(number.widened()))));
    std::array::from_fn(|lane| low[lane] | high[lane] << 16)
}

/// Exchanges the two axes of a tile.
#[inline(always)]
fn turn(tile: &mut Square) {
    let from = *tile;
    for (line, to) in tile.iter_mut().enumerate() {
        for (word, to) in to.iter_mut().enumerate() {
            *to = from[word][line];
        }
    }
}

/// [`turn`] with AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn turn_by_vectors(simd: pulp::x86::V4, tile: &mut Square) {
    use bytemuck::cast;

    let simd = simd.avx512f;
    let mut rows: [Row; TILE] = cast(*tile);
    for at in (0..TILE).step_by(2) {
        let low = rows[at];
        let high = rows[at + 1];
        rows[at] = simd._mm512_unpacklo_epi32(low, high);
        rows[at + 1] = simd._mm512_unpackhi_epi32(low, high);
    }
    // Row `4 i + j`: of each four columns, column `j` of the rows from `4 i` on.
    let mut fours = rows;
    for at in (0..TILE).step_by(4) {
        for half in 0..2 {
            let low = rows[at + half];
            let high = rows[at + half + 2];
            fours[at + 2 * half] = simd._mm512_unpacklo_epi64(low, high);
            fours[at + 2 * half + 1] = simd._mm512_unpackhi_epi64(low, high);
        }
    }
    for at in 0..4 {
        let even = simd._mm512_shuffle_i32x4::<0x88>(fours[at], fours[at + 4]);
        let even_below = simd._mm512_shuffle_i32x4::<0x88>(fours[at + 8], fours[at + 12]);
        let odd = simd._mm512_shuffle_i32x4::<0xdd>(fours[at], fours[at + 4]);
        let odd_below = simd._mm512_shuffle_i32x4::<0xdd>(fours[at + 8], fours[at + 12]);
        tile[at] = cast(simd._mm512_shuffle_i32x4::<0x88>(even, even_below));
        tile[at + 4] = cast(simd._mm512_shuffle_i32x4::<0x88>(odd, odd_below));
        tile[at + 8] = cast(simd._mm512_shuffle_i32x4::<0xdd>(even, even_below));
        tile[at + 12] = cast(simd._mm512_shuffle_i32x4::<0xdd>(odd, odd_below));
    }
}
