//! Masks, one after another: which tokens reach the backward pass.

use anyhow::Result;
use capo_plugin::{Batch, Mask, Sink};

/// Which tokens the masks left.
#[derive(Debug)]
pub struct Keep {
    /// `[B, T]`.
    pub keep: Vec<u8>,
    /// Tokens that each mask dropped, in the masks' order.
    pub rejected: Vec<(String, u64)>,
    /// Tokens that are left.
    pub tokens: u64,
}

/// Applies the masks in order; each sees what the ones before it left.
///
/// # Errors
///
/// A mask's own sentence, or the rule that it broke.
pub fn apply(masks: &mut [Mask], sink: &mut dyn Sink, batch: &Batch<'_>) -> Result<Keep> {
    let count = |keep: &[u8]| keep.iter().map(|&keep| u64::from(keep)).sum();
    let mut keep = batch.completion_mask.to_vec();
    let mut left = count(&keep);
    let mut rejected = Vec::with_capacity(masks.len());
    for mask in masks {
        mask.mask(sink, batch, &mut keep)?;
        let tokens = count(&keep);
        rejected.push((mask.id().to_owned(), left - tokens));
        left = tokens;
    }
    Ok(Keep { keep, rejected, tokens: left })
}

/// Tells every mask how the step ended.
///
/// # Errors
///
/// A mask's own sentence.
pub fn step_end(masks: &mut [Mask], sink: &mut dyn Sink, batch: &Batch<'_>, keep: &Keep, taken: bool) -> Result<()> {
    for mask in masks {
        mask.step_end(sink, batch, &keep.keep, taken)?;
    }
    Ok(())
}
