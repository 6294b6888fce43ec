//! Applies weights in order: each scales the gradient of the tokens that the masks kept.

use anyhow::{Result, bail};
use capo_plugin::{Batch, Sink, WeightHandle};

use crate::decision::{Decision, Factors};

/// Applies the weights in order to the tokens of the masks' `decision` and multiplies them; weight 0 rejects a token as a mask does.
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
    let Decision { token_mask, token_weights, factors, .. } = decision;
    for weight in weights {
        let (mut own, reached) = (vec![0.0; token_weights.len()], token_mask.clone());
        weight.weigh(sink, batch, token_mask, &mut own)?;
        for ((product, own), token) in token_weights.iter_mut().zip(&own).zip(&mut *token_mask) {
            *product *= own;
            *token &= u8::from(*product != 0.0);
        }
        factors.push(Factors { by: weight.id().to_owned(), factors: own, token_mask: reached });
    }
    if let Some(at) = token_weights.iter().position(|weight| !weight.is_finite()) {
        let tokens = batch.dims.tokens.max(1) as usize;
        let (completion, token) = (at / tokens, at % tokens);
        bail!(
            "the weights of completion {completion}, token {token} multiply to more than {:e} (lower one of them)",
            f32::MAX
        );
    }
    Ok(())
}
