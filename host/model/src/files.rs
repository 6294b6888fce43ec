//! Sources of a model's files.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Cursor, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use capo_system::NamedFiles;
use capo_system::files;
use capo_system::manifest::SealedFolder;
use serde_json::{Map, Value};

use super::error::Error;
use super::gguf::Gguf;

/// Name of the file with a model's architecture.
const CONFIG: &str = "config.json";
/// Name of the file in an adapter's folder that records the hashes of its base's files.
pub(super) const BASE_FILE: &str = "base.json";
/// Name of the file with a model's own sampling settings and end tokens.
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
        let replacement = Replacement {
            name,
            place: format!("`{}`", path.display()),
            bytes: files::read(path)?.into(),
        };
        Ok(Self::With(Box::new(self), replacement))
    }

    /// These files, with new contents of the files that `replaced` names.
    pub fn with_contents(mut self, replaced: Vec<(&'static str, Vec<u8>)>) -> Self {
        for (name, bytes) in replaced {
            let replacement = Replacement {
                name,
                place: self.describe(name),
                bytes: bytes.into(),
            };
            self = Self::With(Box::new(self), replacement);
        }
        self
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
            Self::Checkpoint(folder) => {
                check_sealed(folder, name)?;
                folder.read(name).map(Cow::Owned)
            }
            Self::Adapter { .. } => self.holder(name).read(name),
            Self::Embedded(files) => match files.iter().find(|(file, _)| *file == name) {
                Some((_, bytes)) => Ok(Cow::Borrowed(bytes)),
                None => {
                    let message = format!(
                        "the built-in model has no file `{name}` (give a model directory instead)"
                    );
                    Err(Error::missing_file(message).into())
                }
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
            Self::Checkpoint(folder) => {
                check_sealed(folder, name)?;
                from_disk(&folder.verified(name)?)
            }
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

    /// The files that hold `name`: an adapter's own files for its settings and factors, and those
    /// of the base for configuration and weights. A tokenizer's files only fit each other, so all
    /// come from the adapter's folder if it has a tokenizer, else from the base's, as in
    /// transformers.
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

/// Refuses a file that the manifest of `folder` does not list.
fn check_sealed(folder: &SealedFolder, name: &str) -> Result<()> {
    if folder.contains(name) {
        return Ok(());
    }
    let folder = folder.dir().display();
    Err(Error::missing_file(format!("`{folder}` has no file `{name}`")).into())
}

fn from_disk(path: &Path) -> Result<Box<dyn Source>> {
    let opened = files::size(path).and_then(|_| File::open(path));
    Ok(Box::new(opened.map_err(|error| unreadable(path, &error))?))
}

fn size(path: &Path) -> Result<u64> {
    files::size(path).map_err(|error| unreadable(path, &error))
}

/// The error for a file that cannot be read.
fn unreadable(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let shown = path.display();
    if error.kind() != ErrorKind::NotFound {
        return anyhow!("cannot read `{shown}`: {error} (give a Hugging Face model directory)");
    }
    let advice = Folder::of(path).map(|folder| folder.advice());
    let advice = advice.unwrap_or_else(|| "give a Hugging Face model directory".to_owned());
    Error::missing_file(format!("cannot read `{shown}`: {error} ({advice})")).into()
}

/// A folder in which a model's file is missing.
struct Folder<'a> {
    dir: &'a Path,
    /// Name of the missing file.
    missing: &'a str,
    /// Names of the files that are there, sorted.
    names: Vec<String>,
    /// Id of the model, if the folder lies in the cache of the Hub.
    id: Option<&'a str>,
}

impl<'a> Folder<'a> {
    fn of(path: &'a Path) -> Option<Self> {
        let dir = path.parent()?;
        let mut names = Vec::new();
        for entry in dir.read_dir().ok()?.flatten() {
            // A link in the Hub's cache may lead nowhere.
            if entry.path().exists() {
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort();
        Some(Self {
            dir,
            missing: path.file_name()?.to_str()?,
            names,
            id: dir
                .ancestors()
                .find_map(|dir| dir.file_name()?.to_str()?.strip_prefix("models--")),
        })
    }

    /// What the folder has in place of the missing file, and the way out.
    fn advice(&self) -> String {
        let is_weights = self.missing.ends_with(".safetensors");
        let is_index = |name: &String| name.ends_with(".safetensors.index.json");
        if self.first(&["provenance.json"]).is_some() {
            self.of_run()
        } else if is_weights && let Some(advice) = self.of_other_weights() {
            advice
        } else if self.missing == TOKENIZER
            && let Some(other) = self.first(&["tokenizer.model", "spiece.model", "vocab."])
        {
            format!(
                "its tokenizer is in `{other}` alone: {}",
                self.rewritten("transformers.AutoTokenizer", self.dir)
            )
        } else if is_weights && self.names.iter().any(is_index) {
            format!(
                "the index names it, so the download is not whole: {}",
                self.fetch()
            )
        } else if self.names.is_empty() {
            format!("the folder is empty: {}", self.fetch())
        } else if self.id.is_some() || self.has(CONFIG) || self.has(TOKENIZER) {
            format!(
                "the folder has {} and no `{}`: {}",
                listed(&self.names),
                self.missing,
                self.fetch()
            )
        } else {
            let names = listed(&self.names);
            format!("the folder has {names}: give a Hugging Face model directory")
        }
    }

    /// Advice for the folder of a run.
    fn of_run(&self) -> String {
        let shown = self.dir.display();
        match self.first(&["checkpoints"]) {
            Some(folder) => format!(
                "`{shown}` is a run: name one of its checkpoints, in `{}`",
                self.dir.join(folder).display()
            ),
            None => format!("`{shown}` is a run that has no checkpoint yet"),
        }
    }

    /// Advice for weights that are in another format than safetensors.
    fn of_other_weights(&self) -> Option<String> {
        let (other, auto) = if let Some(other) = self.first(&["pytorch_model"]) {
            (other, "transformers.AutoModelFor")
        } else {
            (self.first(&["adapter_model"])?, "peft.AutoPeftModelFor")
        };
        // The class for language models would leave out the head of a model that scores.
        let task = if scores(self.dir) {
            "SequenceClassification"
        } else {
            "CausalLM"
        };
        let new = self.dir.join("safetensors");
        Some(format!(
            "its weights are in `{other}`, and only safetensors are read: {}, \
             copy the tokenizer's files there, and name `{}`",
            self.rewritten(&format!("{auto}{task}"), &new),
            new.display()
        ))
    }

    /// How to write the folder's model or tokenizer to `to` with a class of Python.
    fn rewritten(&self, class: &str, to: &Path) -> String {
        format!(
            "write it anew in Python: `{class}.from_pretrained(\"{}\").save_pretrained(\"{}\")`",
            self.dir.display(),
            to.display()
        )
    }

    /// How to fetch the rest of the model.
    fn fetch(&self) -> String {
        match self.id {
            Some(id) => {
                let id = id.replacen("--", "/", 1);
                format!("fetch the rest with `host download {id}`")
            }
            None => "fetch the model again, whole".to_owned(),
        }
    }

    /// The first name that begins with one of `starts`.
    fn first(&self, starts: &[&str]) -> Option<&str> {
        self.names
            .iter()
            .find(|name| starts.iter().any(|start| name.starts_with(start)))
            .map(String::as_str)
    }

    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

/// True if the model in this folder scores texts.
fn scores(dir: &Path) -> bool {
    let config: Option<Value> = File::open(dir.join(CONFIG))
        .ok()
        .and_then(|file| serde_json::from_reader(file).ok());
    let names = config
        .as_ref()
        .and_then(|config| config["architectures"].as_array());
    names.into_iter().flatten().any(|name| {
        name.as_str()
            .is_some_and(|name| name.ends_with("ForSequenceClassification"))
    })
}

/// The first of these names, in backticks.
fn listed(names: &[String]) -> String {
    const MOST: usize = 5;
    let more = if names.len() > MOST { ", …" } else { "" };
    format!("`{}`{more}", names[..names.len().min(MOST)].join("`, `"))
}
