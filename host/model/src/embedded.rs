//! The base model embedded in the executable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use capo_system::manifest::SealedFolder;

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
/// in the cache of the Hugging Face Hub. An adapter's files come with the files of its base.
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
        let is_local =
            path.exists() || path.starts_with("runs") || path.parent().is_some_and(Path::is_dir);
        let is_id = model_name_or_path.contains('/') && hub::is_id(model_name_or_path);
        if let (true, false, Some(cache)) = (is_id, is_local, hub::cache()) {
            bail!(
                "no model `{model_name_or_path}`: neither a directory nor in the cache of the Hugging Face Hub, `{}` (fetch it with `host download {model_name_or_path}`)",
                cache.display()
            );
        }
        if let Some(folder) = path.parent().filter(|_| path.is_file()) {
            let folder = if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            };
            bail!(
                "no model `{model_name_or_path}`: it is a file (name its folder, `{}`)",
                folder.display()
            );
        }
        bail!(
            "no model `{model_name_or_path}`: neither an embedded one nor a directory (embedded: `{TINY_ARITHMETIC}`; a directory holds `config.json`, `model.safetensors` and `tokenizer.json`)"
        );
    }
    let files = if SealedFolder::is_one(&path) {
        ModelFiles::Checkpoint(SealedFolder::open(&path)?)
    } else {
        ModelFiles::Directory(path)
    };
    if let ModelFiles::Directory(path) = &files
        && !files.contains(CONFIG_FILE)
        && !files.contains(ADAPTER_CONFIG_FILE)
        && let Ok(entries) = path.read_dir()
        && let Some(file) = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| is_gguf(path))
            .min()
    {
        bail!(
            "no model `{model_name_or_path}`: it has GGUF files alone (name one of them, as in `{}`)",
            file.display()
        );
    }
    Ok(files)
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
        let folder = |name: &str| {
            Path::new(name)
                .canonicalize()
                .unwrap_or_else(|_| name.into())
        };
        ensure!(
            folder(&name) == folder(model_name_or_path),
            "{place}: `{name}` is an adapter itself (merge it with `host export`)"
        );
        ensure!(
            base.contains(CONFIG_FILE),
            "{place}: `{name}` is the adapter's own folder, which has no `{CONFIG_FILE}` (write the model that it belongs to as `base_model_name_or_path`)"
        );
    }
    Ok(ModelFiles::Adapter {
        own: Box::new(own),
        base: Box::new(base),
    })
}
