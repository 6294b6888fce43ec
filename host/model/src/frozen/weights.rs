//! Weights for the models of `candle-transformers`. Every requested tensor is checked against the
//! files, and every tensor must be used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use capo_system::memory::lacking;

use super::super::config::CONFIG_FILE;
use super::super::files::ModelFiles;
use super::super::params::weight_files;
use super::super::tensors::TensorFile;

/// Name endings of tensors that are computed, not read.
const COMPUTED: [&str; 2] = ["rotary_emb.inv_freq", "position_ids"];

/// All tensors of a checkpoint by name, 32-bit floats.
#[derive(Clone)]
pub(super) struct Weights {
    held: Arc<BTreeMap<String, Tensor>>,
    /// Names of the tensors that nobody has requested yet.
    unused: Arc<Mutex<BTreeSet<String>>>,
    /// The first file, for messages.
    place: String,
}

/// Bytes of the weights in `files` as 32-bit floats, estimated from the files' sizes and the dtype
/// in the configuration.
pub fn bytes_in_memory(files: &ModelFiles) -> Result<u64> {
    let config = files.object(CONFIG_FILE)?;
    let dtype = config
        .get("dtype")
        .or_else(|| config.get("torch_dtype"))
        .and_then(serde_json::Value::as_str);
    let sizes = weight_files(files)?
        .iter()
        .map(|name| files.size(name))
        .sum::<Result<u64>>()?;
    let is_half = matches!(dtype, Some("bfloat16" | "float16"));
    Ok(if is_half { 2 * sizes } else { sizes })
}

impl Weights {
    pub(super) fn load(files: &ModelFiles, device: &Device) -> Result<Self> {
        let names = weight_files(files)?;
        let sizes = names
            .iter()
            .map(|name| files.size(name))
            .sum::<Result<u64>>()?;
        if let Some([sizes, free]) = lacking(sizes.into()) {
            bail!(
                "the files of weights have {sizes}, and {free} of memory are free \
                 (use a larger machine)"
            );
        }
        let mut held = BTreeMap::new();
        for name in &names {
            let file = TensorFile::open(files, name)?;
            add(file, device, &mut held)
                .with_context(|| format!("cannot use {}", files.describe(name)))?;
        }
        let unused = Mutex::new(held.keys().cloned().collect());
        Ok(Self {
            held: Arc::new(held),
            unused: Arc::new(unused),
            place: files.describe(&names[0]),
        })
    }

    /// A builder that returns the tensors by name and shape.
    pub(super) fn builder(&self, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), DType::F32, device.clone())
    }

    /// Refuses tensors that were not requested.
    pub(super) fn finish(&self) -> Result<()> {
        if let Some(name) = self.unused().first() {
            bail!(
                "cannot use {}: unexpected tensor `{name}` \
                 (the weights and `config.json` must be of one model)",
                self.place
            );
        }
        Ok(())
    }

    fn unused(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the tensors of one file.
fn add(
    mut file: TensorFile<'_>,
    device: &Device,
    held: &mut BTreeMap<String, Tensor>,
) -> Result<()> {
    for name in file
        .names()
        .iter()
        .filter(|name| !COMPUTED.iter().any(|ending| name.ends_with(ending)))
    {
        let before = held.insert(name.clone(), file.floats(name, device)?);
        ensure!(
            before.is_none(),
            "tensor `{name}` is also in another shard (fetch the files again)"
        );
    }
    Ok(())
}

impl SimpleBackend for Weights {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if tensor.shape() != &shape {
            candle_core::bail!(
                "cannot use {}: tensor `{name}` has shape {:?}, expected {:?} \
                 (the weights and `config.json` must be of one model)",
                self.place,
                tensor.dims(),
                shape.dims()
            );
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> candle_core::Result<Tensor> {
        let Some(tensor) = self.held.get(name) else {
            candle_core::bail!(
                "cannot use {}: tensor `{name}` is missing \
                 (the weights and `config.json` must be of one model)",
                self.place
            );
        };
        self.unused().remove(name);
        Ok(tensor.clone())
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.held.contains_key(name)
    }
}
