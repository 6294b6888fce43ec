//! Applies masks in order to choose the tokens that reach the backward pass.

use anyhow::Result;
use capo_plugin::{Batch, MaskHandle, Sink};

use crate::weight::Factors;

/// What masks and weights decided about each token of a batch.
#[derive(Debug, Clone, Default)]
pub struct Decision {
    /// `[B, T]`: 1 for tokens that reach the backward pass, 0 for rejected tokens and padding; called `keep` in the plugin interface.
    pub token_mask: Vec<u8>,
    /// `[B, T]`: the product of all weights; 0 where `token_mask` is.
    pub token_weights: Vec<f32>,
    /// The tokens that each mask rejected, in the masks' order.
    pub rejected: Vec<Rejected>,
    /// The factors of each weight component, in order.
    pub factors: Vec<Factors>,
}

/// Tokens that one mask rejected, among those that the earlier masks kept.
#[derive(Debug, Clone)]
pub struct Rejected {
    /// The mask's name in reports.
    pub by: String,
    /// Indices into the flat `[B, T]` array, ascending.
    pub tokens: Vec<usize>,
}

impl Decision {
    /// Every token of `token_mask`, `[B, T]`, with a weight of 1.
    pub fn of(token_mask: Vec<u8>) -> Self {
        let token_weights = token_mask.iter().map(|&token| f32::from(token)).collect();
        Self { token_mask, token_weights, ..Self::default() }
    }

    /// Number of tokens that reach the backward pass.
    pub fn tokens(&self) -> u64 {
        self.token_mask.iter().map(|&token| u64::from(token)).sum()
    }
}

/// Applies the masks in order. Each mask sees the tokens that the earlier masks kept.
///
/// # Errors
///
/// A mask's own error, or a rule of the interface that it broke.
pub fn apply(masks: &mut [MaskHandle], sink: &mut dyn Sink, batch: &Batch<'_>) -> Result<Decision> {
    let mut token_mask = batch.completion_mask.to_vec();
    let mut rejected = Vec::with_capacity(masks.len());
    for mask in masks {
        let before = token_mask.clone();
        mask.mask(sink, batch, &mut token_mask)?;
        let tokens = (0..token_mask.len()).filter(|&i| token_mask[i] < before[i]).collect();
        rejected.push(Rejected { by: mask.id().to_owned(), tokens });
    }
    Ok(Decision { rejected, ..Decision::of(token_mask) })
}

/// Tells every mask how the step ended, and which tokens were kept.
///
/// # Errors
///
/// A mask's own error.
pub fn step_end(
    masks: &mut [MaskHandle],
    sink: &mut dyn Sink,
    batch: &Batch<'_>,
    decision: &Decision,
    taken: bool,
) -> Result<()> {
    masks.iter_mut().try_for_each(|mask| Ok(mask.step_end(sink, batch, &decision.token_mask, taken)?))
}
