//! The kernels in a form that the driver accepts: compiled for the device by NVRTC and cached on
//! disk, or the PTX in this crate.

#![allow(unsafe_code, reason = "NVRTC's API is C")]

use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::{env, fs};

use cudarc::nvrtc::{result as nvrtc, sys};

/// The kernels as one unit: `curvature.cu` with its includes in place.
pub(super) const PARTS: [(&str, &str); 9] = [
    ("platform.cuh", include_str!("../../kernels/platform.cuh")),
    ("supports.cuh", include_str!("../../kernels/supports.cuh")),
    ("scan.cuh", include_str!("../../kernels/scan.cuh")),
    ("sort.cuh", include_str!("../../kernels/sort.cuh")),
    ("rows.cuh", include_str!("../../kernels/rows.cuh")),
    ("tokens.cuh", include_str!("../../kernels/tokens.cuh")),
    ("subsets.cuh", include_str!("../../kernels/subsets.cuh")),
    ("reactions.cuh", include_str!("../../kernels/reactions.cuh")),
    ("curvature.cu", include_str!("../../kernels/curvature.cu")),
];

/// NVRTC's. Without `--fmad=false` it makes one operation of a product and a sum where it sees
/// both, and in one loop of a kernel it may see what it does not see in the next: the difference of
/// two equal expressions was not 0.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// PTX for devices of compute capability 8.0 and above, for machines without NVRTC.
const PREBUILT: &str = include_str!("../../generated/curvature.ptx");

/// The unit's text.
pub(super) fn source() -> String {
    let unit = PARTS[PARTS.len() - 1].1;
    let line = |line: &str| {
        let name = line
            .strip_prefix("#include \"")
            .and_then(|rest| rest.strip_suffix('"'));
        let part = name.and_then(|name| PARTS.iter().find(|part| part.0 == name));
        part.map_or_else(|| format!("{line}\n"), |part| part.1.to_owned())
    };
    unit.lines().map(line).collect()
}

/// Images for a device of this compute capability, best first. Each is made only after the earlier
/// ones were refused.
pub(super) fn of((major, minor): (i32, i32)) -> impl Iterator<Item = Vec<u8>> {
    let (source, arch) = (source(), format!("sm_{major}{minor}"));
    images(cache_file(&source, &arch), source, arch)
}

/// Images in the order to try: the cached one in `file`, the one that NVRTC compiles from `source`
/// for `arch`, and the one in this crate. A compiled image is cached in `file`.
fn images(file: Option<PathBuf>, source: String, arch: String) -> impl Iterator<Item = Vec<u8>> {
    let kept = file
        .as_ref()
        .and_then(|file| fs::read(file).ok())
        .filter(|image| is_cubin(image));
    let compiled = move || {
        let compiled = compile(&source, &arch)?;
        if is_cubin(&compiled) {
            // An unwritable cache costs a few seconds at the next start.
            let _ = file.map(|file| keep(&file, &compiled));
        }
        Some(compiled)
    };
    let prebuilt = [PREBUILT.as_bytes(), &[0]].concat();
    kept.into_iter()
        .chain(std::iter::once_with(compiled).flatten())
        .chain([prebuilt])
}

/// `XDG_CACHE_HOME/capo/curvature-HASH-ARCH.cubin`.
fn cache_file(source: &str, arch: &str) -> Option<PathBuf> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
    let folder = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(home)?;
    let hash = crc32fast::hash([source, &OPTIONS.concat()].concat().as_bytes());
    Some(folder.join("capo").join(format!(
        "curvature-{hash:08x}-{:x}-{arch}.cubin",
        source.len()
    )))
}

/// Cubins are ELF files; the fake compiler of the tests makes none.
fn is_cubin(image: &[u8]) -> bool {
    image.starts_with(b"\x7fELF")
}

/// Writes to a temporary file and renames it, so that nobody reads half an image.
fn keep(file: &std::path::Path, compiled: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(file.parent().unwrap_or(file))?;
    let beside = file.with_extension(format!("{}.tmp", std::process::id()));
    fs::write(&beside, compiled)?;
    fs::rename(&beside, file)
}

/// A cubin for `arch`; `None` without NVRTC, or if NVRTC does not know the architecture.
fn compile(source: &str, arch: &str) -> Option<Vec<u8>> {
    // cudarc panics if the library is missing.
    let names = if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"][..]
    } else {
        &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"]
    };
    // SAFETY: the compiler's initialisers are sound to run at any time. It is kept, so that it is
    // not unloaded under cudarc.
    names.iter().find_map(|name| {
        unsafe { libloading::Library::new(*name) }
            .map(std::mem::forget)
            .ok()
    })?;
    let (source, name) = (CString::new(source).ok()?, c"curvature.cu");
    let program = nvrtc::create_program(&source, Some(name)).ok()?;
    let arch = format!("--gpu-architecture={arch}");
    let options = [&[&*arch], &OPTIONS[..]].concat();
    // SAFETY: the program was just created, and is destroyed once.
    unsafe {
        let compiled = nvrtc::compile_program(program, &options)
            .ok()
            .and_then(|()| cubin(program));
        if compiled.is_none() {
            report(program);
        }
        let _ = nvrtc::destroy_program(program);
        compiled
    }
}

/// The compiled program.
///
/// # Safety
///
/// `program` is compiled.
unsafe fn cubin(program: sys::nvrtcProgram) -> Option<Vec<u8>> {
    let mut size = 0;
    // SAFETY: `size` may be written.
    unsafe { sys::nvrtcGetCUBINSize(program, &raw mut size) }
        .result()
        .ok()?;
    let mut bytes = vec![0u8; size];
    // SAFETY: `bytes` has the size that the compiler asked for.
    unsafe { sys::nvrtcGetCUBIN(program, bytes.as_mut_ptr().cast()) }
        .result()
        .ok()?;
    (size > 0).then_some(bytes)
}

/// Reports on stderr why a program was not compiled; the prebuilt kernels are used instead.
///
/// # Safety
///
/// `program` was created and not destroyed.
unsafe fn report(program: sys::nvrtcProgram) {
    // SAFETY: the caller guarantees it.
    let Ok(log) = (unsafe { nvrtc::get_program_log(program) }) else {
        return;
    };
    let bytes: Vec<u8> = log.iter().map(|&c| c as u8).chain([0]).collect();
    if let Ok(text) = CStr::from_bytes_until_nul(&bytes) {
        eprintln!(
            "NVRTC could not compile the curvature kernels, the prebuilt ones are used: {}",
            text.to_string_lossy()
        );
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_unit_needs_no_other_file() {
        let source = source();
        assert!(!source.contains("#include"), "every part is in `PARTS`");
        assert!(
            PARTS
                .iter()
                .all(|part| part.0 == "curvature.cu" || source.contains(part.1))
        );
    }

    #[test]
    fn the_prebuilt_kernels_are_of_these_sources() {
        let hash: String = Sha256::digest(source())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let made_of = PREBUILT.lines().next().and_then(|line| {
            line.strip_prefix(
                "// Generated by scripts/check-kernels --record from sources of SHA-256 ",
            )
        });
        assert_eq!(
            made_of,
            Some(&hash[..]),
            "run `scripts/check-kernels --record`"
        );
    }

    /// The kernels' numbers are those of their sources: ptxas fuses what has no rounding mode,
    /// wherever it likes.
    #[test]
    fn no_operation_of_the_prebuilt_kernels_may_be_fused() {
        let plain = |line: &&str| {
            let operation = line.split_whitespace().next().unwrap_or_default();
            ["add", "sub", "mul"]
                .iter()
                .any(|name| operation.starts_with(name))
                && (operation.contains(".f32") || operation.contains(".f64"))
                && !operation.contains(".rn")
        };
        assert_eq!(
            PREBUILT.lines().find(plain),
            None,
            "run `scripts/check-kernels --record`"
        );
    }

    /// NVRTC, if present, does not know this architecture.
    #[test]
    fn an_image_that_the_driver_refuses_is_followed_by_others() {
        let file = env::temp_dir().join(format!("capo-kept-image-{}", std::process::id()));
        let with_kept = |kept: &[u8]| -> Vec<_> {
            fs::write(&file, kept).unwrap();
            images(Some(file.clone()), String::new(), "sm_0".to_owned()).collect()
        };
        let prebuilt = [PREBUILT.as_bytes(), &[0]].concat();
        assert!(with_kept(b"\x7fELF") == [b"\x7fELF".to_vec(), prebuilt.clone()]);
        assert!(with_kept(b"made by a stand-in for NVRTC") == [prebuilt]);
        fs::remove_file(file).unwrap();
    }

    /// `scripts/check-kernels` makes the same check with a compiler that it fetches.
    #[test]
    fn nvrtc_takes_the_unit_where_there_is_one() {
        match compile(&source(), "sm_90") {
            Some(cubin) => assert!(is_cubin(&cubin), "{:?}", &cubin[..8]),
            None => eprintln!("SKIPPED: there is no NVRTC"),
        }
    }
}
