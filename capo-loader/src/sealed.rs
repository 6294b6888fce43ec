//! Opens a library from bytes: the code that runs is the code that was checked. A build that writes
//! over a loaded library would otherwise change or crash a running trainer.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use libloading::Library;

/// Opens the library in `bytes`. Debuggers and profilers that show a name show `name`.
///
/// The library is opened from memory that can no longer be written, because many systems refuse to
/// run code from `/tmp`. If a system has no such memory, or refuses to run code from it, the
/// library is opened from a file in a folder that only this user can enter.
///
/// # Errors
///
/// When the system's loader refuses the library; the message gives the reason in one line.
pub fn open(bytes: &[u8], name: &OsStr) -> Result<Library> {
    #[cfg(target_os = "linux")]
    if let Ok(library) = from_memory(bytes, name) {
        return Ok(library);
    }
    from_private_copy(bytes, name)
}

/// Opens the library from a memory file, sealed before the loader sees it.
#[cfg(target_os = "linux")]
fn from_memory(bytes: &[u8], name: &OsStr) -> Result<Library> {
    use std::io::Write;
    use std::os::fd::{AsRawFd, IntoRawFd};

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A system may refuse executable memory files. The loader maps this file and never executes it.
    // Linux before 6.3 does not know the flag.
    let memory = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create(name, flags))?;
    let mut memory = std::fs::File::from(memory);
    memory.write_all(bytes)?;
    fcntl_add_seals(
        &memory,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    let library = load(&path_of(&memory, memory.as_raw_fd())?)?;
    // Kept open until the process ends: the loader knows the library by this path, which must not
    // come to name another file. Debuggers and backtraces read it again.
    let _ = memory.into_raw_fd();
    Ok(library)
}

/// Path of the open file. It contains this process's id, so that a debugger finds it too, unless
/// `/proc` numbers processes otherwise.
#[cfg(target_os = "linux")]
fn path_of(file: &std::fs::File, fd: std::os::fd::RawFd) -> Result<std::path::PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let own = file.metadata()?;
    let paths = [
        format!("/proc/{}/fd/{fd}", std::process::id()),
        format!("/proc/self/fd/{fd}"),
    ];
    let found = paths.into_iter().find(|path| {
        std::fs::metadata(path)
            .is_ok_and(|found| found.dev() == own.dev() && found.ino() == own.ino())
    });
    Ok(found.context("there is no `/proc`")?.into())
}

/// Opens the library from a private copy. The copy is deleted on return, where the system can
/// delete an open library.
fn from_private_copy(bytes: &[u8], name: &OsStr) -> Result<Library> {
    // On Unix such a folder has mode 700.
    let folder = tempfile::Builder::new()
        .prefix("capo-plugin-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).with_context(|| format!("cannot write `{}`", path.display()))?;
    load(&path)
}

fn load(path: &Path) -> Result<Library> {
    // SAFETY: loading runs the library's initialisers. A plugin is native code that the user chose
    // to run with their own rights.
    unsafe { Library::new(path) }.map_err(|error| {
        // libloading says only that opening failed; its source has the reason. The user never saw
        // the path of the copy.
        let source = std::error::Error::source(&error)
            .map_or_else(|| error.to_string(), ToString::to_string);
        let name = path.display().to_string();
        anyhow!(
            source
                .replace('\n', " ")
                .replace(&format!("{name}: "), "")
                .replace(&name, "it")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a library that exists on any machine with a loader: this test's own C library,
    /// found in the process's memory map.
    #[cfg(target_os = "linux")]
    fn some_library() -> Vec<u8> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .find(|path| path.contains("libc"));
        std::fs::read(path.expect("tests link the C library")).unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn it_opens_from_either_place() {
        let bytes = some_library();
        for open in [from_memory, from_private_copy] {
            let library = open(&bytes, OsStr::new("libsome.so")).unwrap();
            // SAFETY: this is the type of `getpid` in C.
            let pid = unsafe { library.get::<extern "C" fn() -> i32>(b"getpid") }
                .map(|getpid| getpid())
                .unwrap();
            assert_eq!(pid.unsigned_abs(), std::process::id());
            std::mem::forget(library);
        }
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(
            maps.contains("/memfd:libsome.so"),
            "a profiler sees the name:\n{maps}"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_lies_in_memory_cannot_be_written() {
        std::mem::forget(from_memory(&some_library(), OsStr::new("libsealed.so")).unwrap());
        let descriptors = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let sealed = |path: &std::path::PathBuf| {
            std::fs::read_link(path)
                .is_ok_and(|target| target.to_string_lossy().contains("memfd:libsealed.so"))
        };
        let path = descriptors.into_iter().find(sealed).expect("it stays open");
        assert!(
            std::fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .is_ok_and(|mut file| {
                    use std::io::Write;
                    file.write_all(b"x").is_err() && file.set_len(0).is_err()
                })
        );
    }

    #[test]
    fn a_refusal_names_no_path_of_ours() {
        let error = open(b"\x7fELF and no more", OsStr::new("libtorn.so"))
            .unwrap_err()
            .to_string();
        assert!(!error.contains('/') && !error.contains('\n'), "{error}");
    }
}
