//! The base model inside the executable.

use std::path::PathBuf;

use anyhow::{Result, bail};
use capo_loader::manifest::SealedFolder;

use super::{ModelFiles, hub};

/// What `model_name_or_path` calls the embedded model.
pub const TINY_ARITHMETIC: &str = "embedded:tiny-arithmetic";

macro_rules! files {
    ($($name:literal),*) => {
        &[$(($name, include_bytes!(concat!("../../assets/tiny-arithmetic/", $name)))),*]
    };
}

/// The embedded model as a Hugging Face directory: file names and their bytes.
const FILES: &[(&str, &[u8])] = files!("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json");

/// The files that `model_name_or_path` means: an embedded model's, a directory's, or those that the cache of the Hugging Face Hub has of an id.
///
/// # Errors
///
/// When it is none of them, or a checkpoint whose manifest is damaged.
pub fn model_files(model_name_or_path: &str) -> Result<ModelFiles> {
    if model_name_or_path == TINY_ARITHMETIC {
        return Ok(ModelFiles::Embedded(FILES));
    }
    let mut path = PathBuf::from(model_name_or_path);
    if let (false, Some(snapshot)) = (path.is_dir(), hub::find(model_name_or_path)?) {
        path = snapshot;
    }
    if !path.is_dir() {
        if let (true, true, Some(cache)) =
            (model_name_or_path.contains('/'), hub::is_id(model_name_or_path), hub::cache())
        {
            bail!(
                "no model `{model_name_or_path}`: neither a directory nor in the cache of the Hugging Face Hub, `{}` (fetch it with `host download {model_name_or_path}`)",
                cache.display()
            );
        }
        bail!(
            "no model `{model_name_or_path}`: neither an embedded one nor a directory (embedded: `{TINY_ARITHMETIC}`; a directory holds `config.json`, `model.safetensors` and `tokenizer.json`)"
        );
    }
    if SealedFolder::is_one(&path) {
        return Ok(ModelFiles::Checkpoint(SealedFolder::open(&path)?));
    }
    Ok(ModelFiles::Directory(path))
}
