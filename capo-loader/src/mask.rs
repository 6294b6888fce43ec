//! Masks, one after another: which tokens reach the backward pass.

use anyhow::Result;
use capo_plugin::{Batch, Mask, Sink};

/// Which tokens the masks left.
#[derive(Debug)]
pub struct Keep {
    /// `[B, T]`.
    pub keep: Vec<u8>,
    /// Tokens that each mask dropped, in the masks' order.
    pub rejected: Vec<Rejected>,
    /// Tokens that are left.
    pub tokens: u64,
}

/// Tokens that one mask dropped, of those that the masks before it had left.
#[derive(Debug)]
pub struct Rejected {
    /// The mask's name in reports.
    pub mask: String,
    /// Places in `[B, T]`, in order.
    pub tokens: Vec<usize>,
}

/// Applies the masks in order; each sees what the ones before it left.
///
/// # Errors
///
/// A mask's own sentence, or the rule that it broke.
pub fn apply(masks: &mut [Mask], sink: &mut dyn Sink, batch: &Batch<'_>) -> Result<Keep> {
    let mut keep = batch.completion_mask.to_vec();
    let mut rejected = Vec::with_capacity(masks.len());
    for mask in masks {
        let before = keep.clone();
        mask.mask(sink, batch, &mut keep)?;
        let tokens = (0..keep.len()).filter(|&i| keep[i] < before[i]).collect();
        rejected.push(Rejected { mask: mask.id().to_owned(), tokens });
    }
    let tokens = keep.iter().map(|&keep| u64::from(keep)).sum();
    Ok(Keep { keep, rejected, tokens })
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
