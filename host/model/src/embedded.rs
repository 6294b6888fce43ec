//! The base model embedded in the executable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use capo_system::manifest::SealedFolder;

use super::error::Error;
use super::gguf::{Gguf, is_gguf};
use super::lora::{ADAPTER_CONFIG_FILE, base_name};
use super::{CONFIG_FILE, ModelFiles, hub};

/// Value of `model_name_or_path` that selects the embedded model.
pub const TINY_ARITHMETIC: &str = "embedded:tiny-arithmetic";

macro_rules! files {
    ($($name:literal),*) => {
        &[$(($name, include_bytes!(concat!("../../assets/tiny-arithmetic/", $name)))),*]
    };
}

/// The embedded model as a Hugging Face directory: file names and their bytes.
const FILES: &[(&str, &[u8])] = files!(
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json"
);

/// The files that `model_name_or_path` names: an embedded model, a directory, a GGUF file, or an id
/// in the cache of the Hugging Face Hub. An adapter's files come with the files of its base. An
/// unknown name is an error for which [`Error::is_missing_file`] is true.
pub fn model_files(model_name_or_path: &str) -> Result<ModelFiles> {
    let own = own_files(model_name_or_path)?;
    if own.contains(ADAPTER_CONFIG_FILE) {
        with_base(own, model_name_or_path)
    } else {
        Ok(own)
    }
}

/// The files that `model_name_or_path` names, without those of an adapter's base.
fn own_files(model_name_or_path: &str) -> Result<ModelFiles> {
    if model_name_or_path == TINY_ARITHMETIC {
        return Ok(ModelFiles::Embedded(FILES));
    }
    let mut path = PathBuf::from(model_name_or_path);
    if let (false, Some(snapshot)) = (path.is_dir(), hub::find(model_name_or_path)?) {
        path = snapshot;
    }
    if is_gguf(&path) && !path.is_dir() {
        return Ok(ModelFiles::Gguf(Arc::new(Gguf::open(&path)?)));
    }
    if !path.is_dir() {
        return Err(no_model(model_name_or_path, &path).into());
    }
    if SealedFolder::is_one(&path) {
        return Ok(ModelFiles::Checkpoint(SealedFolder::open(&path)?));
    }
    let files = ModelFiles::Directory(path.clone());
    if !files.contains(CONFIG_FILE)
        && !files.contains(ADAPTER_CONFIG_FILE)
        && let Some(file) = first_gguf(&path)
    {
        bail!(
            "no model `{model_name_or_path}`: it has GGUF files alone \
             (name one of them, as in `{}`)",
            file.display()
        );
    }
    Ok(files)
}

/// The error for a name that is neither a directory nor a model's file. `path` is the name as a
/// path.
fn no_model(name: &str, path: &Path) -> Error {
    let is_local =
        path.exists() || path.starts_with("runs") || path.parent().is_some_and(Path::is_dir);
    let is_id = name.contains('/') && hub::is_id(name);
    if is_id
        && !is_local
        && let Some(cache) = hub::cache()
    {
        return Error::missing_file(format!(
            "no model `{name}`: neither a directory nor in the cache of the Hugging Face Hub, `{}` \
             (fetch it with `host download {name}`)",
            cache.display()
        ));
    }
    if path.is_file() {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        return Error::missing_file(format!(
            "no model `{name}`: it is a file (name its folder, `{}`)",
            folder.unwrap_or(Path::new(".")).display()
        ));
    }
    Error::missing_file(format!(
        "no model `{name}`: neither an embedded one nor a directory (embedded: \
         `{TINY_ARITHMETIC}`; a directory holds `config.json`, `model.safetensors` and \
         `tokenizer.json`)"
    ))
}

/// The first GGUF file in a folder, by name.
fn first_gguf(folder: &Path) -> Option<PathBuf> {
    let entries = folder.read_dir().ok()?.flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| is_gguf(path))
        .min()
}

/// The files of an adapter, together with those of the base model that it names. A folder that
/// holds both is its own base.
fn with_base(own: ModelFiles, model_name_or_path: &str) -> Result<ModelFiles> {
    let name = base_name(&own)?;
    let place = format!(
        "cannot use the base model of {}",
        own.describe(ADAPTER_CONFIG_FILE)
    );
    let base = own_files(&name).with_context(|| place.clone())?;
    if base.contains(ADAPTER_CONFIG_FILE) {
        ensure!(
            absolute(&name) == absolute(model_name_or_path),
            "{place}: `{name}` is an adapter itself (merge it with `host export`)"
        );
        ensure!(
            base.contains(CONFIG_FILE),
            "{place}: `{name}` is the adapter's own folder, which has no `{CONFIG_FILE}` \
             (write the model that it belongs to as `base_model_name_or_path`)"
        );
    }
    Ok(ModelFiles::Adapter {
        own: Box::new(own),
        base: Box::new(base),
    })
}

/// The folder `name` without links and relative parts, if it exists.
fn absolute(name: &str) -> PathBuf {
    Path::new(name)
        .canonicalize()
        .unwrap_or_else(|_| name.into())
}
