//! Models in GGUF files, the format of llama.cpp. Such a file is presented as the Hugging Face
//! directory of the same model. Settings and tokenizer are built from its metadata; its tensors
//! become 32-bit floats under the names of transformers.

mod config;
mod metadata;
mod rope;
mod tokenizer;
mod types;
mod weights;

use std::fs::File;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_core::quantized::gguf_file::Content;
use capo_system::contain::contain;
use capo_system::files;
use capo_system::memory::lacking;

use self::metadata::Metadata;
use self::weights::{Reader, Weights};
use crate::error::Error;

/// Longest header, bytes. Tokens and merges take at most ten million. The limit is low because a
/// value in memory takes up to 32 times its bytes in the file.
const MOST_HEADER: u64 = 1 << 24;
/// Name of the file that holds the weights.
const WEIGHTS: &str = "model.safetensors";

/// A GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    /// Names and contents of the files that are built from the metadata.
    made: [(&'static str, Vec<u8>); 3],
    weights: Weights,
}

/// True if `path` has the extension of a GGUF file.
pub(super) fn is_gguf(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

impl Gguf {
    /// Reads the file at `path`, except for its weights.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let size =
            files::size(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        Self::read(path, size).with_context(|| format!("cannot use `{}`", path.display()))
    }

    fn read(path: &Path, size: u64) -> Result<Self> {
        let mut file = File::open(path)?;
        let mut head = Vec::new();
        file.by_ref().take(MOST_HEADER).read_to_end(&mut head)?;
        let content =
            contain(|| Content::read(&mut Cursor::new(&head)))?.map_err(types::unreadable)?;
        let metadata = Metadata::new(content.metadata);
        metadata.check_kind()?;
        types::check(&content.tensor_infos, content.tensor_data_offset, size)?;
        let mut tensors = content.tensor_infos;
        let divisors = match tensors.remove(rope::DIVISORS) {
            Some(info) => {
                rope::check(&info)?;
                let values = weights::values(&info, content.tensor_data_offset, &mut file)?;
                Some(values)
            }
            None => None,
        };
        let mut config = config::config(&metadata, &tensors, divisors.as_deref())?;
        let [tokenizer, tokenizer_config] = tokenizer::files(&metadata, &mut config)?;
        let weights = Weights::new(
            tensors,
            content.tensor_data_offset,
            config::permuted(&config),
        )?;
        let made = [
            ("config.json", serde_json::to_vec(&config)?),
            ("tokenizer.json", serde_json::to_vec(&tokenizer)?),
            (
                "tokenizer_config.json",
                serde_json::to_vec(&tokenizer_config)?,
            ),
        ];
        Ok(Self {
            path: path.to_owned(),
            made,
            weights,
        })
    }

    /// Contents of the file `name` that is built from the metadata; `None` for any other name.
    pub(super) fn made(&self, name: &str) -> Option<&[u8]> {
        self.made
            .iter()
            .find(|(made, _)| *made == name)
            .map(|(_, bytes)| bytes.as_slice())
    }

    /// A reader of the weights, which are the file `name`. An unknown name is an error.
    pub(super) fn weights(&self, name: &str) -> Result<Reader<'_>> {
        self.check_is_weights(name)?;
        let file = File::open(&self.path)
            .with_context(|| format!("cannot read `{}`", self.path.display()))?;
        Ok(self.weights.reader(file))
    }

    /// All bytes of the weights. An error if they exceed the available memory.
    pub(super) fn all_weights(&self, name: &str) -> Result<Vec<u8>> {
        let mut reader = self.weights(name)?;
        let size = self.weights.size();
        if let Some([size, free]) = lacking(size.into()) {
            let path = self.path.display();
            bail!(
                "the weights of `{path}` take {size}, and {free} of memory are free \
                 (use a larger machine)"
            );
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size)?);
        reader.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Size of the file `name`, bytes. An unknown name is an error.
    pub(super) fn size(&self, name: &str) -> Result<u64> {
        if let Some(bytes) = self.made(name) {
            return Ok(bytes.len() as u64);
        }
        self.check_is_weights(name)?;
        Ok(self.weights.size())
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        name == WEIGHTS || self.made(name).is_some()
    }

    /// Name of the file `name` in messages.
    pub(super) fn describe(&self, name: &str) -> String {
        if name == WEIGHTS {
            return format!("`{}`", self.path.display());
        }
        format!("`{name}` made of `{}`", self.path.display())
    }

    fn check_is_weights(&self, name: &str) -> Result<()> {
        if name == WEIGHTS {
            return Ok(());
        }
        let message = format!(
            "`{}` has no file `{name}` (give a model directory instead)",
            self.path.display()
        );
        Err(Error::missing_file(message).into())
    }
}
