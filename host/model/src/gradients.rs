//! Gradients, by the name of the weight.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use candle_core::{DType, Tensor};

use super::ops;

/// The gradient of a loss by every trained weight, ordered by name, each in f32 or in the policy's
/// dtype.
///
/// Each tensor owns its storage, because others are added to it in place.
#[derive(Debug, Default)]
pub struct Gradients {
    tensors: BTreeMap<String, Tensor>,
}

impl Gradients {
    /// Stores the gradient by the weight `name`, or adds it to the stored gradient in f32.
    pub(super) fn add(&mut self, name: String, gradient: Tensor) -> Result<()> {
        let sum = match self.tensors.remove(&name) {
            None => gradient,
            Some(sum) => ops::add_to(sum.to_dtype(DType::F32)?, &gradient.to_dtype(DType::F32)?)?,
        };
        self.tensors.insert(name, sum);
        Ok(())
    }

    /// Adds the gradients of another micro-batch of the same model in f32.
    pub fn accumulate(&mut self, other: Self) -> Result<()> {
        ensure!(
            self.tensors.is_empty() || self.tensors.keys().eq(other.tensors.keys()),
            "the gradients belong to different models"
        );
        other
            .tensors
            .into_iter()
            .try_for_each(|(name, gradient)| self.add(name, gradient))
    }

    /// The gradient by the weight `name`, in its shape; an unknown name is an error.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.tensors
            .get(name)
            .with_context(|| format!("there is no gradient for `{name}`"))
    }

    /// Names and gradients, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor))
    }
}

impl FromIterator<(String, Tensor)> for Gradients {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(tensors: I) -> Self {
        Self {
            tensors: tensors.into_iter().collect(),
        }
    }
}
