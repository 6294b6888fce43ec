//! The reference model of a penalty on the distance from it.

use anyhow::Result;
use candle_core::{DType, Device};

use super::super::config::CONFIG_FILE;
use super::super::family::Family;
use super::super::files::ModelFiles;
use super::super::forward::Forward;
use super::super::policy::Policy;
use super::super::sequences::Sequences;
use super::causal::{Causal, check_positions};

/// A frozen language model.
pub enum Reference {
    /// A model of a family that is trained here, in the same decoder.
    Own(Box<Policy>),
    /// A model of another family.
    Other(Causal),
}

impl Reference {
    /// Reads a model for sequences of at most `longest` tokens. A model of a trained family computes in `dtype`, any other in 32-bit
    /// floats.
    pub fn load(files: &ModelFiles, longest: usize, dtype: DType, device: &Device) -> Result<Self> {
        let json = files.object(CONFIG_FILE)?;
        if Family::of(&json).is_ok() {
            let policy = Policy::load(files, device)?.with_dtype(dtype);
            check_positions(longest, policy.config().max_position_embeddings)?;
            return Ok(Self::of(if dtype == DType::F32 { policy } else { policy.reference()? }));
        }
        Ok(Self::Other(Causal::load(files, &json, longest, device)?))
    }

    /// A reference model from a policy that no update changes.
    pub fn of(policy: Policy) -> Self {
        Self::Own(Box::new(policy))
    }

    /// The forward pass without stored activations, for outputs alone; `loss_temperature` divides the logits.
    pub fn forward(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        match self {
            Self::Own(policy) => policy.forward_detached(rows, loss_temperature),
            Self::Other(model) => model.forward(rows, loss_temperature),
        }
    }
}
