//! Applies masks in order to choose the tokens that reach the backward pass.

use anyhow::Result;
use capo_plugin::{Batch, MaskHandle, Sink};

/// The tokens that all masks keep.
#[derive(Debug)]
pub struct Accepted {
    /// `[B, T]`: 1 for tokens that are kept; called `keep` in the plugin interface.
    pub mask: Vec<u8>,
    /// The tokens that each mask rejected, in the masks' order.
    pub rejected: Vec<Rejected>,
    /// Number of tokens that are kept.
    pub tokens: u64,
}

/// Tokens that one mask rejected, among those that the earlier masks kept.
#[derive(Debug)]
pub struct Rejected {
    /// The mask's name in reports.
    pub by: String,
    /// Indices into the flat `[B, T]` array, ascending.
    pub tokens: Vec<usize>,
}

/// Applies the masks in order. Each mask sees the tokens that the earlier masks kept.
///
/// # Errors
///
/// A mask's own error, or a rule of the interface that it broke.
pub fn apply(masks: &mut [MaskHandle], sink: &mut dyn Sink, batch: &Batch<'_>) -> Result<Accepted> {
    let mut accepted = batch.completion_mask.to_vec();
    let mut rejected = Vec::with_capacity(masks.len());
    for mask in masks {
        let before = accepted.clone();
        mask.mask(sink, batch, &mut accepted)?;
        let tokens = (0..accepted.len()).filter(|&i| accepted[i] < before[i]).collect();
        rejected.push(Rejected { by: mask.id().to_owned(), tokens });
    }
    let tokens = accepted.iter().map(|&accepted| u64::from(accepted)).sum();
    Ok(Accepted { mask: accepted, rejected, tokens })
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
    keep: &[u8],
    taken: bool,
) -> Result<()> {
    for mask in masks {
        mask.step_end(sink, batch, keep, taken)?;
    }
    Ok(())
}
