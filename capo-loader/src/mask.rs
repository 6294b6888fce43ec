//! Applies masks in order to choose the tokens that reach the backward pass.

use anyhow::Result;
use capo_plugin::{Batch, MaskHandle, Sink};

use crate::decision::{Decision, Rejected};

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
