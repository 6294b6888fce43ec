//! A folder with a manifest: a sealed file that holds the SHA-256 of each file of the folder.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::files::{self, sha256_hex};
use crate::seal;

/// Name of the manifest file; no other tool writes a file of this name into a model's folder.
pub const FILE: &str = "capo-manifest.json";

const HINT: &str = "use another checkpoint; a run whose newest is deleted goes on from the one \
                    before it, or from the start";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// SHA-256 of each file, by name.
    files: BTreeMap<String, String>,
}

/// A folder with a manifest. Every file is compared with the manifest when it is read; files that
/// it does not name are ignored.
#[derive(Debug, Clone)]
pub struct SealedFolder {
    dir: PathBuf,
    files: BTreeMap<String, String>,
}

impl SealedFolder {
    /// Writes the manifest of the folder `dir`, which holds only plain files, and folders of them.
    ///
    /// # Errors
    ///
    /// When a file cannot be read, or the disk reports an error.
    pub fn seal(dir: &Path) -> Result<()> {
        let mut known = BTreeMap::new();
        hash_all(dir, "", &mut known)?;
        seal::write(&dir.join(FILE), &Manifest { files: known })
    }

    /// True if the folder `dir` has a manifest.
    pub fn is_one(dir: &Path) -> bool {
        dir.join(FILE).symlink_metadata().is_ok()
    }

    /// Reads the manifest of the folder `dir`.
    ///
    /// # Errors
    ///
    /// When it is missing or damaged.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let Manifest { files } = seal::read(&path)
            .with_context(|| format!("`{}` is missing or damaged ({HINT})", path.display()))?;
        Ok(Self {
            dir: dir.to_owned(),
            files,
        })
    }

    /// Path of the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Names of the folder's files, without the manifest.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// True if the manifest names the file `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// Returns the bytes of the file `name`, compared with the manifest.
    ///
    /// # Errors
    ///
    /// When the manifest does not name the file, or the file cannot be read or has changed.
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let path = self.dir.join(name);
        self.compare(name, || {
            bytes = files::read(&path)?;
            Ok(sha256_hex(&bytes))
        })?;
        Ok(bytes)
    }

    /// Returns the path of the file `name` after comparing its bytes with the manifest; they are
    /// read piece by piece.
    ///
    /// # Errors
    ///
    /// The errors of [`SealedFolder::read`].
    pub fn verified(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        self.compare(name, || files::sha256_of(&path))?;
        Ok(path)
    }

    fn damaged(&self, name: &str) -> String {
        format!("`{}` is damaged ({HINT})", self.dir.join(name).display())
    }

    /// Refuses the file `name` if its SHA-256 differs from the manifest's.
    fn compare(&self, name: &str, sha256: impl FnOnce() -> Result<String>) -> Result<()> {
        let Some(expected) = self.files.get(name) else {
            bail!("`{}` has no file `{name}`", self.dir.display());
        };
        let found = sha256().map_err(|error| match error.downcast_ref::<io::Error>() {
            Some(cause) if cause.kind() == ErrorKind::PermissionDenied => error,
            _ => error.context(self.damaged(name)),
        })?;
        ensure!(
            found == *expected,
            "{}: SHA-256 {found}, expected {expected}",
            self.damaged(name)
        );
        Ok(())
    }
}

/// Takes the SHA-256 of each file in `dir` and its folders; names begin with `before`.
fn hash_all(dir: &Path, before: &str, known: &mut BTreeMap<String, String>) -> Result<()> {
    for entry in
        std::fs::read_dir(dir).with_context(|| format!("cannot list `{}`", dir.display()))?
    {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .context("a file's name is not text")?;
        if path.is_dir() {
            hash_all(&path, &format!("{before}{name}/"), known)?;
        } else {
            known.insert(format!("{before}{name}"), files::sha256_of(&path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_was_sealed() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("a", "one");
        write("b", "two");
        std::fs::create_dir(dir.path().join("more")).unwrap();
        write("more/d", "four");
        assert!(!SealedFolder::is_one(dir.path()));
        SealedFolder::seal(dir.path()).unwrap();
        assert!(SealedFolder::is_one(dir.path()));
        write("b", "twO");
        write("c", "three");
        let folder = SealedFolder::open(dir.path()).unwrap();
        assert_eq!(folder.names().collect::<Vec<_>>(), ["a", "b", "more/d"]);
        assert_eq!(folder.read("more/d").unwrap(), b"four");
        assert_eq!(folder.read("a").unwrap(), b"one");
        assert_eq!(folder.verified("a").unwrap(), dir.path().join("a"));
        assert_eq!(
            folder.verified("b").unwrap_err().to_string(),
            folder.read("b").unwrap_err().to_string()
        );
        assert!(
            folder
                .read("b")
                .unwrap_err()
                .to_string()
                .contains("/b` is damaged (use another checkpoint")
        );
        assert!(!folder.contains("c"), "what came later is not part of it");
        assert!(folder.read("c").is_err());
        std::fs::remove_file(dir.path().join("a")).unwrap();
        assert!(
            folder
                .read("a")
                .unwrap_err()
                .to_string()
                .contains("/a` is damaged")
        );
        // A manifest that was changed is no manifest.
        let path = dir.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"a\"", "\"b\"")).unwrap();
        let error = format!("{:#}", SealedFolder::open(dir.path()).unwrap_err());
        assert!(error.contains("is damaged: SHA-256"), "{error}");
    }
}
