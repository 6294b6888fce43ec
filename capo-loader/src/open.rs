//! Opening a library as a plugin.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use capo_plugin::abi::{ABI_VERSION, AbiHeaderRef, HEADER_SYMBOL, LibraryError, PluginRoot_Ref, RECIPE_POINT};
use capo_plugin::{Image, Point};
use libloading::Library;

use crate::files;

/// Loads the plugin at `path`. It stays loaded until the process ends.
///
/// # Errors
///
/// When the file is not a shared library, not a plugin, or built for another ABI: one sentence, with abi_stable's
/// account as its cause where there is one.
pub fn load(path: &Path) -> Result<Image> {
    let shown = path.display();
    check_file(path)?;
    // SAFETY: loading runs the library's initialisers. A plugin is native code that the user chose to run with their own
    // rights.
    let library = unsafe { Library::new(path) }
        .map_err(|error| anyhow!("`{shown}` cannot be opened as a shared library: {}", one_line(&error)))?;
    // SAFETY: a symbol of this name is abi_stable's header; its magic bytes are checked by `upgrade` before anything else
    // is read.
    let header = unsafe { library.get::<AbiHeaderRef>(HEADER_SYMBOL.as_bytes()) }.map(|symbol| *symbol);
    // Never unloaded: components, their strings and their layouts live in it.
    std::mem::forget(library);
    let Ok(header) = header else {
        bail!(
            "`{shown}` is a shared library but not a plugin (build it against `capo-plugin` with `crate-type = [\"cdylib\"]`, and register a component)"
        );
    };
    let root = header
        .upgrade()
        .and_then(|header| header.init_root_module::<PluginRoot_Ref>())
        .map_err(|error| incompatible(path, error))?;
    let image = Image::from_root(root);
    if image.abi_version() != ABI_VERSION {
        bail!(
            "`{shown}` speaks plugin ABI {}, this host speaks {ABI_VERSION} (rebuild the plugin against `capo-plugin` 1.x)",
            image.abi_version()
        );
    }
    let refused = |id: &str, differences: String| {
        anyhow!(differences).context(format!(
            "`{shown}` has another layout under extension `{id}` (rebuild it against a released `capo-plugin`)"
        ))
    };
    for point in Point::ALL {
        image.components(point).map_err(|differences| refused(point.extension_id(), differences))?;
    }
    image.recipes().map_err(|differences| refused(RECIPE_POINT, differences))?;
    Ok(image)
}

/// Refuses a file that is no library for this machine, and one that ends before its segments do: mapping that would end this
/// process with a bus error.
fn check_file(path: &Path) -> Result<()> {
    let (bytes, shown) = (files::read(path)?, path.display());
    if bytes.is_empty() {
        bail!("`{shown}` is empty (build or copy it again)");
    }
    if cfg!(target_os = "linux") && !bytes.starts_with(b"\x7fELF") {
        bail!("`{shown}` is not a shared library: it has no ELF header (give the `.so` that `cargo build` made)");
    }
    if bytes.starts_with(b"\x7fELF\x01") && cfg!(target_pointer_width = "64") {
        bail!("`{shown}` is a 32-bit library, this host is a 64-bit program (build it for this machine)");
    }
    let (have, want) = (bytes.len() as u64, end_of_segments(&bytes).unwrap_or(0));
    if have < want {
        bail!("`{shown}` is cut short: {have} bytes of at least {want} (build or copy it again)");
    }
    Ok(())
}

/// Where the last segment of a 64-bit little-endian ELF file ends, in bytes; none for any other file.
fn end_of_segments(bytes: &[u8]) -> Option<u64> {
    let number = |at: u64, size: usize| {
        let field = bytes.get(usize::try_from(at).ok()?..)?.get(..size)?;
        Some(field.iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte)))
    };
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let end = |header: u64| number(header.checked_add(8)?, 8)?.checked_add(number(header.checked_add(32)?, 8)?);
    (0..count).map(|index| end(table.checked_add(index * size)?)).try_fold(0, |last, end| Some(last.max(end?)))
}

fn incompatible(path: &Path, error: LibraryError) -> anyhow::Error {
    let shown = path.display();
    let sentence = match &error {
        LibraryError::InvalidAbiHeader(_) => format!("`{shown}` was built with an incompatible abi_stable"),
        LibraryError::IncompatibleVersionNumber { expected_version, actual_version, .. } => {
            format!("`{shown}` was built against capo-plugin {actual_version}, this host speaks {expected_version}")
        }
        LibraryError::AbiInstability(_) => format!("`{shown}` has another layout of the plugin root than this host"),
        _ => format!("`{shown}` could not be started as a plugin"),
    };
    anyhow!(error.to_string())
        .context(format!("{sentence} (rebuild it against `capo-plugin` 1.x; `--verbose` shows the differences)"))
}

fn one_line(error: &dyn std::error::Error) -> String {
    // libloading says only that opening failed; the reason is its source.
    let source = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    source.replace('\n', " ")
}
