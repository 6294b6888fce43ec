//! The innermost product by vectors of AVX-512, with its instruction for products of bf16 pairs.

// The compiler does not inline the vectors' instructions into the closures of iterators.
#![allow(clippy::needless_range_loop)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64;

#[cfg(target_arch = "x86_64")]
use super::instructions::Proof;
use super::operand::{Factors, Sums, TILE};
#[cfg(feature = "testing")]
use super::operand::{halves, normal};

/// Lines of the left panel whose sums are in registers, in two vectors each.
const AT_ONCE: usize = 8;
/// Steps that all lines go through before the next ones: their words, those of the left panel and
/// the sums stay in the first cache, 20 KiB.
const STEPS: usize = 4;

/// Vectors of sixteen sums, with an instruction that adds to each sum the products of two pairs of
/// bf16.
trait Vectors: Copy {
    /// Sixteen sums.
    type Sums: bytemuck::Pod;
    /// Sixteen words of two numbers.
    type Words: Copy;

    fn words(self, words: [u32; TILE]) -> Self::Words;

    /// Sixteen times the same word.
    fn word(self, word: u32) -> Self::Words;

    fn add(self, sums: Self::Sums, left: Self::Words, right: Self::Words) -> Self::Sums;

    /// Brings the words to the first cache, while others are multiplied.
    fn fetch(self, words: &[u32; TILE]);
}

/// The product by vectors. Each sum gets its pairs in order, so that no bit depends on how lines
/// and steps are grouped.
#[inline(always)]
fn by_vectors<V: Vectors>(vectors: V, factors: Factors<'_>, sums: &mut Sums, fresh: bool) {
    let Factors {
        left,
        right,
        steps,
        lines,
    } = factors;
    let right_rows = right.words.as_chunks::<TILE>().0;
    let blocks = lines.div_ceil(AT_ONCE);
    let share = (2 * TILE).div_ceil(blocks);
    for from in (0..steps).step_by(STEPS) {
        let to = steps.min(from + STEPS);
        // Each step of a block fetches a share of the words of the steps after these, which may lie
        // in memory.
        let mut coming = right_rows[2 * TILE * to..].iter().take(2 * TILE * STEPS);
        let all = sums.0.as_chunks_mut::<AT_ONCE>().0.iter_mut().enumerate();
        for (block, sums) in all.take(blocks) {
            let first = block * AT_ONCE;
            let strides = left.strides;
            let start = first / TILE * strides.tile + first % TILE * strides.line;
            let mut own: [[V::Sums; 2]; AT_ONCE] = if fresh && from == 0 {
                bytemuck::Zeroable::zeroed()
            } else {
                bytemuck::cast(*sums)
            };
            for step in from..to {
                // Loops with fixed limits, because a closure would be a call.
                let mut rows = [&[0; TILE]; AT_ONCE];
                for row in 0..AT_ONCE {
                    let words = &left.words[start + step * strides.step + row * strides.line..];
                    rows[row] = words.first_chunk().expect("as `check` found");
                }
                let words: &[[u32; TILE]; 2 * TILE] = right_rows[2 * TILE * step..]
                    .first_chunk()
                    .expect("as `check` found");
                for pair in 0..TILE {
                    let right = [
                        vectors.words(words[pair]),
                        vectors.words(words[TILE + pair]),
                    ];
                    for row in 0..AT_ONCE {
                        let left = vectors.word(rows[row][pair]);
                        own[row][0] = vectors.add(own[row][0], left, right[0]);
                        own[row][1] = vectors.add(own[row][1], left, right[1]);
                    }
                }
                for words in coming.by_ref().take(share) {
                    vectors.fetch(words);
                }
            }
            *sums = bytemuck::cast(own);
        }
    }
}

/// The product with `vdpbf16ps`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn multiply(proof: Proof, factors: Factors<'_>, sums: &mut Sums, fresh: bool) {
    by_vectors(proof, factors, sums, fresh);
}

#[cfg(target_arch = "x86_64")]
impl Vectors for Proof {
    type Sums = x86_64::__m512;
    type Words = x86_64::__m512bh;

    #[inline(always)]
    fn words(self, words: [u32; TILE]) -> Self::Words {
        bytemuck::cast(words)
    }

    #[inline(always)]
    fn word(self, word: u32) -> Self::Words {
        // SAFETY: the proof says that the processor has AVX-512.
        bytemuck::cast(unsafe { x86_64::_mm512_set1_epi32(word.cast_signed()) })
    }

    #[inline(always)]
    fn add(self, sums: Self::Sums, left: Self::Words, right: Self::Words) -> Self::Sums {
        // SAFETY: the proof says that the processor has the instruction.
        unsafe { x86_64::_mm512_dpbf16_ps(sums, left, right) }
    }

    #[inline(always)]
    fn fetch(self, words: &[u32; TILE]) {
        // SAFETY: the address is that of a reference.
        unsafe { x86_64::_mm_prefetch::<{ x86_64::_MM_HINT_T0 }>(words.as_ptr().cast()) }
    }
}

/// The product by plain arithmetic.
#[cfg(feature = "testing")]
pub(super) fn emulated(factors: Factors<'_>, sums: &mut Sums, fresh: bool) {
    by_vectors(Plain, factors, sums, fresh);
}

#[cfg(feature = "testing")]
#[derive(Clone, Copy)]
struct Plain;

/// The arithmetic of `vdpbf16ps`, as Intel's manual has it. The second product of a word is added
/// before the first, and numbers below 1.2e-38 count as 0.
#[cfg(feature = "testing")]
impl Vectors for Plain {
    type Sums = [f32; TILE];
    type Words = [u32; TILE];

    fn words(self, words: [u32; TILE]) -> [u32; TILE] {
        words
    }

    fn word(self, word: u32) -> [u32; TILE] {
        [word; TILE]
    }

    fn add(self, sums: [f32; TILE], left: [u32; TILE], right: [u32; TILE]) -> [f32; TILE] {
        std::array::from_fn(|lane| {
            let [left, right] = [left, right].map(|words| halves(words[lane]));
            let sum = normal(left[1].mul_add(right[1], normal(sums[lane])));
            normal(left[0].mul_add(right[0], sum))
        })
    }

    fn fetch(self, _: &[u32; TILE]) {}
}
