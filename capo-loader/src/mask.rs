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
    let mut decision = Decision::of(batch.completion_mask.to_vec());
    for mask in masks {
        apply_one(mask, sink, batch, &mut decision)?;
    }
    Ok(decision)
}

/// Applies the next mask to the tokens that the earlier masks of `decision` kept. All masks come
/// before the first weight.
///
/// # Errors
///
/// The mask's own error, or a rule of the interface that it broke.
pub fn apply_one(
    mask: &mut MaskHandle,
    sink: &mut dyn Sink,
    batch: &Batch<'_>,
    decision: &mut Decision,
) -> Result<()> {
    let Decision {
        token_mask,
        token_weights,
        rejected,
        ..
    } = decision;
    let before = token_mask.clone();
    mask.mask(sink, batch, token_mask)?;
    let tokens: Vec<usize> = (0..token_mask.len())
        .filter(|&i| token_mask[i] < before[i])
        .collect();
    for &token in &tokens {
        token_weights[token] = 0.0;
    }
    rejected.push(Rejected {
        by: mask.id().to_owned(),
        tokens,
    });
    Ok(())
}
