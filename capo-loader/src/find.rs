//! Finding the file that a plugin's name means.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Where to look for a plugin, in this order: as given, `./`, each folder of `$CAPO_PLUGIN_PATH`, beside the executable.
fn candidates(name: &Path) -> Vec<PathBuf> {
    // `dlopen` searches the system's folders for a bare name, not the working directory; so a bare name is never given
    // to it.
    if name.components().count() > 1 {
        return vec![name.to_owned()];
    }
    let listed = std::env::var_os("CAPO_PLUGIN_PATH").unwrap_or_default();
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let folders = std::iter::once(PathBuf::from(".")).chain(std::env::split_paths(&listed)).chain(beside);
    folders.filter(|folder| !folder.as_os_str().is_empty()).map(|folder| folder.join(name)).collect()
}

/// The file that `--plugin name` means, absolute.
///
/// # Errors
///
/// When there is none: every place that was tried, or what lies there instead.
pub fn find(name: &Path) -> Result<PathBuf> {
    let candidates = candidates(name);
    let cannot = |path: &Path| format!("plugin `{}` cannot be opened", path.display());
    if let Some(found) = candidates.iter().find(|path| path.is_file()) {
        return found.canonicalize().with_context(|| cannot(found));
    }
    for path in &candidates {
        let kind = match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => "a folder",
            Ok(_) => "no regular file",
            Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => continue,
            Err(error) => return Err(error).with_context(|| cannot(path)),
        };
        bail!("plugin `{}` is {kind} (give the path of a library)", path.display());
    }
    let tried = candidates.iter().map(|path| format!("`{}`", path.display())).collect::<Vec<_>>().join(", ");
    bail!(
        "plugin `{}` was not found; tried {tried} (give its path, or name its folder in `CAPO_PLUGIN_PATH`)",
        name.display()
    );
}
