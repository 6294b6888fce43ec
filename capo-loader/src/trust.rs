//! Checks of the files that may be loaded as plugins: pins, permissions, and the plugins that a
//! resumed run began with.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::elf;
use crate::find::{Found, find};
use crate::owner::{self, Access};
use capo_system::files::{self, sha256_hex};
use capo_system::memory;

/// Separator between a plugin's name and the SHA-256 to which it is pinned, as in
/// `libcapo.so@sha256:5ce1...`.
pub const PIN: &str = "@sha256:";

/// The largest plugin that is read, in bytes; libraries with kernels for many GPUs take a quarter
/// of it.
const LARGEST: u64 = 4 << 30;

/// The command-line flag that sets [`Trust::unsafe_path`].
const UNSAFE_PATH: &str = "--allow-unsafe-plugin-path";

/// Checks of a plugin's file before it is loaded. The default refuses files that other users may
/// change, and accepts any hash.
#[derive(Debug, Clone, Default)]
pub struct Trust {
    /// Accept files that other users may change or replace.
    pub unsafe_path: bool,
    /// Accept only these files, by their hashes: the plugins of the run that is resumed.
    pub known: Option<Vec<LoadedPlugin>>,
}

/// A plugin that was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadedPlugin {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// The crates that registered the plugin's components, each with its version.
    pub packages: Vec<String>,
    /// SHA-256 of the file.
    pub sha256: String,
    /// Ids of the components that the plugin offers.
    pub components: Vec<String>,
}

/// A file that passed the checks, with the bytes that were checked. Later changes of the file have
/// no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedFile {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// SHA-256 of the bytes.
    pub sha256: String,
    /// The bytes to load as a plugin.
    pub bytes: Vec<u8>,
}

impl Trust {
    /// Finds the plugin of `--plugin name` and checks it. None of its code has run yet.
    ///
    /// # Errors
    ///
    /// When the plugin is not found or no library, another user may change or replace it, or its
    /// hash differs from its pin or from the hash that the run began with.
    pub fn check(&self, name: &Path) -> Result<TrustedFile> {
        let (name, pin) = split_pin(name)?;
        let found = find(&name)?;
        let bytes = self.read(&found)?;
        let sha256 = sha256_hex(&bytes);
        let path = found.path;
        let shown = path.display();
        if let Some(pin) = pin.filter(|pin| *pin != sha256) {
            bail!(
                "plugin `{shown}` has SHA-256 {sha256} but is pinned to {pin} (get the file that \
                 was pinned, or pin this one if you trust it)"
            );
        }
        if let Some(known) = &self.known {
            check_known(known, &path, &sha256)?;
        }
        Ok(TrustedFile {
            path,
            sha256,
            bytes,
        })
    }

    /// Reads the file through one open handle, so that the file whose owner is checked is the one
    /// whose bytes are read.
    fn read(&self, found: &Found) -> Result<Vec<u8>> {
        let shown = found.path.display();
        // Passed on to each step of the reading.
        let unreadable = || format!("plugin `{shown}` cannot be read");
        let mut file = files::open_plain(&found.path, OpenOptions::new().read(true))
            .with_context(unreadable)?;
        if !self.unsafe_path {
            let access = Access::of_open(&file).with_context(unreadable)?;
            owner::check(found, &access, UNSAFE_PATH)?;
        }
        let beginning = beginning(&mut file).with_context(unreadable)?;
        elf::check_beginning(&beginning, &shown.to_string())?;
        let size = file.metadata().with_context(unreadable)?.len();
        ensure!(
            size <= LARGEST,
            "plugin `{shown}` takes {}, and a plugin has at most {} (build or copy it again)",
            memory::text(size.into()),
            memory::text(LARGEST.into())
        );
        files::fits_memory(size).with_context(unreadable)?;
        let mut bytes = Vec::new();
        (&file)
            .take(LARGEST)
            .read_to_end(&mut bytes)
            .with_context(unreadable)?;
        // A file that is being rewritten in place may be read half old, half new.
        let is_same = file
            .rewind()
            .and_then(|()| holds(&mut file, &bytes))
            .with_context(unreadable)?;
        ensure!(
            is_same,
            "plugin `{shown}` changed while it was read (run again when it is whole)"
        );
        Ok(bytes)
    }
}

/// The first bytes of `file`, which is then read from its beginning again.
fn beginning(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(elf::BEGINNING).read_to_end(&mut bytes)?;
    file.rewind()?;
    Ok(bytes)
}

/// True if the rest of `file` is `bytes`. It is read piece by piece.
fn holds(file: &mut File, bytes: &[u8]) -> io::Result<bool> {
    let mut rest = bytes;
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut piece)?;
        match rest.split_at_checked(read) {
            _ if read == 0 => return Ok(rest.is_empty()),
            Some((next, others)) if next == &piece[..read] => rest = others,
            _ => return Ok(false),
        }
    }
}

fn split_pin(name: &Path) -> Result<(PathBuf, Option<String>)> {
    let Some((file, pin)) = name.to_str().and_then(|name| name.rsplit_once(PIN)) else {
        return Ok((name.to_owned(), None));
    };
    let hexadecimal = pin.bytes().all(|byte| byte.is_ascii_hexdigit());
    ensure!(
        pin.len() == 64 && hexadecimal,
        "`--plugin {}` is not pinned to a SHA-256: `{pin}` is not 64 hexadecimal digits \
         (`host plugins --hash --plugin {}` prints them)",
        name.display(),
        file
    );
    Ok((PathBuf::from(file), Some(pin.to_ascii_lowercase())))
}

fn check_known(known: &[LoadedPlugin], path: &Path, sha256: &str) -> Result<()> {
    if known.iter().any(|plugin| plugin.sha256 == sha256) {
        return Ok(());
    }
    let same_path = known.iter().find(|plugin| plugin.path == path);
    let same_name = known
        .iter()
        .find(|plugin| plugin.path.file_name() == path.file_name());
    let shown = path.display();
    let ways = "`--allow-changed-plugins` goes on with this file";
    let Some(before) = same_path.or(same_name) else {
        bail!(
            "plugin `{shown}` with SHA-256 {sha256} is none of those that the run used (give \
             their files; {ways})"
        );
    };
    let packages = if before.packages.is_empty() {
        String::new()
    } else {
        before.packages.join(", ") + " with "
    };
    bail!(
        "plugin `{shown}` has changed since the run used it: it was {packages}SHA-256 {} and now \
         has SHA-256 {sha256} (put the old file back; {ways})",
        before.sha256
    )
}
