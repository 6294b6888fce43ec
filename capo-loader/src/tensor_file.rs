//! Reads and writes a safetensors file: tensors by name and shape, scalars by name. Errors say what
//! is missing or wrong.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, anyhow, ensure};
use capo_plugin::fields::{fits, shape_text};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::arrays::{Array, floats};

/// Beginning of the header in a file with scalars.
const SCALARS: &str = "{\"__metadata__\":";
/// Bytes before the header, which hold its length.
const LENGTH: usize = 8;

/// Returns the bytes of a file with these tensors and scalars. Equal contents have equal bytes.
///
/// # Errors
///
/// When the header gets too long.
pub(crate) fn serialized(
    tensors: BTreeMap<&str, Array<'_>>,
    scalars: &BTreeMap<String, String>,
) -> Result<Vec<u8>> {
    let unordered = scalars.clone().into_iter().collect();
    let mut bytes = safetensors::serialize(tensors, Some(unordered))?;
    // The library writes the scalars in an order that differs from call to call, but always as many
    // bytes.
    let ordered = serde_json::to_string(scalars)?;
    let from = LENGTH + SCALARS.len();
    ensure!(
        bytes[LENGTH..].starts_with(SCALARS.as_bytes()),
        "the header does not begin with the scalars"
    );
    bytes[from..from + ordered.len()].copy_from_slice(ordered.as_bytes());
    Ok(bytes)
}

/// The tensors of a file and the strings of its metadata.
pub(crate) struct TensorFile<'a> {
    tensors: SafeTensors<'a>,
    scalars: HashMap<String, String>,
}

impl<'a> TensorFile<'a> {
    /// Parses the bytes of a file.
    ///
    /// # Errors
    ///
    /// When the bytes are not a safetensors file.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| anyhow!("{error}"))?;
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| anyhow!("{error}"))?;
        Ok(Self {
            tensors,
            scalars: header.metadata().clone().unwrap_or_default(),
        })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_ok()
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<TensorView<'a>> {
        self.tensors
            .tensor(name)
            .map_err(|_| anyhow!("it has no tensor `{name}`"))
    }

    pub(crate) fn shape(&self, name: &str) -> Result<Vec<usize>> {
        Ok(self.tensor(name)?.shape().to_vec())
    }

    pub(crate) fn shaped(&self, name: &str, shape: &[usize]) -> Result<TensorView<'a>> {
        let tensor = self.tensor(name)?;
        ensure!(
            tensor.shape() == shape,
            "`{name}` has shape {:?}, expected {shape:?}",
            tensor.shape()
        );
        Ok(tensor)
    }

    /// The tensor `name`, whose shape must fit `shape`, in which -1 is any extent above 0.
    pub(crate) fn fitting(&self, name: &str, shape: &[i64]) -> Result<TensorView<'a>> {
        let tensor = self.tensor(name)?;
        let have: Vec<i64> = tensor.shape().iter().map(|&extent| extent as i64).collect();
        ensure!(
            fits(&have, shape),
            "`{name}` has shape {have:?}, expected {}",
            shape_text(shape)
        );
        Ok(tensor)
    }

    pub(crate) fn floats(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        floats(name, &self.shaped(name, shape)?)
    }

    pub(crate) fn text(&self, name: &str) -> Result<&str> {
        self.scalars
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("its metadata has no `{name}`"))
    }

    pub(crate) fn scalar<T: std::str::FromStr>(&self, name: &str) -> Result<T> {
        let text = self.text(name)?;
        text.parse()
            .map_err(|_| anyhow!("`{name}` in its metadata is `{text}` (it must be a number)"))
    }

    pub(crate) fn has_scalar(&self, name: &str) -> bool {
        self.scalars.contains_key(name)
    }
}
