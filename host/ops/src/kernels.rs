//! The GPU kernels' machine code, which NVRTC compiles once for a machine: it is kept on disk.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// NVRTC's; `--fmad=false` as in capo-core/src/cuda/image.rs, so that a kernel computes what its
/// source says.
pub const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// The file of the machine code that comes from `parts` (sources, options, architecture, the
/// compiler's version); `None` without a home.
pub fn file(parts: &[&str]) -> Option<PathBuf> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
    let folder = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(home)?;
    Some(
        folder
            .join("capo")
            .join(format!("policy-{}.cubin", name(parts))),
    )
}

/// 16 digits that other parts do not give.
fn name(parts: &[&str]) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(parts.join("\n"));
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The content of `file`, if it is machine code.
pub fn kept(file: &Path) -> Option<Vec<u8>> {
    fs::read(file).ok().filter(|image| is_machine_code(image))
}

/// The stand-in for NVRTC on the emulator makes none.
fn is_machine_code(image: &[u8]) -> bool {
    image.starts_with(b"\x7fELF")
}

/// Keeps machine code in `file`. It is written beside it and renamed, so that nobody reads half of
/// it.
pub fn keep(file: &Path, image: &[u8]) -> io::Result<()> {
    if !is_machine_code(image) {
        return Ok(());
    }
    fs::create_dir_all(file.parent().unwrap_or(file))?;
    let beside = file.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&beside, image)?;
    fs::rename(&beside, file)
}
