//! Matrices copied into the order in which the tiles are read.

// The compiler does not inline the vectors' instructions into the closures of iterators.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use half::bf16;

use super::super::kernel::round_to_bf16;
use super::tile::{LINES, Operand, STEP, Strides, TILE};

/// Sixteen words; on x86-64 a type that lies in one line of the cache.
#[cfg(target_arch = "x86_64")]
pub(super) type Row = std::arch::x86_64::__m512i;
#[cfg(not(target_arch = "x86_64"))]
pub(super) type Row = [u32; TILE];

/// Words of a tile, and those of its transpose.
type Square = [[u32; TILE]; TILE];

/// Steps of a panel that are written at a time.
const STEPS: usize = 4;
/// f32 is multiplied by this power of two, so that all bits of the smallest numbers are in normal bf16.
const SCALE: f32 = (1_u32 << 24) as f32;
/// The inverse of the scale of a product.
pub(super) const UNSCALE: f32 = 1.0 / (SCALE * SCALE);
/// Largest product of two magnitudes and the number of terms whose scaled sum is finite for certain.
pub(super) const LARGEST: f64 = 1e23;

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

/// The operand of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Its tiles are `[line][pair]`.
    Left,
    /// Its tiles are `[pair][line]`.
    Right,
}

/// Which two numbers of a line share a word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pairing {
    /// Two numbers that are [`TILE`] apart, which is the faster way to pack both operands.
    Apart,
    /// Neighbours, as in memory.
    Next,
}

/// [`LINES`] lines as `[step][part][tile][WORDS]`. Zeros fill up lines and steps.
pub(super) struct Panel {
    pub(super) rows: Vec<Row>,
    /// Bits of the largest magnitude; 0 for panels of one part.
    pub(super) largest: u32,
}

impl Panel {
    /// All steps, of one part.
    pub(super) fn operand(&self) -> Operand<'_> {
        Operand { words: bytemuck::cast_slice(&self.rows), strides: Strides::packed(1) }
    }
}

/// Panels of some lines of a matrix, with the first `PARTS` parts of some numbers of each.
pub(super) fn panels<const PARTS: usize>(
    matrix: Matrix<'_>,
    side: Side,
    pairing: Pairing,
    lines: Range<usize>,
    numbers: &Range<usize>,
) -> Vec<Panel> {
    let rows = numbers.len().div_ceil(STEP) * PARTS * LINES;
    let mut panels = Vec::new();
    panels.resize_with(lines.len().div_ceil(LINES), || Panel { rows: Vec::with_capacity(rows), largest: 0 });
    let start = lines.start * matrix.line + numbers.start * matrix.inner;
    let (of, sizes, arch) = ((matrix, side, pairing), (lines.len(), numbers.len()), pulp::Arch::new());
    match matrix.values {
        Values::F32(values) => {
            arch.dispatch(Fill::<_, PARTS> { panels: &mut panels, values: &values[start..], of, sizes })
        }
        Values::Bf16(values) => {
            arch.dispatch(Fill::<_, PARTS> { panels: &mut panels, values: &values[start..], of, sizes });
        }
    }
    panels
}

/// Fills empty panels. A closure instead would be compiled for the narrowest vectors.
struct Fill<'a, T, const PARTS: usize> {
    panels: &'a mut [Panel],
    /// The numbers from the first of the first line on.
    values: &'a [T],
    of: (Matrix<'a>, Side, Pairing),
    /// Lines, and numbers of each.
    sizes: (usize, usize),
}

impl<T: Number, const PARTS: usize> pulp::NullaryFnOnce for Fill<'_, T, PARTS> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { panels, values, of: (Matrix { line, inner, .. }, side, pairing), sizes: (lines, numbers) } = self;
        let by_pair = line == 1;
        // Number `half` of word `word` is `word * step + half * apart` of a step.
        let (step, apart) = if pairing == Pairing::Next { (2, 1) } else { (1, TILE) };
        #[cfg(target_arch = "x86_64")]
        let simd = pulp::x86::V4::try_new();
        // Few steps of all panels at a time, so that whole pages are read of either order.
        for from in (0..numbers).step_by(STEPS * STEP) {
            for (number, panel) in panels.iter_mut().enumerate() {
                let mut largest = [0; TILE];
                for at in (from..numbers).step_by(STEP).take(STEPS) {
                    let count = STEP.min(numbers - at);
                    let mut tiles = [[[[0; TILE]; TILE]; 2]; PARTS];
                    for tile in 0..2 {
                        let first = number * LINES + tile * TILE;
                        if first >= lines {
                            break;
                        }
                        let values = &values[first * line + at * inner..];
                        let some = TILE.min(lines - first);
                        for row in 0..if by_pair { TILE } else { some } {
                            let mut pair = [[T::ZERO; TILE]; 2];
                            for half in 0..2 {
                                let start = half * apart + if by_pair { row * step } else { 0 };
                                if start >= count {
                                    break;
                                }
                                if by_pair {
                                    read(&mut pair[half], &values[start * inner..], 1, some);
                                } else {
                                    let numbers = (count - start).div_ceil(step);
                                    read(&mut pair[half], &values[row * line + start * inner..], step * inner, numbers);
                                }
                            }
                            #[cfg(target_arch = "x86_64")]
                            let words = match simd {
                                Some(simd) => T::by_vectors::<PARTS>(simd, pair, &mut largest),
                                None => words::<T, PARTS>(pair, &mut largest),
                            };
                            #[cfg(not(target_arch = "x86_64"))]
                            let words = words::<T, PARTS>(pair, &mut largest);
                            for part in 0..PARTS {
                                tiles[part][tile][row] = words[part];
                            }
                        }
                        if by_pair == (side == Side::Left) {
                            for part in 0..PARTS {
                                #[cfg(target_arch = "x86_64")]
                                match simd {
                                    Some(simd) => turn_by_vectors(simd, &mut tiles[part][tile]),
                                    None => turn(&mut tiles[part][tile]),
                                }
                                #[cfg(not(target_arch = "x86_64"))]
                                turn(&mut tiles[part][tile]);
                            }
                        }
                    }
                    for tile in tiles.as_flattened() {
                        panel.rows.extend_from_slice(&bytemuck::cast::<Square, [Row; TILE]>(*tile));
                    }
                }
                panel.largest = largest.into_iter().fold(panel.largest, u32::max);
            }
        }
    }
}

/// At most 16 numbers, `step` apart, the first `count` of `values`.
#[inline(always)]
fn read<T: Number>(own: &mut [T; TILE], values: &[T], step: usize, count: usize) {
    if step == 1 && count >= TILE {
        own.copy_from_slice(&values[..TILE]);
    } else {
        own.iter_mut().zip(values.iter().step_by(step)).take(count).for_each(|(to, from)| *to = *from);
    }
}

/// A number that is rounded to bf16, or split into several.
trait Number: Copy {
    const ZERO: Self;

    fn widened(self) -> f32;

    /// [`words`] with AVX-512.
    #[cfg(target_arch = "x86_64")]
    fn by_vectors<const PARTS: usize>(
        simd: pulp::x86::V4,
        pair: [[Self; TILE]; 2],
        largest: &mut [u32; TILE],
    ) -> [[u32; TILE]; PARTS];
}

impl Number for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn by_vectors<const PARTS: usize>(
        simd: pulp::x86::V4,
        pair: [[Self; TILE]; 2],
        largest: &mut [u32; TILE],
    ) -> [[u32; TILE]; PARTS] {
        use std::arch::x86_64::__m512;

        use bytemuck::cast;

        let simd = simd.avx512f;
        let odd = simd._mm512_set1_epi32(1);
        let upper = simd._mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let mut rest: [__m512; 2] = [cast(pair[0]), cast(pair[1])];
        if PARTS > 1 {
            for half in 0..2 {
                let magnitude = simd._mm512_and_si512(cast(rest[half]), simd._mm512_set1_epi32(i32::MAX));
                *largest = cast(simd._mm512_max_epu32(cast(*largest), magnitude));
                rest[half] = simd._mm512_mul_ps(rest[half], simd._mm512_set1_ps(SCALE));
            }
        }
        let mut parts = [[0; TILE]; PARTS];
        for part in 0..PARTS {
            let mut words: [Row; 2] = [cast(rest[0]), cast(rest[1])];
            for half in 0..2 {
                let (number, bits) = (rest[half], words[half]);
                let last = simd._mm512_and_si512(simd._mm512_srli_epi32::<16>(bits), odd);
                let above = simd._mm512_add_epi32(bits, simd._mm512_set1_epi32(0x7fff));
                let rounded = simd._mm512_add_epi32(above, last);
                let nan = simd._mm512_cmp_ps_mask::<{ std::arch::x86_64::_CMP_UNORD_Q }>(number, number);
                let rounded = simd._mm512_mask_or_epi32(rounded, nan, bits, simd._mm512_set1_epi32(QUIET));
                words[half] = simd._mm512_and_si512(rounded, upper);
                rest[half] = simd._mm512_sub_ps(number, cast(words[half]));
            }
            parts[part] = cast(simd._mm512_or_si512(simd._mm512_srli_epi32::<16>(words[0]), words[1]));
        }
        parts
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
    fn by_vectors<const PARTS: usize>(
        simd: pulp::x86::V4,
        pair: [[Self; TILE]; 2],
        _: &mut [u32; TILE],
    ) -> [[u32; TILE]; PARTS] {
        use bytemuck::cast;

        let simd = simd.avx512f;
        let [first, second]: [std::arch::x86_64::__m256i; 2] = cast(pair);
        let (first, second) = (simd._mm512_cvtepu16_epi32(first), simd._mm512_cvtepu16_epi32(second));
        [cast(simd._mm512_or_si512(first, simd._mm512_slli_epi32::<16>(second))); PARTS]
    }
}

/// A bit of every quiet NaN.
const QUIET: i32 = 0x0040_0000;

/// The parts of pairs of numbers, largest first: words with the first number in the low half. If there are several, `largest` gets the bits
/// of the largest magnitudes.
#[inline(always)]
fn words<T: Number, const PARTS: usize>(pair: [[T; TILE]; 2], largest: &mut [u32; TILE]) -> [[u32; TILE]; PARTS] {
    let mut words = [[0; TILE]; PARTS];
    for (half, numbers) in pair.into_iter().enumerate() {
        for (lane, number) in numbers.into_iter().enumerate() {
            let mut rest = number.widened();
            if PARTS > 1 {
                largest[lane] = largest[lane].max(rest.to_bits() & 0x7fff_ffff);
                rest *= SCALE;
            }
            for words in &mut words {
                let part = u32::from(round_to_bf16(rest));
                words[lane] |= part << (16 * half);
                rest -= f32::from_bits(part << 16);
            }
        }
    }
    words
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
        let (low, high) = (rows[at], rows[at + 1]);
        rows[at] = simd._mm512_unpacklo_epi32(low, high);
        rows[at + 1] = simd._mm512_unpackhi_epi32(low, high);
    }
    // Row `4 i + j`: of each four columns, column `j` of the rows from `4 i` on.
    let mut fours = rows;
    for at in (0..TILE).step_by(4) {
        for half in 0..2 {
            let (low, high) = (rows[at + half], rows[at + half + 2]);
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
