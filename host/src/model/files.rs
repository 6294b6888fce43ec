//! Where the files of a model come from.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow, bail};
use capo_loader::files;
use capo_loader::manifest::SealedFolder;

/// The files of one model: a Hugging Face directory, or bytes inside the executable.
#[derive(Debug, Clone)]
pub enum ModelFiles {
    /// A directory on disk.
    Directory(PathBuf),
    /// A directory with a manifest, as checkpoints have: every file is compared with it.
    Checkpoint(SealedFolder),
    /// Pairs of file name and contents.
    Embedded(&'static [(&'static str, &'static [u8])]),
    /// An adapter's files, and those of the model that it belongs to.
    Adapter {
        /// The adapter's own.
        own: Box<ModelFiles>,
        /// Its base's.
        base: Box<ModelFiles>,
    },
}

impl ModelFiles {
    /// The whole contents of the file `name`; a missing or unreadable file is an error that names its path.
    pub fn read(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::Directory(directory) => {
                let path = directory.join(name);
                Ok(Cow::Owned(files::bytes(&path).map_err(|error| unreadable(&path, &error))?))
            }
            Self::Checkpoint(folder) => folder.read(name).map(Cow::Owned),
            Self::Adapter { .. } => self.holder(name).read(name),
            Self::Embedded(files) => match files.iter().find(|(file, _)| *file == name) {
                Some((_, bytes)) => Ok(Cow::Borrowed(bytes)),
                None => bail!("the built-in model has no file `{name}` (give a model directory instead)"),
            },
        }
    }

    /// The size of the file `name`, bytes; a missing file is an error that names its path.
    pub fn size(&self, name: &str) -> Result<u64> {
        match self {
            Self::Directory(directory) => size(&directory.join(name)),
            Self::Checkpoint(folder) => size(&folder.dir().join(name)),
            Self::Adapter { .. } => self.holder(name).size(name),
            Self::Embedded(_) => Ok(self.read(name)?.len() as u64),
        }
    }

    /// Whether there is a file `name`, be it one that cannot be read.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::Directory(directory) => directory.join(name).exists(),
            Self::Checkpoint(folder) => folder.contains(name),
            Self::Adapter { .. } => self.holder(name).contains(name),
            Self::Embedded(files) => files.iter().any(|(file, _)| *file == name),
        }
    }

    /// The path of the file `name` in backticks, for messages.
    pub fn describe(&self, name: &str) -> String {
        match self {
            Self::Directory(directory) => format!("`{}`", directory.join(name).display()),
            Self::Checkpoint(folder) => format!("`{}`", folder.dir().join(name).display()),
            Self::Adapter { .. } => self.holder(name).describe(name),
            Self::Embedded(_) => format!("`{name}` of the built-in model"),
        }
    }

    /// Where the file `name` is looked for: what makes the base is the base's, of the rest an adapter's own comes first.
    fn holder(&self, name: &str) -> &Self {
        match self {
            Self::Adapter { own, base } => {
                let of_base = name == "config.json" || name.starts_with("model.safetensors");
                if !of_base && own.contains(name) { own } else { base }
            }
            whole => whole,
        }
    }
}

fn size(path: &Path) -> Result<u64> {
    files::size(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    anyhow!("cannot read `{}`: {error} (give a Hugging Face model directory)", path.display())
}
