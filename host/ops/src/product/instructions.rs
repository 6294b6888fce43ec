//! The instructions with which products are computed, found at run time.

#[cfg(feature = "testing")]
use std::cell::Cell;
use std::sync::OnceLock;

use candle_core::Error;

/// Environment variable that names the instructions in place of what the processor has.
const SWITCH: &str = "HOST_OPS_INSTRUCTIONS";

#[cfg(feature = "testing")]
thread_local! {
    /// The instructions of this thread's products, in place of the fastest.
    pub static INSTRUCTIONS: Cell<Option<Instructions>> = const { Cell::new(None) };
}

/// Instructions for products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Tiles of AMX: bf16 at twelve times the rate of f32 in vectors.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx(Proof),
    /// AVX-512's instruction for pairs of bf16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Proof),
    /// f32, by the matrix library, with the widest vectors that the processor has. bf16 is widened
    /// first.
    F32,
    /// AMX's results, by plain arithmetic.
    #[cfg(feature = "testing")]
    Emulated,
    /// AVX-512's, by plain arithmetic in the same loops.
    #[cfg(feature = "testing")]
    EmulatedVectors,
}

/// Proof that the processor has an instruction, and the process the permission to use it.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof(());

impl Instructions {
    /// The instructions that the switch names, else the fastest of this processor; an error if the
    /// switch names none that it has.
    pub fn of_this_machine() -> candle_core::Result<Self> {
        #[cfg(feature = "testing")]
        if let Some(instructions) = INSTRUCTIONS.get() {
            return Ok(instructions);
        }
        static FOUND: OnceLock<Result<Instructions, String>> = OnceLock::new();
        let found = FOUND.get_or_init(|| match std::env::var(SWITCH) {
            Ok(name) => Self::named(&name),
            Err(_) => Ok(Self::fastest()),
        });
        found.clone().map_err(Error::Msg)
    }

    /// All that this processor has, with their names in the switch, the fastest first.
    pub fn available() -> Vec<(&'static str, Self)> {
        let mut all = Vec::new();
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if has_amx() {
            all.push(("amx", Self::Amx(Proof(()))));
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
            all.push(("avx512bf16", Self::Avx512Bf16(Proof(()))));
        }
        all.push(("f32", Self::F32));
        all
    }

    fn named(name: &str) -> Result<Self, String> {
        let all = Self::available();
        let found = all.iter().find(|(own, _)| *own == name);
        found.map(|(_, instructions)| *instructions).ok_or_else(|| {
            let names: Vec<String> = all.iter().map(|(name, _)| format!("`{name}`")).collect();
            format!(
                "`{SWITCH}` is `{name}`, and this processor has {} (name one of them, or unset it)",
                names.join(", ")
            )
        })
    }

    fn fastest() -> Self {
        Self::available()
            .into_iter()
            .map(|(_, instructions)| instructions)
            .find(|instructions| !instructions.are_slower_than_f32())
            .unwrap_or(Self::F32)
    }

    fn are_slower_than_f32(self) -> bool {
        match self {
            // On Intel's processors the instruction has half the rate of f32.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(_) => is_intel(),
            _ => false,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx]
        .map(u32::to_le_bytes)
        .concat()
        == b"GenuineIntel"
}

/// True if the processor has tiles of bf16, and Linux lets this process use them. Linux keeps 8 KiB
/// more of each thread that does.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_amx() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    const SYS_ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    /// `amx_bf16` and `amx_tile` in `edx` of leaf 7.
    const BITS: u32 = 1 << 22 | 1 << 24;
    let vectors = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    if !vectors || __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & BITS != BITS {
        return false;
    }
    let answer: i64;
    // SAFETY: the call touches no memory of the process; on a kernel without it, it returns an
    // error.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => answer,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}
