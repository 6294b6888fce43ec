//! Finding a plugin's file by its name, and listing the installed plugins.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

use capo_system::terminal::warn;

/// The folder of the plugins that came with this program. It is set only if the plugins are not
/// beside an executable.
static CARRIED: OnceLock<PathBuf> = OnceLock::new();

/// Sets the folder of the plugins that came with this program. A program that is loaded by another,
/// such as a Python module, needs this. Only the first call has an effect.
pub fn carried_in(folder: PathBuf) {
    CARRIED.get_or_init(|| folder);
}

/// Lists the libraries in the folder that [`carried_in`] set, by name; empty if it was not called.
/// No library is opened.
pub fn carried() -> Vec<PathBuf> {
    CARRIED
        .get()
        .map(|folder| libraries(folder))
        .unwrap_or_default()
}

/// Paths to try for a plugin's file or its crate's name, in this order: as given, `./`, each folder
/// of `$CAPO_PLUGIN_PATH`, beside the executable, in the folder of plugins that came with the
/// program, in the folder of installed plugins.
///
/// Places that the user names come first. Installed plugins come last, so that no installed plugin
/// takes the place of one that came with the executable.
fn candidates(name: &Path) -> Vec<PathBuf> {
    // `dlopen` searches the system's folders for a bare name, not the working directory. Therefore
    // it is never given a bare name.
    if name.components().count() > 1 {
        return vec![name.to_owned()];
    }
    let beside = env::current_exe()
        .ok()
        .and_then(|exe| exe.parent().map(Path::to_owned));
    let came_along = beside.into_iter().chain(CARRIED.get().cloned());
    let folders = std::iter::once(PathBuf::from("."))
        .chain(listed_folders())
        .chain(came_along)
        .chain(data_folder());
    let names: Vec<PathBuf> = std::iter::once(name.to_owned())
        .chain(library(name))
        .collect();
    let folders: Vec<PathBuf> = folders.collect();
    names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .collect()
}

/// File name of the library of a crate, as `libcapo.so` of `capo`; `None` for the name of a file.
fn library(name: &Path) -> Option<PathBuf> {
    let name = name
        .to_str()
        .filter(|name| !name.contains('.'))?
        .replace('-', "_");
    Some(
        format!(
            "{}{name}{}",
            env::consts::DLL_PREFIX,
            env::consts::DLL_SUFFIX
        )
        .into(),
    )
}

/// File name of a plugin that can be found and whose name says that it has the component `id`, as
/// `libcapo.so` of `capo.curvature`.
pub(crate) fn carrier(id: &str) -> Option<String> {
    let vendor = id
        .split('.')
        .next()
        .filter(|vendor| !vendor.contains(['/', '\\']))?;
    let library = library(Path::new(vendor)).filter(|library| find(library).is_ok())?;
    Some(library.display().to_string())
}

/// Returns the folders of `$CAPO_PLUGIN_PATH`.
fn listed_folders() -> Vec<PathBuf> {
    let listed = env::var_os("CAPO_PLUGIN_PATH").unwrap_or_default();
    env::split_paths(&listed)
        .filter(|folder| !folder.as_os_str().is_empty())
        .collect()
}

/// Returns the user's folder of installed plugins; `None` without a home.
fn data_folder() -> Option<PathBuf> {
    data_folder_of(env::var_os("XDG_DATA_HOME"), env::var_os("HOME"))
}

/// The folder of installed plugins for these values of `$XDG_DATA_HOME` and `$HOME`; relative paths
/// are ignored.
fn data_folder_of(data: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute =
        |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute(data).or_else(|| Some(absolute(home)?.join(".local/share")));
    Some(data?.join("capo/plugins"))
}

/// Lists the libraries in the folders of `$CAPO_PLUGIN_PATH` and in the user's folder, by folder
/// and name. No library is opened.
pub fn installed() -> Vec<PathBuf> {
    listed_folders()
        .into_iter()
        .chain(data_folder())
        .flat_map(|folder| libraries(&folder))
        .collect()
}

/// Lists the files in `folder` that are named like libraries, by name. A folder that cannot be read
/// gives a warning and no files.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Vec::new();
        }
        Err(error) => {
            warn(&format!(
                "folder `{}` of plugins cannot be read: {error}",
                folder.display()
            ));
            return Vec::new();
        }
    };
    let mut found: Vec<_> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|end| end == env::consts::DLL_EXTENSION)
                && path.is_file()
        })
        .collect();
    found.sort();
    found
}

/// The file of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Path by which it was found; links may be on its way.
    pub named: PathBuf,
    /// Absolute path of the file, without links.
    pub path: PathBuf,
}

/// Finds the file of `--plugin name`.
///
/// # Errors
///
/// When there is no such file. The message lists every path that was tried, or says what is there
/// instead.
pub fn find(name: &Path) -> Result<Found> {
    let candidates = candidates(name);
    if let Some(found) = candidates.iter().find(|path| path.is_file()) {
        let path = found.canonicalize().with_context(|| cannot_open(found))?;
        return Ok(Found {
            named: found.clone(),
            path,
        });
    }
    for path in &candidates {
        let kind = match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => "a folder",
            Ok(_) => "no regular file",
            Err(error)
                if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) =>
            {
                continue;
            }
            Err(error) => return Err(error).with_context(|| cannot_open(path)),
        };
        bail!(
            "plugin `{}` is {kind} (give the path of a library)",
            path.display()
        );
    }
    let tried = candidates
        .iter()
        .map(|path| format!("`{}`", path.display()))
        .collect::<Vec<_>>()
        .join(", ");
    bail!(
        "plugin `{}` was not found; tried {tried} (give its path, or name its folder in \
         `CAPO_PLUGIN_PATH`)",
        name.display()
    );
}

fn cannot_open(path: &Path) -> String {
    format!("plugin `{}` cannot be opened", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_plugins_are_installed() {
        let folder = |data: Option<&str>, home: Option<&str>| {
            data_folder_of(data.map(Into::into), home.map(Into::into))
        };
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(
            folder(Some("/data"), Some("/home/a")),
            at("/data/capo/plugins")
        );
        assert_eq!(folder(Some("/data"), None), at("/data/capo/plugins"));
        for unset in [None, Some(""), Some("data")] {
            assert_eq!(
                folder(unset, Some("/home/a")),
                at("/home/a/.local/share/capo/plugins"),
                "{unset:?}"
            );
            assert_eq!(folder(unset, unset), None, "{unset:?}");
        }
    }

    #[test]
    fn libraries_are_listed_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let library = |name: &str| {
            folder
                .path()
                .join(name)
                .with_extension(env::consts::DLL_EXTENSION)
        };
        for file in [
            library("libb"),
            library("liba"),
            folder.path().join("README.md"),
        ] {
            std::fs::write(file, "").unwrap();
        }
        std::fs::create_dir(library("folder")).unwrap();
        assert_eq!(libraries(folder.path()), [library("liba"), library("libb")]);
        assert!(libraries(&folder.path().join("absent")).is_empty());
    }
}
