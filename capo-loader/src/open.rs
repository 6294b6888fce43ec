//! Opening a library as a plugin.

use std::path::Path;

use crate::{elf, sealed};
use anyhow::{Result, anyhow, bail};
use capo_plugin::wire::{
    ABI_VERSION, AbiHeaderRef, HEADER_SYMBOL, LibraryError, PluginRoot_Ref, RECIPES,
};
use capo_plugin::{Image, Point, keeping_arithmetic};
use capo_system::files;

/// Variable by which a library names its own folder, to find other libraries there. A plugin is
/// opened from a copy in another place.
const ORIGIN: &[u8] = b"$ORIGIN";

/// Loads the plugin at `path`. It stays loaded until the process ends.
///
/// # Errors
///
/// The errors of [`load_bytes`], and when the file cannot be read.
pub fn load(path: &Path) -> Result<Image> {
    let bytes = files::read(path)?;
    keeping_arithmetic(|| load_bytes(path, &bytes))
}

/// Loads a plugin from its `bytes`. Their file `path` gives the plugin its name and is not read
/// again. The plugin stays loaded until the process ends.
///
/// # Errors
///
/// When the bytes are not a shared library, not a plugin, built for another ABI, or a plugin that
/// offers nothing. The message is one sentence; abi_stable's own message, if any, is its cause.
pub fn load_bytes(path: &Path, bytes: &[u8]) -> Result<Image> {
    let shown = path.display();
    elf::check(bytes, &shown.to_string())?;
    let library = sealed::open(bytes, path.file_name().unwrap_or_default()).map_err(|error| {
        let names_origin = bytes.windows(ORIGIN.len()).any(|window| window == ORIGIN);
        let advice = if names_origin {
            " (what it needs is not looked up beside it, by `$ORIGIN`: name that folder in \
             `LD_LIBRARY_PATH`)"
        } else {
            ""
        };
        anyhow!("`{shown}` cannot be opened as a shared library: {error}{advice}")
    })?;
    // SAFETY: a symbol of this name is abi_stable's header. `upgrade` checks its magic bytes before
    // it reads anything else.
    let header =
        unsafe { library.get::<AbiHeaderRef>(HEADER_SYMBOL.as_bytes()) }.map(|symbol| *symbol);
    // Never unloaded: components, their strings and their layouts are part of the library.
    std::mem::forget(library);
    let Ok(header) = header else {
        bail!(
            "`{shown}` is a shared library but not a plugin (build it against `capo-plugin` with \
             `crate-type = [\"cdylib\"]`, and register a component)"
        );
    };
    let root = header
        .upgrade()
        .and_then(|header| header.init_root_module::<PluginRoot_Ref>())
        .map_err(|error| incompatible(path, error))?;
    let image = Image::from_root(root);
    if image.abi_version() != ABI_VERSION {
        bail!(
            "`{shown}` speaks plugin ABI {}, this host speaks {ABI_VERSION} (rebuild the plugin \
             against `capo-plugin` 1.x)",
            image.abi_version()
        );
    }
    let mut offered = 0;
    for point in Point::ALL {
        offered += image
            .components(point)
            .map_err(|differences| other_layout(path, point.extension_id(), differences))?
            .len();
    }
    offered += image
        .recipes()
        .map_err(|differences| other_layout(path, RECIPES, differences))?
        .len();
    if offered == 0 {
        bail!("`{shown}` is a plugin that offers nothing (call `register!` or `recipe!` in it)");
    }
    Ok(image)
}

/// The refusal of a plugin that compiled other types under the extension `id`.
fn other_layout(path: &Path, id: &str, differences: String) -> anyhow::Error {
    anyhow!(differences).context(format!(
        "`{}` has another layout under extension `{id}` (rebuild it against a released \
         `capo-plugin`)",
        path.display()
    ))
}

/// The refusal of a plugin that abi_stable does not load.
fn incompatible(path: &Path, error: LibraryError) -> anyhow::Error {
    let shown = path.display();
    let sentence = match &error {
        LibraryError::InvalidAbiHeader(_) => {
            format!("`{shown}` was built with an incompatible abi_stable")
        }
        LibraryError::IncompatibleVersionNumber {
            expected_version,
            actual_version,
            ..
        } => {
            format!(
                "`{shown}` was built against capo-plugin {actual_version}, this host speaks \
                 {expected_version}"
            )
        }
        LibraryError::AbiInstability(_) => {
            format!("`{shown}` has another layout of the plugin root than this host")
        }
        _ => format!("`{shown}` could not be started as a plugin"),
    };
    anyhow!(error.to_string()).context(format!(
        "{sentence} (rebuild it against `capo-plugin` 1.x; `--verbose` shows the differences)"
    ))
}
