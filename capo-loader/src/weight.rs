//! Applies weights in order: each scales the gradient of the tokens that the masks and the earlier
//! weights left.

use anyhow::{Result, bail};
use capo_plugin::{Batch, Sink, WeightHandle};

use crate::decision::{Decision, Factors};

/// Applies the weights in order to the tokens of the masks' `decision` and multiplies them; weight
/// 0 rejects a token as a mask does.
///
/// # Errors
///
/// A weight's own error, a rule of the interface that it broke, or a product that is too large.
pub fn apply(
    weights: &mut [WeightHandle],
    sink: &mut dyn Sink,
    batch: &Batch<'_>,
    decision: &mut Decision,
) -> Result<()> {
    weights
        .iter_mut()
        .try_for_each(|weight| apply_one(weight, sink, batch, decision))
}

/// Applies the next weight to the tokens that the masks and the earlier weights of `decision` left,
/// and multiplies its factors in.
///
/// # Errors
///
/// The weight's own error, a rule of the interface that it broke, or a product that is too large.
pub fn apply_one(
    weight: &mut WeightHandle,
    sink: &mut dyn Sink,
    batch: &Batch<'_>,
    decision: &mut Decision,
) -> Result<()> {
    let Decision {
        token_mask,
        token_weights,
        factors,
        ..
    } = decision;
    let reached = token_mask.clone();
    let mut own = vec![0.0; token_weights.len()];
    weight.weigh(sink, batch, token_mask, &mut own)?;
    for ((product, own), token) in token_weights.iter_mut().zip(&own).zip(token_mask) {
        *product *= own;
        *token &= u8::from(*product != 0.0);
    }
    factors.push(Factors {
        by: weight.id().to_owned(),
        factors: own,
        token_mask: reached,
    });
    check_product(token_weights, batch)
}

/// Refuses a product of weights that is not finite.
fn check_product(token_weights: &[f32], batch: &Batch<'_>) -> Result<()> {
    let Some(at) = token_weights.iter().position(|weight| !weight.is_finite()) else {
        return Ok(());
    };
    let tokens = batch.dims.tokens.max(1) as usize;
    let (completion, token) = (at / tokens, at % tokens);
    bail!(
        "the weights of completion {completion}, token {token} multiply to more than {:e} (lower one of them)",
        f32::MAX
    )
}
