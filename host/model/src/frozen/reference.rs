//! The reference model of a penalty on the distance from it.

use anyhow::{Result, ensure};
use candle_core::{DType, Device};

use super::super::files::ModelFiles;
use super::super::forward::Forward;
use super::super::policy::Policy;
use super::super::sequences::Sequences;

/// A frozen language model, which runs in the same decoder as trained models.
pub struct Reference(Policy);

impl Reference {
    /// Reads a model for sequences of at most `longest` tokens, computed in `dtype`.
    pub fn load(files: &ModelFiles, longest: usize, dtype: DType, device: &Device) -> Result<Self> {
        let policy = Policy::load(files, device)?.with_dtype(dtype);
        let positions = policy.config().max_position_embeddings;
        ensure!(
            longest <= positions,
            "prompts and completions of {longest} tokens are longer than the {positions} positions \
             of the reference (shorten them, or use another reference)"
        );
        Ok(Self(if dtype == DType::F32 {
            policy
        } else {
            policy.reference()?
        }))
    }

    /// A reference model from a policy that no update changes.
    pub fn of(policy: Policy) -> Self {
        Self(policy)
    }

    /// The forward pass without stored activations, for outputs alone; `loss_temperature` divides
    /// the logits.
    pub fn forward(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        self.0.forward_detached(rows, loss_temperature)
    }
}
