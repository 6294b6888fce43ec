//! Kernels that NVRTC compiles for this machine's GPU when it is first opened. The machine code is
//! kept on disk, in `XDG_CACHE_HOME/capo`.

#![allow(unsafe_code, reason = "NVRTC's API is C")]

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs, io};

use cudarc::nvrtc::{result as nvrtc, sys};
use sha2::{Digest, Sha256};

use crate::library;

/// Options for NVRTC. Without `--fmad=false` it fuses a product and a sum into one operation where
/// it sees both. It may see both in one loop of a kernel and not in the next, so that the
/// difference of two equal expressions was not 0.
pub const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// Kernels as source text.
#[derive(Debug, Clone, Copy)]
pub struct Kernels<'a> {
    /// Beginning of the name of the file that keeps the machine code.
    pub name: &'a str,
    /// One translation unit, which includes no other file.
    pub source: &'a str,
}

/// Reason for which there is no machine code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotCompiled {
    /// This machine has no NVRTC.
    NoCompiler,
    /// NVRTC refuses the source or does not know the architecture. Holds what it says.
    Refused(String),
}

impl Kernels<'_> {
    /// The machine code for `architecture`, such as `sm_90`, if it is kept on disk. A crash may
    /// have left a file that the driver refuses; then call [`Self::compile`].
    pub fn kept(&self, architecture: &str) -> Option<Vec<u8>> {
        read(&self.file(architecture)?)
    }

    /// Compiles the kernels for `architecture` and keeps the machine code on disk. Where it cannot
    /// be kept, the next start compiles again.
    ///
    /// # Errors
    ///
    /// When the machine has no NVRTC, or NVRTC refuses the kernels.
    pub fn compile(&self, architecture: &str) -> Result<Vec<u8>, NotCompiled> {
        if !has_compiler() {
            return Err(NotCompiled::NoCompiler);
        }
        let code = machine_code(self.source, architecture)?;
        if let Some(file) = self.file(architecture) {
            let _ = write(&file, &code);
        }
        Ok(code)
    }

    /// `XDG_CACHE_HOME/capo/NAME-HASH.cubin`, with a hash that no other source, options or
    /// architecture have; `None` without a home.
    fn file(&self, architecture: &str) -> Option<PathBuf> {
        let folder = env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
        let digest = Sha256::digest([self.source, &OPTIONS.concat(), architecture].join("\n"));
        let hash: String = digest[..8]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Some(folder.join(format!("capo/{}-{hash}.cubin", self.name)))
    }
}

/// True if this machine has NVRTC, whose library is loaded by the first call. Without it, cudarc
/// would panic.
pub fn has_compiler() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    const LIBRARIES: &[&str] = if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    } else {
        &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"]
    };
    *PRESENT.get_or_init(|| library::is_present(LIBRARIES))
}

/// The content of `file`, if it is machine code.
fn read(file: &Path) -> Option<Vec<u8>> {
    fs::read(file).ok().filter(|code| is_machine_code(code))
}

/// Writes machine code to `file`; does nothing with what a stand-in for NVRTC made. It is written
/// to a temporary file, which is renamed, so that nobody reads half of it.
fn write(file: &Path, code: &[u8]) -> io::Result<()> {
    if !is_machine_code(code) {
        return Ok(());
    }
    fs::create_dir_all(file.parent().unwrap_or(file))?;
    let beside = file.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&beside, code)?;
    fs::rename(&beside, file)
}

/// Machine code is an ELF file. What the emulator's stand-in for NVRTC makes is none.
fn is_machine_code(code: &[u8]) -> bool {
    code.starts_with(b"\x7fELF")
}

fn machine_code(source: &str, architecture: &str) -> Result<Vec<u8>, NotCompiled> {
    let source = CString::new(source).map_err(|error| NotCompiled::Refused(error.to_string()))?;
    let program = nvrtc::create_program(&source, None).map_err(refused)?;
    let architecture = format!("--gpu-architecture={architecture}");
    let options = [&[&*architecture], &OPTIONS[..]].concat();
    // SAFETY: the program was just created, and is destroyed once. `code` asks for a program that
    // is compiled.
    unsafe {
        let code = match nvrtc::compile_program(program, &options) {
            Ok(()) => code(program).map_err(refused),
            Err(_) => Err(NotCompiled::Refused(log(program))),
        };
        let _ = nvrtc::destroy_program(program);
        code
    }
}

fn refused(error: nvrtc::NvrtcError) -> NotCompiled {
    NotCompiled::Refused(format!("{error:?}"))
}

/// The machine code of a program.
///
/// # Safety
///
/// `program` is compiled.
unsafe fn code(program: sys::nvrtcProgram) -> Result<Vec<u8>, nvrtc::NvrtcError> {
    let mut size = 0;
    // SAFETY: NVRTC writes one number.
    unsafe { sys::nvrtcGetCUBINSize(program, &raw mut size) }.result()?;
    let mut code = vec![0; size];
    // SAFETY: the code has the size that NVRTC says.
    unsafe { sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()) }.result()?;
    Ok(code)
}

/// The log that NVRTC writes about a program.
///
/// # Safety
///
/// `program` was created and not destroyed.
unsafe fn log(program: sys::nvrtcProgram) -> String {
    // SAFETY: the caller guarantees it.
    let Ok(log) = (unsafe { nvrtc::get_program_log(program) }) else {
        return String::new();
    };
    let bytes: Vec<u8> = log.iter().map(|&byte| byte as u8).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_machine_code_and_nothing_else() {
        let folder = env::temp_dir().join(format!("capo-kept-code-{}", std::process::id()));
        let file = folder.join("capo/policy-0.cubin");
        assert_eq!(read(&file), None);
        write(&file, b"// of the emulator").unwrap();
        assert!(!file.exists());
        let code = b"\x7fELF and more";
        write(&file, code).unwrap();
        assert_eq!(read(&file).as_deref(), Some(&code[..]));
        fs::write(&file, "spoilt").unwrap();
        assert_eq!(read(&file), None);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn each_source_and_architecture_has_a_file_of_its_own() {
        let file = |source, architecture| {
            let name = "policy";
            Kernels { name, source }.file(architecture)
        };
        assert_eq!(file("a", "sm_80"), file("a", "sm_80"));
        if file("a", "sm_80").is_some() {
            assert_ne!(file("a", "sm_80"), file("a", "sm_90"));
            assert_ne!(file("a", "sm_80"), file("b", "sm_80"));
        }
    }
}
