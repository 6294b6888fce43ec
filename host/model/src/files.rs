//! Sources of a model's files.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Cursor, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow, bail};
use capo_system::NamedFiles;
use capo_system::files;
use capo_system::manifest::SealedFolder;
use serde_json::{Map, Value};

use super::gguf::Gguf;

/// Name of the file with a model's architecture.
const CONFIG: &str = "config.json";
/// Name of the file in an adapter's folder that records the hashes of its base's files.
pub(super) const BASE_FILE: &str = "base.json";
const GENERATION: &str = "generation_config.json";
const README: &str = "README.md";
const TOKENIZER: &str = "tokenizer.json";

/// A readable and seekable source of a file's bytes.
pub trait Source: Read + Seek {}

impl<T: Read + Seek> Source for T {}

/// The files of one model: a Hugging Face directory, or bytes inside the executable.
#[derive(Debug, Clone)]
pub enum ModelFiles {
    /// A directory on disk.
    Directory(PathBuf),
    /// A directory with a manifest, such as a checkpoint: every file is verified against the
    /// manifest.
    Checkpoint(SealedFolder),
    /// Pairs of file name and contents.
    Embedded(&'static [(&'static str, &'static [u8])]),
    /// A GGUF file, presented as a Hugging Face directory.
    Gguf(Arc<Gguf>),
    /// The files of another model, with one file replaced.
    With(Box<ModelFiles>, Replacement),
    /// An adapter's files, and the files of its base model.
    Adapter {
        /// Files of the adapter.
        own: Box<ModelFiles>,
        /// Files of the base model.
        base: Box<ModelFiles>,
    },
}

/// A file that replaces another.
#[derive(Debug, Clone)]
pub struct Replacement {
    /// Name of the replaced file.
    name: &'static str,
    /// Description of the new contents.
    place: String,
    bytes: Arc<[u8]>,
}

impl ModelFiles {
    /// These files, with the contents of the file at `path` as the file `name`, whether or not
    /// `name` existed. An unreadable file is an error that names its path.
    pub fn with(self, name: &'static str, path: &Path) -> Result<Self> {
        let (bytes, place) = (files::read(path)?.into(), format!("`{}`", path.display()));
        Ok(Self::With(
            Box::new(self),
            Replacement { name, place, bytes },
        ))
    }

    /// These files, with other contents of those that `replaced` names.
    pub fn with_contents(self, replaced: Vec<(&'static str, Vec<u8>)>) -> Self {
        replaced.into_iter().fold(self, |files, (name, bytes)| {
            let (bytes, place) = (bytes.into(), files.describe(name));
            Self::With(Box::new(files), Replacement { name, place, bytes })
        })
    }

    /// The whole contents of the file `name`; a missing or unreadable file is an error that names
    /// its path.
    pub fn read(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::Directory(directory) => {
                let path = directory.join(name);
                Ok(Cow::Owned(
                    files::bytes(&path).map_err(|error| unreadable(&path, &error))?,
                ))
            }
            Self::Checkpoint(folder) => folder.read(name).map(Cow::Owned),
            Self::Adapter { .. } => self.holder(name).read(name),
            Self::Embedded(files) => match files.iter().find(|(file, _)| *file == name) {
                Some((_, bytes)) => Ok(Cow::Borrowed(bytes)),
                None => bail!(
                    "the built-in model has no file `{name}` (give a model directory instead)"
                ),
            },
            Self::Gguf(gguf) => match gguf.made(name) {
                Some(bytes) => Ok(Cow::Borrowed(bytes)),
                None => gguf.all_weights(name).map(Cow::Owned),
            },
            Self::With(_, file) if file.name == name => Ok(Cow::Borrowed(&file.bytes)),
            Self::With(files, _) => files.read(name),
        }
    }

    /// The file `name`, open; a missing or unreadable file is an error that names its path.
    pub(super) fn open(&self, name: &str) -> Result<Box<dyn Source + '_>> {
        match self {
            Self::Directory(directory) => from_disk(&directory.join(name)),
            Self::Checkpoint(folder) => from_disk(&folder.verified(name)?),
            Self::Adapter { .. } => self.holder(name).open(name),
            Self::With(files, file) if file.name != name => files.open(name),
            Self::Gguf(gguf) if gguf.made(name).is_none() => Ok(Box::new(gguf.weights(name)?)),
            Self::Embedded(_) | Self::Gguf(_) | Self::With(..) => {
                Ok(Box::new(Cursor::new(self.read(name)?)))
            }
        }
    }

    /// The JSON object in the file `name`. Anything else is an error that names the path.
    pub(super) fn object(&self, name: &str) -> Result<Map<String, Value>> {
        let object = serde_json::from_slice(&self.read(name)?);
        object.with_context(|| format!("cannot use {}: not a JSON object", self.describe(name)))
    }

    /// The size of the file `name`, bytes; a missing file is an error that names its path.
    pub fn size(&self, name: &str) -> Result<u64> {
        match self {
            Self::Directory(directory) => size(&directory.join(name)),
            Self::Checkpoint(folder) => size(&folder.dir().join(name)),
            Self::Adapter { .. } => self.holder(name).size(name),
            Self::Embedded(_) => Ok(self.read(name)?.len() as u64),
            Self::Gguf(gguf) => gguf.size(name),
            Self::With(_, file) if file.name == name => Ok(file.bytes.len() as u64),
            Self::With(files, _) => files.size(name),
        }
    }

    /// True if the file `name` exists, even if it cannot be read.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::Directory(directory) => directory.contains(name),
            Self::Checkpoint(folder) => folder.contains(name),
            Self::Adapter { .. } => self.holder(name).contains(name),
            Self::Embedded(files) => files.iter().any(|(file, _)| *file == name),
            Self::Gguf(gguf) => gguf.contains(name),
            Self::With(files, file) => file.name == name || files.contains(name),
        }
    }

    /// The path of the file `name` in backticks, for messages.
    pub fn describe(&self, name: &str) -> String {
        match self {
            Self::Directory(directory) => directory.describe(name),
            Self::Checkpoint(folder) => format!("`{}`", folder.dir().join(name).display()),
            Self::Adapter { .. } => self.holder(name).describe(name),
            Self::Embedded(_) => format!("`{name}` of the built-in model"),
            Self::Gguf(gguf) => gguf.describe(name),
            Self::With(_, file) if file.name == name => file.place.clone(),
            Self::With(files, _) => files.describe(name),
        }
    }

    /// The files that hold `name`: an adapter's own for what makes it one, and the base's for its
    /// configuration and weights. A tokenizer's files fit each other alone, so all are of the
    /// adapter's folder if it has a tokenizer, else of the base's, as in transformers.
    fn holder(&self, name: &str) -> &Self {
        let Self::Adapter { own, base } = self else {
            return self;
        };
        let is_own = match name {
            CONFIG => false,
            BASE_FILE => true,
            GENERATION | README => own.contains(name),
            _ if name.starts_with("adapter_") => true,
            _ if name.contains(".safetensors") => false,
            _ => own.contains(TOKENIZER),
        };
        if is_own { own } else { base }
    }
}

impl NamedFiles for ModelFiles {
    fn contains(&self, name: &str) -> bool {
        self.contains(name)
    }

    fn read(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        self.read(name)
    }

    fn describe(&self, name: &str) -> String {
        self.describe(name)
    }
}

fn from_disk(path: &Path) -> Result<Box<dyn Source>> {
    let opened = files::size(path).and_then(|_| File::open(path));
    Ok(Box::new(opened.map_err(|error| unreadable(path, &error))?))
}

fn size(path: &Path) -> Result<u64> {
    files::size(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    let hint = if error.kind() == ErrorKind::NotFound {
        absent(path)
    } else {
        None
    };
    let hint = hint.unwrap_or_else(|| "give a Hugging Face model directory".to_owned());
    anyhow!("cannot read `{}`: {error} ({hint})", path.display())
}

/// A sentence about the files that a model's folder has in place of the absent one at `path`, and
/// the way out.
fn absent(path: &Path) -> Option<String> {
    let (dir, name) = (path.parent()?, path.file_name()?.to_str()?);
    // A link of the Hub's cache may lead nowhere.
    let there = dir
        .read_dir()
        .ok()?
        .flatten()
        .filter(|entry| entry.path().exists());
    let mut names: Vec<String> = there
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    let first = |starts: &[&str]| {
        names
            .iter()
            .find(|name| starts.iter().any(|start| name.starts_with(start)))
    };
    let shown = dir.display();
    let write = |class: &str, to: &Path| {
        format!(
            "write it anew in Python: `{class}.from_pretrained(\"{shown}\").save_pretrained(\"{}\")`",
            to.display()
        )
    };
    // Of a cache that was filled in part, its folder tells the id.
    let id = dir
        .ancestors()
        .find_map(|dir| dir.file_name()?.to_str()?.strip_prefix("models--"));
    let fetch = id.map_or_else(
        || "fetch the model again, whole".to_owned(),
        |id| {
            format!(
                "fetch the rest with `host download {}`",
                id.replacen("--", "/", 1)
            )
        },
    );
    let (is_weights, is_tokenizer) = (name.ends_with(".safetensors"), name == TOKENIZER);
    // Another class would leave out the head of a model that scores.
    let class = if scores(dir) {
        "SequenceClassification"
    } else {
        "CausalLM"
    };
    let weights = [
        ("pytorch_model", "transformers.AutoModelFor"),
        ("adapter_model", "peft.AutoPeftModelFor"),
    ];
    let others = weights
        .iter()
        .find_map(|(start, class)| Some((first(&[start]).filter(|_| is_weights)?, class)));
    let vocabulary = first(&["tokenizer.model", "spiece.model", "vocab."]).filter(|_| is_tokenizer);
    Some(if first(&["provenance.json"]).is_some() {
        match first(&["checkpoints"]) {
            Some(folder) => {
                format!(
                    "`{shown}` is a run: name one of its checkpoints, in `{}`",
                    dir.join(folder).display()
                )
            }
            None => format!("`{shown}` is a run that has no checkpoint yet"),
        }
    } else if let Some((other, auto)) = others {
        let new = dir.join("safetensors");
        let written = write(&format!("{auto}{class}"), &new);
        format!(
            "its weights are in `{other}`, and only safetensors are read: {written}, copy the tokenizer's files there, and name `{}`",
            new.display()
        )
    } else if let Some(other) = vocabulary {
        format!(
            "its tokenizer is in `{other}` alone: {}",
            write("transformers.AutoTokenizer", dir)
        )
    } else if is_weights
        && names
            .iter()
            .any(|name| name.ends_with(".safetensors.index.json"))
    {
        format!("the index names it, so the download is not whole: {fetch}")
    } else if names.is_empty() {
        format!("the folder is empty: {fetch}")
    } else if id.is_some()
        || names
            .iter()
            .any(|name| [CONFIG, TOKENIZER].contains(&name.as_str()))
    {
        format!("the folder has {} and no `{name}`: {fetch}", listed(&names))
    } else {
        format!(
            "the folder has {}: give a Hugging Face model directory",
            listed(&names)
        )
    })
}

/// True if the model in this folder scores texts.
fn scores(dir: &Path) -> bool {
    let config: Option<Value> = File::open(dir.join(CONFIG))
        .ok()
        .and_then(|file| serde_json::from_reader(file).ok());
    let names = config
        .as_ref()
        .and_then(|config| config["architectures"].as_array());
    let scores = |name: &Value| {
        name.as_str()
            .is_some_and(|name| name.ends_with("ForSequenceClassification"))
    };
    names.is_some_and(|names| names.iter().any(scores))
}

/// The first of these names.
fn listed(names: &[String]) -> String {
    const MOST: usize = 5;
    let more = if names.len() > MOST { ", …" } else { "" };
    format!("`{}`{more}", names[..names.len().min(MOST)].join("`, `"))
}
