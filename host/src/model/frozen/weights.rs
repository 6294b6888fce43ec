//! Weights for the models of `candle-transformers`. Every requested tensor is checked against the files, and every tensor must be used.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use super::super::config::CONFIG_FILE;
use super::super::files::ModelFiles;
use super::super::params::weight_files;
use super::super::shapes::HEAD;
use super::super::size::lacking;
use super::super::tensors::TensorFile;

/// Name endings of tensors that are computed, not read.
const COMPUTED: [&str; 2] = ["rotary_emb.inv_freq", "position_ids"];

/// All tensors of a checkpoint by name, 32-bit floats, each with a flag whether it was requested.
#[derive(Clone)]
pub(super) struct Weights {
    held: Arc<Mutex<BTreeMap<String, Held>>>,
    place: String,
}

struct Held {
    tensor: Tensor,
    used: bool,
}

/// Bytes of the weights in `files` as 32-bit floats, estimated from the files' sizes and the dtype in the configuration.
pub fn bytes_in_memory(files: &ModelFiles) -> Result<u64> {
    let config: serde_json::Value = serde_json::from_slice(&files.read(CONFIG_FILE)?)?;
    let dtype = config.get("dtype").or_else(|| config.get("torch_dtype")).and_then(serde_json::Value::as_str);
    let sizes = weight_files(files)?.iter().map(|name| files.size(name)).sum::<Result<u64>>()?;
    Ok(sizes * if matches!(dtype, Some("bfloat16" | "float16")) { 2 } else { 1 })
}

impl Weights {
    pub(super) fn load(files: &ModelFiles, device: &Device) -> Result<Self> {
        let names = weight_files(files)?;
        let sizes = names.iter().map(|name| files.size(name)).sum::<Result<u64>>()?;
        if let Some([sizes, free]) = lacking(sizes.into()) {
            bail!("the files of weights have {sizes}, and {free} of memory are free (use a larger machine)");
        }
        let mut held = BTreeMap::new();
        for name in &names {
            let file = TensorFile::open(files, name)?;
            add(file, device, &mut held).with_context(|| format!("cannot use {}", files.describe(name)))?;
        }
        Ok(Self { held: Arc::new(Mutex::new(held)), place: files.describe(&names[0]) })
    }

    /// A builder that returns the tensors by name and shape.
    pub(super) fn builder(&self, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), DType::F32, device.clone())
    }

    /// Refuses tensors that were not requested, except for a head equal to the `embedding` to which it is tied.
    pub(super) fn finish(&self, embedding: &str) -> Result<()> {
        let held = self.lock();
        let tied = |name: &str| -> Result<bool> {
            let (Some(head), Some(embedding)) = (held.get(name), held.get(embedding)) else { return Ok(false) };
            let values = |held: &Held| held.tensor.flatten_all()?.to_vec1::<f32>();
            Ok(name == HEAD && values(head)? == values(embedding)?)
        };
        for (name, _) in held.iter().filter(|(_, held)| !held.used) {
            ensure!(
                tied(name)?,
                "cannot use {}: unexpected tensor `{name}` (the weights and `config.json` must be of one model)",
                self.place
            );
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn add(mut file: TensorFile<'_>, device: &Device, held: &mut BTreeMap<String, Held>) -> Result<()> {
    for name in file.names().iter().filter(|name| !COMPUTED.iter().any(|ending| name.ends_with(ending))) {
        let tensor = file.floats(name, device)?;
        let before = held.insert(name.clone(), Held { tensor, used: false });
        ensure!(before.is_none(), "tensor `{name}` is also in another shard (fetch the files again)");
    }
    Ok(())
}

impl SimpleBackend for Weights {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if tensor.shape() != &shape {
            let (actual, expected) = (tensor.dims(), shape.dims());
            candle_core::bail!(
                "cannot use {}: tensor `{name}` has shape {actual:?}, expected {expected:?} (the weights and `config.json` must be of one model)",
                self.place
            );
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        let mut all = self.lock();
        let Some(held) = all.get_mut(name) else {
            candle_core::bail!(
                "cannot use {}: tensor `{name}` is missing (the weights and `config.json` must be of one model)",
                self.place
            );
        };
        held.used = true;
        Ok(held.tensor.clone())
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }
}
