//! The innermost product: sums of 32 lines with 32 lines, in tiles of 16 lines and 32 numbers.

use super::instructions::Instructions;
use super::operand::{Factors, LINES, Strides, Sums, TILE, halves, normal};
#[cfg(any(target_arch = "x86_64", feature = "testing"))]
use super::vectors;

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
            unsafe { vectors::multiply(proof, factors, sums, fresh) }
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

/// Tiles of AMX. Inline assembly, because the standard library's functions for them are not stable.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) mod amx {
    use std::arch::asm;

    use crate::product::operand::{Factors, STEP, Sums, TILE};

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
