//! Checks of a library's bytes, made before the system's loader reads them. Mapping a file that was
//! cut short ends the process with a bus error, and the loader's own words about a static library
//! or an archive help nobody.

use anyhow::{Result, bail};

/// Kinds of files that are mistaken for a library: first bytes, description, advice.
const OTHERS: [(&[u8], &str, &str); 6] = [
    (
        b"!<arch>",
        "an archive for the Rust or C compiler",
        "set `crate-type = [\"cdylib\"]` in the plugin's Cargo.toml and build it again",
    ),
    (
        b"MZ",
        "a library or program for Windows",
        "build it for this machine",
    ),
    (
        b"\xcf\xfa\xed\xfe",
        "a library or program for macOS",
        "build it for this machine",
    ),
    (
        b"\xca\xfe\xba\xbe",
        "a library or program for macOS",
        "build it for this machine",
    ),
    (b"PK", "a zip archive", "unpack it, and give the library"),
    (
        b"\x1f\x8b",
        "a gzip archive",
        "unpack it, and give the library",
    ),
];

/// Number of bytes at a file's beginning by which [`check_beginning`] judges it, the length of a
/// 64-bit header.
pub const BEGINNING: u64 = 64;

/// Refuses bytes that are no library for this machine. It also refuses bytes that end before their
/// segments do: mapping such a file would end this process with a bus error.
///
/// # Errors
///
/// When the bytes are no such library. The message says what they are instead; `shown` is their
/// name.
pub fn check(bytes: &[u8], shown: &str) -> Result<()> {
    check_beginning(bytes, shown)?;
    let have = bytes.len() as u64;
    let want = end_of_segments(bytes).unwrap_or(0);
    if have < want {
        bail!("`{shown}` is cut short: {have} bytes of at least {want} (build or copy it again)");
    }
    Ok(())
}

/// Refuses a file that begins with `bytes`, if it cannot be a library for this machine. The caller
/// asks this before it reads the rest of the file, which may be large.
///
/// # Errors
///
/// When the first bytes are not those of a library for this machine.
pub fn check_beginning(bytes: &[u8], shown: &str) -> Result<()> {
    if bytes.is_empty() {
        bail!("`{shown}` is empty (build or copy it again)");
    }
    if cfg!(target_os = "linux") && !bytes.starts_with(b"\x7fELF") {
        if let Some((_, kind, advice)) = OTHERS
            .iter()
            .find(|(beginning, _, _)| bytes.starts_with(beginning))
        {
            bail!("`{shown}` is not a shared library but {kind} ({advice})");
        }
        bail!(
            "`{shown}` is not a shared library: it has no ELF header (a plugin is a crate with \
             `crate-type = [\"cdylib\"]`; give the `.so` in its `target/release`)"
        );
    }
    if bytes.starts_with(b"\x7fELF\x01") && cfg!(target_pointer_width = "64") {
        bail!(
            "`{shown}` is a 32-bit library, this host is a 64-bit program (build it for this \
             machine)"
        );
    }
    if let (Some(of), Some(here)) = (machine(bytes), own_machine())
        && of != here
    {
        bail!(
            "`{shown}` was built for {}, this host runs on {} (build it for this machine)",
            cpu(of),
            cpu(here)
        );
    }
    Ok(())
}

/// Reads the little-endian number of `size` bytes at offset `at`.
fn number(bytes: &[u8], at: u64, size: usize) -> Option<u64> {
    let field = bytes.get(usize::try_from(at).ok()?..)?.get(..size)?;
    Some(
        field
            .iter()
            .rev()
            .fold(0_u64, |number, &byte| number << 8 | u64::from(byte)),
    )
}

fn is_elf64(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x7fELF\x02\x01")
}

/// ELF's number for the kind of CPU that a library is built for; `None` for any other file.
fn machine(bytes: &[u8]) -> Option<u64> {
    number(bytes, 18, 2).filter(|_| is_elf64(bytes))
}

fn own_machine() -> Option<u64> {
    match std::env::consts::ARCH {
        "x86_64" => Some(62),
        "aarch64" => Some(183),
        _ => None,
    }
}

fn cpu(machine: u64) -> String {
    match machine {
        62 => "x86-64".into(),
        183 => "AArch64".into(),
        243 => "RISC-V".into(),
        other => format!("another kind of CPU (ELF machine {other})"),
    }
}

/// Offset in bytes at which the last segment of a 64-bit little-endian ELF file ends; `None` for
/// any other file.
fn end_of_segments(bytes: &[u8]) -> Option<u64> {
    if !is_elf64(bytes) {
        return None;
    }
    let table = number(bytes, 32, 8)?;
    let size = number(bytes, 54, 2)?;
    let count = number(bytes, 56, 2)?;
    let mut last = 0;
    for index in 0..count {
        let header = table.checked_add(index * size)?;
        let begin = number(bytes, header.checked_add(8)?, 8)?;
        let length = number(bytes, header.checked_add(32)?, 8)?;
        last = last.max(begin.checked_add(length)?);
    }
    Some(last)
}
