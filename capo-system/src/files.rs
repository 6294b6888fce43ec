//! Writing files so that an interruption leaves them whole or absent, and reading regular files
//! only.

use std::fs::{self, FileType, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, IntoInnerError, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::memory;

/// Prefix of the names of unfinished files and folders. The process that writes one holds a lock on
/// it; [`crate::folders::sweep`] removes those of dead processes.
pub const PARTIAL: &str = ".partial-capo-";

/// Replaces the file at `path` by `bytes` in one step: after an interruption it holds either the
/// old bytes or the new bytes.
///
/// Writes a temporary file in the same directory, syncs it, renames it over `path` and syncs the
/// directory. An error names `path` and leaves the old file unchanged. Only a plain file is
/// replaced, never a device, a pipe, a link or a folder.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    write_new(path, bytes).with_context(|| format!("cannot write `{}`", path.display()))
}

fn write_new(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Refuses a `path` that [`write_atomic`] would refuse: an entry that exists and is not a plain
/// file.
pub fn check_replaceable(path: &Path) -> Result<()> {
    let other = path.symlink_metadata().is_ok_and(|found| !found.is_file());
    ensure!(
        !other,
        "`{}` exists and is not a plain file (choose another name)",
        path.display()
    );
    Ok(())
}

/// A file that is written piece by piece. As with [`write_atomic`], it gets its name when it is
/// whole; dropped earlier, it leaves nothing.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
}

impl NewFile {
    /// Creates a temporary file beside `path`. Fails as [`check_replaceable`] does, and when the
    /// directory cannot be written to.
    pub fn create(path: &Path) -> Result<Self> {
        check_replaceable(path)?;
        Ok(Self {
            path: path.to_owned(),
            file: BufWriter::new(partial_file(folder(path))?),
        })
    }

    /// Path of the temporary file, valid until [`Self::finish`].
    pub fn partial(&self) -> &Path {
        self.file.get_ref().path()
    }

    /// Gives the file its final name and replaces any file of that name.
    pub fn finish(self) -> Result<()> {
        let temporary = self.file.into_inner().map_err(IntoInnerError::into_error)?;
        temporary.as_file().sync_all()?;
        temporary.persist(&self.path)?;
        // A rename is durable once its directory is synced.
        fs::File::open(folder(&self.path))?.sync_all()?;
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A new temporary file in `folder`. This process holds its lock, unless the file system has none:
/// then nothing is swept there.
fn partial_file(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PARTIAL);
    // The process's umask applies, as for any new file; the default mode would let only the owner
    // read it.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    loop {
        let file = builder.tempfile_in(folder)?;
        // Until this process holds the lock, another process that sweeps the folder takes this file
        // for an abandoned one.
        let is_swept = match file.as_file().try_lock() {
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(_)) | Ok(()) => file.path().symlink_metadata().is_err(),
        };
        if !is_swept {
            return Ok(file);
        }
    }
}

/// The directory that a file is in.
pub(crate) fn folder(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Sizes of a file to which a line was appended, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Its size before; 0 if it was absent.
    pub before: u64,
    /// Its size afterwards.
    pub after: u64,
}

/// Appends `line` and a line break to the file at `path` with one write call. The file is created
/// if absent.
///
/// A line that contains a line break is an error, as is any failure to write, and a `path` that
/// [`open_plain`] refuses; all messages name `path`.
pub fn append_line(path: &Path, line: &str) -> Result<Appended> {
    ensure!(
        !line.contains('\n'),
        "a line for `{}` contains a line break",
        path.display()
    );
    append(path, line).with_context(|| format!("cannot append to `{}`", path.display()))
}

fn append(path: &Path, line: &str) -> io::Result<Appended> {
    let mut file = open_plain(path, OpenOptions::new().create(true).append(true))?;
    let before = file.metadata()?.len();
    let line = format!("{line}\n");
    file.write_all(line.as_bytes())?;
    Ok(Appended {
        before,
        after: before + line.len() as u64,
    })
}

/// Opens the regular file at `path` without following a link. All files that are changed in place
/// are opened by this function, because through a link a file elsewhere would change.
///
/// A link, a pipe, a device or a folder is an error. It is not opened, because opening a pipe would
/// wait for another process.
pub fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<fs::File> {
    if let Ok(found) = path.symlink_metadata() {
        check_plain(found.file_type())?;
    }
    // The entry may be replaced after this look: then the system refuses a link, and does not wait
    // at a pipe.
    let file = options
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    check_plain(file.metadata()?.file_type())?;
    Ok(file)
}

fn check_plain(found: FileType) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        format!(
            "it is {}, not a regular file (remove it, or put a file in its place)",
            kind(found)
        ),
    ))
}

/// Reads the whole regular file at `path`, as [`bytes`] does; an error names it.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    bytes(path).with_context(|| format!("cannot read `{}`", path.display()))
}

/// Returns the bytes of the regular file at `path`. Fails as [`size`] does, and when the file is
/// larger than the available memory.
pub fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    fits_memory(size(path)?)?;
    fs::read(path)
}

/// Refuses a file of `size` bytes that is larger than the available memory.
pub fn fits_memory(size: u64) -> io::Result<()> {
    let Some(free) = memory::available().filter(|free| size > *free) else {
        return Ok(());
    };
    let size = memory::text(size.into());
    let free = memory::text(free.into());
    let sentence = format!("it takes {size}, and {free} of memory are free (use a larger machine)");
    Err(io::Error::new(ErrorKind::OutOfMemory, sentence))
}

/// Returns the size of the regular file at `path`, in bytes.
///
/// A pipe, a device or a folder is an error and is not opened: opening a pipe would wait for a
/// writer, and a device may have no end.
pub fn size(path: &Path) -> io::Result<u64> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        let sentence = format!(
            "it is {}, not a regular file (give a file)",
            kind(metadata.file_type())
        );
        return Err(io::Error::new(ErrorKind::InvalidInput, sentence));
    }
    Ok(metadata.len())
}

/// Returns the text of the regular file at `path`, which must be UTF-8, without a byte order mark.
/// Fails as [`bytes`] does.
pub fn text(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(bytes(path)?).map_err(|_| {
        io::Error::new(ErrorKind::InvalidData, "stream did not contain valid UTF-8")
    })?;
    Ok(text
        .strip_prefix('\u{feff}')
        .map(str::to_owned)
        .unwrap_or(text))
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_fifo() => "a named pipe",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_block_device() || kind.is_char_device() => "a device",
        _ if kind.is_dir() => "a directory",
        _ if kind.is_symlink() => "a symbolic link",
        _ => "something else",
    }
}

/// Returns the SHA-256 of the regular file at `path` in hexadecimal, read piece by piece. Fails as
/// [`size`] does, with the path.
pub fn sha256_of(path: &Path) -> Result<String> {
    let digest = digest(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    Ok(hex(&digest.finalize()))
}

fn digest(path: &Path) -> io::Result<Sha256> {
    size(path)?;
    let mut file = fs::File::open(path)?;
    let mut piece = vec![0; 1 << 20];
    let mut digest = Sha256::new();
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(digest),
            count => digest.update(&piece[..count]),
        }
    }
}

/// Returns the SHA-256 of `bytes` as 64 lowercase hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_read_in_pieces_equals_that_of_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for size in [0_u64, 1, (1 << 20) - 1, 1 << 20, (1 << 21) + 5] {
            let bytes: Vec<u8> = (0..size).map(|i| (i * i % 251) as u8).collect();
            fs::write(&path, &bytes).unwrap();
            assert_eq!(
                sha256_of(&path).unwrap(),
                sha256_hex(&bytes),
                "{size} bytes"
            );
        }
        assert!(sha256_of(folder.path()).is_err(), "a folder has none");
    }

    #[test]
    fn write_atomic_replaces_and_leaves_no_other_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        write_atomic(&path, b"old").unwrap();
        write_atomic(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_keeps_the_old_file_and_names_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("taken");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("inside"), b"kept").unwrap();
        let error = write_atomic(&path, b"new").unwrap_err().to_string();
        assert_eq!(error, format!("cannot write `{}`", path.display()));
        assert_eq!(fs::read(path.join("inside")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("taken/inside", &link).unwrap();
        assert!(write_atomic(&link, b"new").is_err(), "a link stays a link");
        assert_eq!(fs::read(&link).unwrap(), b"kept");
        let missing = directory.path().join("absent").join("file");
        assert!(
            write_atomic(&missing, b"new")
                .unwrap_err()
                .to_string()
                .contains("absent")
        );
    }

    #[test]
    fn written_files_have_the_permissions_of_any_new_file() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let ours = directory.path().join("ours");
        let plain = directory.path().join("plain");
        write_atomic(&ours, b"").unwrap();
        fs::write(&plain, b"").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&plain));
    }

    #[test]
    fn append_line_adds_whole_lines_and_refuses_line_breaks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.jsonl");
        assert_eq!(
            append_line(&path, "{}").unwrap(),
            Appended {
                before: 0,
                after: 3
            }
        );
        assert_eq!(
            append_line(&path, "[]").unwrap(),
            Appended {
                before: 3,
                after: 6
            }
        );
        assert!(
            append_line(&path, "a\nb")
                .unwrap_err()
                .to_string()
                .contains("line break")
        );
        assert_eq!(fs::read(&path).unwrap(), b"{}\n[]\n");
        let error = append_line(directory.path(), "{}").unwrap_err().to_string();
        assert_eq!(
            error,
            format!("cannot append to `{}`", directory.path().display())
        );
    }

    #[test]
    fn refuses_links_pipes_and_folders() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("thesis"), "twenty pages").unwrap();
        fs::create_dir(at("folder")).unwrap();
        std::os::unix::fs::symlink("thesis", at("link")).unwrap();
        std::os::unix::fs::symlink("absent", at("dangling")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        for (name, kind) in [
            ("link", "a symbolic link"),
            ("dangling", "a symbolic link"),
            ("pipe", "a named pipe"),
            ("folder", "a directory"),
        ] {
            let sentence = format!("{:#}", append_line(&at(name), "line").unwrap_err());
            let expected =
                format!("it is {kind}, not a regular file (remove it, or put a file in its place)");
            assert!(sentence.ends_with(&expected), "{sentence}");
            assert!(
                open_plain(&at(name), OpenOptions::new().read(true)).is_err(),
                "{name}"
            );
        }
        assert_eq!(fs::read(at("thesis")).unwrap(), b"twenty pages");
        assert!(!at("absent").exists());
    }

    #[test]
    fn refuses_a_file_larger_than_memory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hole");
        fs::File::create(&path).unwrap().set_len(1 << 42).unwrap();
        let sentence = format!("{:#}", read(&path).unwrap_err());
        assert!(sentence.contains("it takes 4.0 TiB, and "), "{sentence}");
    }

    #[test]
    fn sha256_of_the_standard_test_vector() {
        assert_eq!(
            sha256_hex(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
