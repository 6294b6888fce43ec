//! The trainable weights under their Hugging Face names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor, Var};
use capo_system::files::{NewFile, write_atomic};
use serde::Deserialize;

use super::config::{CONFIG_FILE, Config};
use super::files::ModelFiles;
use super::ops::is_finite;
use super::shapes::{EMBEDDING, HEAD, shapes};
use super::size;
use super::tensors::TensorFile;

/// The name of the weight file of an unsharded model.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The name of the file that lists the shards of a sharded model.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Weights by name, 32-bit floats: all of a model, or those of an adapter.
#[derive(Debug, Clone)]
pub struct Params {
    vars: BTreeMap<String, Var>,
}

/// Writes a safetensors file one tensor at a time. No second copy of the whole file is ever in
/// memory. `format` says whose names the tensors have. A number that is not finite is an error,
/// because nobody could use the file.
pub fn save_tensors(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, Tensor)>,
    format: Option<&str>,
) -> Result<()> {
    let tensors: Vec<(String, Tensor)> = tensors.into_iter().collect();
    write_tensors(path, tensors, format)
        .with_context(|| format!("cannot write `{}`", path.display()))
}

fn write_tensors(path: &Path, tensors: Vec<(String, Tensor)>, format: Option<&str>) -> Result<()> {
    if let Some(name) = not_finite(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))? {
        bail!("`{name}` has a number that is not finite");
    }
    // With a single entry, equal tensors make equal bytes. The library writes several entries in
    // any order.
    let metadata = format.map(|format| HashMap::from([("format".to_owned(), format.to_owned())]));
    let new = NewFile::create(path)?;
    let permissions = fs::metadata(new.partial())?.permissions();
    safetensors::serialize_to_file(tensors, metadata, new.partial())?;
    // The library renamed a file of its own over that of `new`. It is readable by the owner alone
    // and not synced.
    let written = fs::File::open(new.partial())?;
    written.set_permissions(permissions)?;
    written.sync_all()?;
    new.finish()
}

/// The name of the first tensor that has a number that is not finite.
pub(crate) fn not_finite<'a>(
    tensors: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<Option<&'a str>> {
    for (name, tensor) in tensors {
        if !is_finite(tensor)? {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

impl Params {
    /// Reads `model.safetensors` or the shards of `model.safetensors.index.json` (f32, bf16 or f16)
    /// as f32.
    ///
    /// A missing or truncated file is an error with its path. A missing, extra or wrongly shaped
    /// tensor is an error with path and name.
    pub(super) fn load(files: &ModelFiles, config: &Config, device: &Device) -> Result<Self> {
        Loading::new(config, None).load(files, config, device)
    }

    /// Reads the weights of a model as [`Params::load`] does, and the weight `name` of `shape` that
    /// the files hold in place of the head.
    pub(super) fn load_with(
        files: &ModelFiles,
        config: &Config,
        name: &str,
        shape: Vec<usize>,
        device: &Device,
    ) -> Result<Self> {
        let mut loading = Loading::new(config, None);
        loading.skips_head = true;
        loading.expected.insert(name.to_owned(), shape);
        loading.load(files, config, device)
    }

    /// Overwrites every weight in place from `files`, one at a time. Errors are as in
    /// [`Params::load`]. After an error, some weights are already overwritten.
    pub(super) fn restore(
        &self,
        files: &ModelFiles,
        config: &Config,
        device: &Device,
    ) -> Result<()> {
        Loading::new(config, Some(self))
            .load(files, config, device)
            .map(drop)
    }

    /// Fresh weights: matrices from `fill_normal` (standard normals) times `initializer_range`,
    /// biases and the embedding of padding 0, norms 1.
    ///
    /// Draws in the order of names, row-major. Sizes beyond the available memory are an error.
    /// Source: `transformers.PreTrainedModel._init_weights`.
    pub fn init(
        config: &Config,
        device: &Device,
        fill_normal: &mut dyn FnMut(&mut [f32]),
    ) -> Result<Self> {
        size::fits_memory(config, device)?;
        let mut vars = BTreeMap::new();
        for (name, shape) in shapes(config) {
            let count = shape.iter().product();
            let mut values = vec![if name.ends_with(".bias") { 0.0 } else { 1.0 }; count];
            if shape.len() >= 2 {
                fill_normal(&mut values);
                values
                    .iter_mut()
                    .for_each(|value| *value *= config.initializer_range as f32);
            }
            if let (EMBEDDING, Some(id)) = (name.as_str(), config.padding()) {
                values
                    .chunks_mut(config.hidden_size)
                    .nth(id as usize)
                    .into_iter()
                    .for_each(|row| row.fill(0.0));
            }
            let var = Var::from_tensor(&Tensor::from_vec(values, shape, device)?)?;
            vars.insert(name, var);
        }
        Ok(Self { vars })
    }

    /// Zeros on the CPU, which take no memory until they are read or written. Sizes that fit no
    /// machine are an error.
    pub(super) fn zeros(config: &Config) -> Result<Self> {
        size::fits_any_machine(config)?;
        let zeros = shapes(config)
            .into_iter()
            .map(|(name, shape)| Ok((name, Var::zeros(shape, DType::F32, &Device::Cpu)?)));
        Ok(Self {
            vars: zeros.collect::<Result<_>>()?,
        })
    }

    /// True if `files` have weights.
    pub fn are_there(files: &ModelFiles) -> bool {
        files.contains(WEIGHTS_FILE) || files.contains(INDEX_FILE)
    }

    /// Writes `model.safetensors` and `config.json` into `directory` (created if missing), each
    /// file atomically.
    pub fn save(&self, config: &Config, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create `{}`", directory.display()))?;
        self.save_file(&directory.join(WEIGHTS_FILE), "")?;
        write_atomic(&directory.join(CONFIG_FILE), config.to_json()?.as_bytes())
    }

    /// Writes these weights to a safetensors file as 32-bit floats. Each name begins with `prefix`.
    pub fn save_file(&self, path: &Path, prefix: &str) -> Result<()> {
        let tensors = self
            .vars
            .iter()
            .map(|(name, var)| (format!("{prefix}{name}"), var.as_detached_tensor()));
        save_tensors(path, tensors, Some("pt"))
    }

    /// Overwrites every weight in place with the weights of `other`. A different set of names or
    /// shapes is an error.
    pub fn assign(&self, other: &Self) -> Result<()> {
        ensure!(
            self.vars.keys().eq(other.vars.keys()),
            "the weights belong to another model (use a checkpoint of this run)"
        );
        for (name, var) in &self.vars {
            var.set(&other.vars[name].as_detached_tensor().copy()?)
                .with_context(|| format!("cannot set `{name}`"))?;
        }
        Ok(())
    }

    /// A copy in `dtype` that shares no storage with the original.
    pub fn deep_copy(&self, dtype: DType) -> Result<Self> {
        let mut vars = BTreeMap::new();
        for (name, var) in &self.vars {
            let copy = var.as_detached_tensor().copy()?.to_dtype(dtype)?;
            vars.insert(name.clone(), Var::from_tensor(&copy)?);
        }
        Ok(Self { vars })
    }

    /// True if there is a weight called `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.vars.contains_key(name)
    }

    /// The weight called `name`. An unknown name is an error.
    pub fn get(&self, name: &str) -> Result<&Var> {
        self.vars
            .get(name)
            .with_context(|| format!("the model has no weight `{name}`"))
    }

    /// Names and weights, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.vars.iter().map(|(name, var)| (name.as_str(), var))
    }

    /// The name of the first weight that has a number that is not finite.
    pub fn not_finite(&self) -> Result<Option<&str>> {
        not_finite(
            self.vars
                .iter()
                .map(|(name, var)| (name.as_str(), var.as_tensor())),
        )
    }

    /// Number of scalar weights.
    pub fn element_count(&self) -> usize {
        self.vars.values().map(|var| var.elem_count()).sum()
    }
}

impl FromIterator<(String, Var)> for Params {
    fn from_iter<I: IntoIterator<Item = (String, Var)>>(vars: I) -> Self {
        Self {
            vars: vars.into_iter().collect(),
        }
    }
}

/// Weights while they are read.
struct Loading<'a> {
    /// Names and shapes of the tensors that the files must have.
    expected: BTreeMap<String, Vec<usize>>,
    vars: BTreeMap<String, Var>,
    /// Existing weights to overwrite; `None` creates new ones.
    into: Option<&'a Params>,
    /// The redundant `lm_head.weight` of a file whose configuration ties the head to the embedding.
    spare_head: Option<Vec<f32>>,
    /// True to ignore an `lm_head.weight`, as transformers does in the files of a classifier.
    skips_head: bool,
}

impl<'a> Loading<'a> {
    fn new(config: &Config, into: Option<&'a Params>) -> Self {
        Self {
            expected: shapes(config),
            vars: BTreeMap::new(),
            into,
            spare_head: None,
            skips_head: false,
        }
    }

    fn load(mut self, files: &ModelFiles, config: &Config, device: &Device) -> Result<Params> {
        let names = weight_files(files)?;
        size::fits_files(config, files, &names)?;
        if self.into.is_none() {
            size::fits_memory(config, device)?;
        }
        for name in &names {
            let file = TensorFile::open(files, name)?;
            self.add(file, config, device)
                .with_context(|| format!("cannot use {}", files.describe(name)))?;
        }
        let place = if names.len() == 1 {
            &names[0]
        } else {
            INDEX_FILE
        };
        self.finish()
            .with_context(|| format!("cannot use {}", files.describe(place)))
    }

    /// Reads the tensors of one file.
    fn add(&mut self, mut file: TensorFile<'_>, config: &Config, device: &Device) -> Result<()> {
        for name in file.names() {
            let name = name.as_str();
            if name.ends_with("rotary_emb.inv_freq") || (self.skips_head && name == HEAD) {
                continue;
            }
            if name == HEAD && config.tie_word_embeddings {
                self.spare_head = Some(file.floats(name, device)?.flatten_all()?.to_vec1()?);
                continue;
            }
            let Some(shape) = self.expected.get(name) else {
                bail!(
                    "unexpected tensor `{name}` \
                     (the weights and `config.json` must be of one model)"
                );
            };
            let found = file.shape(name)?;
            ensure!(
                found == shape.as_slice(),
                "tensor `{name}` has shape {found:?}, expected {shape:?} \
                 (the weights and `config.json` must be of one model)"
            );
            let tensor = file.floats(name, device)?;
            let var = match self.into {
                Some(params) => {
                    let var = params.get(name)?;
                    var.set(&tensor)?;
                    var.clone()
                }
                None => Var::from_tensor(&tensor)?,
            };
            let previous = self.vars.insert(name.to_owned(), var);
            ensure!(
                previous.is_none(),
                "tensor `{name}` is also in another shard (fetch the files again)"
            );
        }
        Ok(())
    }

    /// The weights, if none is missing.
    fn finish(self) -> Result<Params> {
        if let Some(missing) = self
            .expected
            .keys()
            .find(|name| !self.vars.contains_key(*name))
        {
            bail!(
                "tensor `{missing}` is missing \
                 (the weights and `config.json` must be of one model)"
            );
        }
        if let Some(head) = self.spare_head {
            let embedding = self.vars[EMBEDDING].flatten_all()?.to_vec1::<f32>()?;
            ensure!(
                head == embedding,
                "tensor `{HEAD}` differs from `{EMBEDDING}` \
                 (set `tie_word_embeddings` to `false` in `config.json`)"
            );
        }
        Ok(Params { vars: self.vars })
    }
}

/// The file that says which shard holds each tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The weight files of a model: the only file, or the shards in the order of their names.
pub(super) fn weight_files(files: &ModelFiles) -> Result<Vec<String>> {
    if files.contains(WEIGHTS_FILE) || !files.contains(INDEX_FILE) {
        return Ok(vec![WEIGHTS_FILE.to_owned()]);
    }
    let bytes = files.read(INDEX_FILE)?;
    let place = files.describe(INDEX_FILE);
    let index: Index = serde_json::from_slice(&bytes).with_context(|| {
        format!("cannot use {place}: not a safetensors index (fetch the file again)")
    })?;
    let shards: BTreeSet<String> = index.weight_map.into_values().collect();
    ensure!(
        !shards.is_empty(),
        "cannot use {place}: it lists no file (fetch the file again)"
    );
    for shard in &shards {
        ensure!(
            !shard.contains(['/', '\\']) && shard != "..",
            "cannot use {place}: `{shard}` is not a plain file name (fetch the file again)"
        );
    }
    Ok(shards.into_iter().collect())
}
