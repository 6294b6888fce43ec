//! Applies weights in order: each scales the gradient of the tokens that the masks kept.

use anyhow::{Result, bail};
use capo_plugin::{Batch, Sink, WeightHandle};

use crate::mask::Accepted;

/// Weights of the tokens that the masks kept.
#[derive(Debug)]
pub struct Weighed {
    /// `[B, T]`: the product of all weights; 0 for rejected tokens and padding.
    pub token_weights: Vec<f32>,
    /// The factors of each weight component, in order.
    pub given: Vec<Given>,
}

/// The factors of one weight component, for the tokens that reached it.
#[derive(Debug)]
pub struct Given {
    /// The weight's name in reports.
    pub weight: String,
    /// `[B, T]`: factor of each token.
    pub factors: Vec<f32>,
    /// `[B, T]`: 1 for the tokens that reached it.
    pub reached: Vec<u8>,
}

/// Applies the weights in order to the tokens that are `left` and multiplies them; weight 0 rejects a token as a mask does.
///
/// # Errors
///
/// A weight's own error, a rule of the interface that it broke, or a product that is too large.
pub fn apply(
    weights: &mut [WeightHandle],
    sink: &mut dyn Sink,
    batch: &Batch<'_>,
    left: &mut Accepted,
) -> Result<Weighed> {
    let mut product: Vec<f32> = left.mask.iter().map(|&accepted| f32::from(accepted)).collect();
    let mut given = Vec::with_capacity(weights.len());
    for weight in weights {
        let (mut own, reached) = (vec![0.0; product.len()], left.mask.clone());
        weight.weigh(sink, batch, &left.mask, &mut own)?;
        for ((product, own), accepted) in product.iter_mut().zip(&own).zip(&mut left.mask) {
            *product *= own;
            *accepted &= u8::from(*product != 0.0);
        }
        given.push(Given { weight: weight.id().to_owned(), factors: own, reached });
    }
    if let Some(at) = product.iter().position(|weight| !weight.is_finite()) {
        let tokens = batch.dims.tokens.max(1) as usize;
        let (completion, token) = (at / tokens, at % tokens);
        bail!(
            "the weights of completion {completion}, token {token} multiply to more than {:e} (lower one of them)",
            f32::MAX
        );
    }
    left.tokens = left.mask.iter().map(|&accepted| u64::from(accepted)).sum();
    Ok(Weighed { token_weights: product, given })
}

/// Tells every weight how the step ended.
///
/// # Errors
///
/// A weight's own error.
pub fn step_end(
    weights: &mut [WeightHandle],
    sink: &mut dyn Sink,
    batch: &Batch<'_>,
    weighed: &Weighed,
    taken: bool,
) -> Result<()> {
    for weight in weights {
        weight.step_end(sink, batch, &weighed.token_weights, taken)?;
    }
    Ok(())
}
