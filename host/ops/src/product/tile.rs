//! The innermost product: sums of 32 lines with 32 lines, in tiles of 16 lines and 32 numbers.

use super::instructions::Instructions;
#[cfg(any(target_arch = "x86_64", feature = "testing"))]
use super::vectors;

/// Lines of a panel: two tiles.
pub const LINES: usize = 32;
/// Lines of a tile.
pub const TILE: usize = 16;
/// Numbers of a line in a tile; an instruction adds their products at once.
pub const STEP: usize = 32;
/// Words of two numbers in a tile, 1 KiB.
pub const WORDS: usize = TILE * STEP / 2;

/// Sums of a panel with a panel, `[LINES][LINES]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Sums(pub [[f32; LINES]; LINES]);

impl Sums {
    pub const ZERO: Self = Self([[0.0; LINES]; LINES]);
}

/// Runs `work` in a state in which this thread may call [`multiply`].
pub fn configured<R>(instructions: Instructions, work: impl FnOnce() -> R) -> R {
    match instructions {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Instructions::Amx(_) => {
            // SAFETY: an `Amx` only exists where the process may use tiles.
            unsafe { amx::configured(work) }
        }
        _ => work(),
    }
}

/// Words between two lines, between two tiles and between two steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    pub line: usize,
    pub tile: usize,
    pub step: usize,
}

impl Strides {
    /// The strides of a packed panel.
    pub const PACKED: Self = Self {
        line: TILE,
        tile: WORDS,
        step: 2 * WORDS,
    };
}

/// A panel's tiles in memory.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub words: &'a [u32],
    pub strides: Strides,
}

impl Operand<'_> {
    /// Place of the word of a line in a step, if the words of two lines are `apart`.
    fn start(&self, step: usize, line: usize, apart: usize) -> usize {
        step * self.strides.step + line / TILE * self.strides.tile + line % TILE * apart
    }

    /// Fails if `steps` steps are not there.
    fn check(&self, steps: usize) {
        let Strides { line, tile, step } = self.strides;
        let last = (steps - 1) * step + tile + (TILE - 1) * line + TILE;
        assert!(steps > 0 && last <= self.words.len());
    }
}

/// Steps of two panels that are multiplied with each other.
#[derive(Clone, Copy)]
pub struct Factors<'a> {
    /// Tiles `[line][pair]`.
    pub left: Operand<'a>,
    /// Tiles `[pair][line]`, packed.
    pub right: Operand<'a>,
    pub steps: usize,
    /// The first lines of the left panel: the sums of others may have any value.
    pub lines: usize,
}

/// Adds the products of `factors` to `sums`, or to 0 if `fresh`.
pub fn multiply(instructions: Instructions, factors: Factors<'_>, sums: &mut Sums, fresh: bool) {
    factors.left.check(factors.steps);
    factors.right.check(factors.steps);
    assert!(factors.right.strides == Strides::PACKED);
    assert!((1..=LINES).contains(&factors.lines));
    match instructions {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Instructions::Amx(_) => {
            // SAFETY: the operands are long enough, and an `Amx` only exists where the process may
            // use tiles.
            unsafe { amx::multiply(factors, sums, fresh) }
        }
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512Bf16(proof) => {
            // SAFETY: the proof only exists if the machine has both features.
            unsafe { vectors::avx512::multiply(proof, factors, sums, fresh) }
        }
        #[cfg(feature = "testing")]
        Instructions::EmulatedVectors => vectors::emulated(factors, sums, fresh),
        _ => emulated(factors, sums, fresh),
    }
}

/// The arithmetic of a tile instruction: the first numbers of all pairs are multiplied and added,
/// so are the second ones, then both sums are added to the tile. Numbers below 1.2e-38 count as 0.
fn emulated(factors: Factors<'_>, sums: &mut Sums, fresh: bool) {
    let Factors {
        left, right, steps, ..
    } = factors;
    if fresh {
        *sums = Sums::ZERO;
    }
    for step in 0..steps {
        for (row, sums) in sums.0.iter_mut().enumerate() {
            let pairs = &left.words[left.start(step, row, left.strides.line)..][..TILE];
            for (column, sum) in sums.iter_mut().enumerate() {
                let others = right.words[right.start(step, column, 1)..]
                    .iter()
                    .step_by(TILE);
                let mut own = [0.0_f32; 2];
                for (left, right) in pairs.iter().zip(others) {
                    for ((own, left), right) in
                        own.iter_mut().zip(halves(*left)).zip(halves(*right))
                    {
                        *own = normal(left.mul_add(right, *own));
                    }
                }
                *sum = normal(*sum + normal(own[0] + own[1]));
            }
        }
    }
}

/// The two numbers of a word.
pub(super) fn halves(word: u32) -> [f32; 2] {
    [word << 16, word & 0xffff_0000].map(|bits| normal(f32::from_bits(bits)))
}

/// `x`, or 0 if it is subnormal.
pub(super) fn normal(x: f32) -> f32 {
    if x.is_subnormal() { 0.0 } else { x }
}

/// Tiles of AMX. Inline assembly, because the standard library's functions for them are not stable.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) mod amx {
    use std::arch::asm;

    use crate::product::tile::{Factors, STEP, Sums, TILE};

    /// The layout of eight tiles of 16 lines of 64 bytes.
    #[repr(C, align(64))]
    struct Config {
        palette: u8,
        start: u8,
        reserved: [u8; 14],
        bytes: [u16; 16],
        lines: [u8; 16],
    }

    /// Runs `work` while this thread's tiles are configured.
    ///
    /// # Safety
    /// The process must have the permission to use tiles.
    pub unsafe fn configured<R>(work: impl FnOnce() -> R) -> R {
        /// Frees the tiles, after a panic too.
        struct Release;
        impl Drop for Release {
            fn drop(&mut self) {
                // SAFETY: the tiles are configured, and nothing reads them afterwards.
                unsafe { asm!("tilerelease", options(nostack, nomem)) };
            }
        }
        let mut config = Config {
            palette: 1,
            start: 0,
            reserved: [0; 14],
            bytes: [0; 16],
            lines: [0; 16],
        };
        config.bytes[..8].fill(2 * STEP as u16);
        config.lines[..8].fill(TILE as u8);
        // SAFETY: the caller has the permission, and the instruction reads the 64 bytes of
        // `config`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
        let _release = Release;
        work()
    }

    /// [`super::multiply`] with `tdpbf16ps`.
    ///
    /// # Safety
    /// The tiles of this thread must be configured, and the operands as long as `multiply` asserts.
    pub unsafe fn multiply(factors: Factors<'_>, sums: &mut Sums, fresh: bool) {
        let Factors {
            left, right, steps, ..
        } = factors;
        let sums: *mut Sums = sums;
        // SAFETY: the caller bounds what is read; only `sums` is written.
        unsafe {
            asm!(
                "test {fresh}, {fresh}",
                "jnz 3f",
                "tileloadd tmm0, [{sums} + {t}*1]",
                "tileloadd tmm1, [{sums} + {t}*1 + 64]",
                "tileloadd tmm2, [{sums} + {t}*1 + 2048]",
                "tileloadd tmm3, [{sums} + {t}*1 + 2112]",
                "jmp 2f",
                "3:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{a} + {line}*1]",
                "tileloadd tmm5, [{other} + {line}*1]",
                "tileloadd tmm6, [{b} + {s}*1]",
                "tileloadd tmm7, [{b} + {s}*1 + 1024]",
                // The next step of the packed panel, which may lie in memory; to fetch beyond its
                // end does no harm.
                ".irp line, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,\
                 16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31",
                "prefetcht0 [{b} + 2048 + 64 * \\line]",
                ".endr",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, {step}",
                "add {other}, {step}",
                "add {b}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {t}*1], tmm0",
                "tilestored [{sums} + {t}*1 + 64], tmm1",
                "tilestored [{sums} + {t}*1 + 2048], tmm2",
                "tilestored [{sums} + {t}*1 + 2112], tmm3",
                a = inout(reg) left.words.as_ptr() => _,
                other = inout(reg) left.words.as_ptr().add(left.strides.tile) => _,
                b = inout(reg) right.words.as_ptr() => _,
                steps = inout(reg) steps => _,
                line = in(reg) 4 * left.strides.line,
                step = in(reg) 4 * left.strides.step,
                sums = in(reg) sums,
                fresh = in(reg) u64::from(fresh),
                s = in(reg) 64_usize,
                t = in(reg) 128_usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
