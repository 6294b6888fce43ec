//! Masks, one after another: which tokens reach the backward pass.

use anyhow::Result;
use capo_plugin::{Batch, Mask, Sink};

/// Which tokens the masks left.
#[derive(Debug)]
pub struct Accepted {
    /// `[B, T]`: 1 for tokens that are left, the wire's `keep`.
    pub mask: Vec<u8>,
    /// Tokens that each mask dropped, in the masks' order.
    pub rejected: Vec<Rejected>,
    /// Tokens that are left.
    pub tokens: u64,
}

/// Tokens that one mask dropped, of those that the masks before it had left.
#[derive(Debug)]
pub struct Rejected {
    /// The mask's name in reports.
    pub by: String,
    /// Places in `[B, T]`, in order.
    pub tokens: Vec<usize>,
}

/// Applies the masks in order; each sees what the ones before it left.
///
/// # Errors
///
/// A mask's own sentence, or the rule that it broke.
pub fn apply(masks: &mut [Mask], sink: &mut dyn Sink, batch: &Batch<'_>) -> Result<Accepted> {
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

/// Tells every mask how the step ended, and which tokens were left.
///
/// # Errors
///
/// A mask's own sentence.
pub fn step_end(masks: &mut [Mask], sink: &mut dyn Sink, batch: &Batch<'_>, keep: &[u8], taken: bool) -> Result<()> {
    for mask in masks {
        mask.step_end(sink, batch, keep, taken)?;
    }
    Ok(())
}
