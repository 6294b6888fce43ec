//! The innermost product: a tile of sums in registers.

/// Rows of a tile.
pub const ROWS: usize = 12;
/// Columns of a tile: two registers of 16.
pub const COLUMNS: usize = 32;

/// A tile of sums.
type Sums = [[f32; COLUMNS]; ROWS];

/// Instructions with which tiles are multiplied.
#[derive(Clone, Copy, Debug)]
pub enum Tile {
    /// AVX-512's instruction for products of bf16 pairs.
    #[cfg(target_arch = "x86_64")]
    Instruction(Instruction),
    /// Computes in f32 on machines without the instruction, to equal bits.
    Portable,
}

/// Proof that the machine has AVX512-BF16.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
pub struct Instruction(());

impl Tile {
    /// The fastest choice for this machine.
    pub fn of_this_machine() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
            return Self::Instruction(Instruction(()));
        }
        Self::Portable
    }

    /// Sums over pairs of `a` times `b`, pair by pair.
    pub fn multiply(self, a: &[[u32; ROWS]], b: &[[u32; COLUMNS]]) -> Sums {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Instruction(_) => {
                // SAFETY: an `Instruction` only exists if the machine has both features.
                unsafe { with_instruction(a, b) }
            }
            Self::Portable => pulp::Arch::new().dispatch(|| in_f32(a, b)),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn with_instruction(a: &[[u32; ROWS]], b: &[[u32; COLUMNS]]) -> Sums {
    use std::arch::x86_64::{__m512bh, __m512i, _mm512_dpbf16_ps, _mm512_set1_epi32, _mm512_setzero_ps};

    use bytemuck::cast;

    let pairs = |vector: __m512i| -> __m512bh { cast(vector) };
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (a, b) in a.iter().zip(b) {
        let [left, right]: [[u32; 16]; 2] = cast(*b);
        let b = [left, right].map(|half| pairs(cast(half)));
        for (sums, a) in sums.iter_mut().zip(a) {
            let a = pairs(_mm512_set1_epi32(a.cast_signed()));
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = _mm512_dpbf16_ps(*sum, a, b);
            }
        }
    }
    cast(sums)
}

/// Arithmetic of the instruction: first the product of the high halves is added, then that of the low halves, each rounded once.
#[inline(always)]
fn in_f32(a: &[[u32; ROWS]], b: &[[u32; COLUMNS]]) -> Sums {
    const AT_ONCE: usize = 3;
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (block, sums) in sums.as_chunks_mut::<AT_ONCE>().0.iter_mut().enumerate() {
        let mut local = *sums;
        for (a, b) in a.iter().zip(b) {
            for (row, sums) in local.iter_mut().enumerate() {
                let [low, high] = halves(a[block * AT_ONCE + row]);
                for (sum, b) in sums.iter_mut().zip(b) {
                    let [b_low, b_high] = halves(*b);
                    *sum = low.mul_add(b_low, high.mul_add(b_high, *sum));
                }
            }
        }
        *sums = local;
    }
    sums
}

#[inline(always)]
fn halves(pair: u32) -> [f32; 2] {
    [f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000)]
}
