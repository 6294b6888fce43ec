//! The slope of the loss of new completions along the steps before they were sampled: it says
//! whether these steps still lead downhill.

use capo_plugin::Denominator;
use capo_plugin::prelude::*;

/// How fast the loss of a batch falls along the steps before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slope {
    /// `−g · d`, with the gradient g before clipping and the unit vector d along the steps so far,
    /// as the optimizer's mean remembers them. Loss per unit of length.
    pub fall: f64,
    /// `Σ c²` over the tokens, with the derivative c of the loss by a token's log-probability.
    pub squares: f64,
    /// Upside of the batch, √((1 − p) / p) where a share p of its completions is right. Where it is
    /// large, there is much to gain and little to lose.
    pub upside: f64,
}

impl Slope {
    /// The slope for `batch`; `None` where the trainer does not know it, where no completion has an
    /// advantage, where earlier steps have used the completions, and for a reduction of a later
    /// version.
    pub(crate) fn of(batch: &Batch, update: &mut Update) -> Result<Option<Self>, PluginError> {
        // Steps always agree with the completions that they were made for.
        if batch.iteration > 0 {
            return Ok(None);
        }
        let squares = squares(batch, update.weights()).filter(|squares| *squares > 0.0);
        let Some(squares) = squares else {
            return Ok(None);
        };
        let cosine = update.alignment()?;
        let norm = update.gradient_norm()?;
        Ok(cosine.zip(norm).map(|(cosine, norm)| Self {
            fall: cosine * norm,
            squares,
            upside: upside(batch),
        }))
    }

    /// The slope in units of its standard error. A unit of length along the steps costs `cost`
    /// nats of KL divergence per token.
    ///
    /// To first order a step Δ changes the loss by `g · Δ = Σ c Δlog p`, a sum over tokens. If Δ
    /// knows nothing of these completions, then the summands are independent of each other, with
    /// mean 0, and `Δlog p` has variance 2 K, where K is the step's divergence. So the sum has the
    /// standard error √(2 K Σ c²).
    pub(crate) fn errors(self, cost: f64) -> f64 {
        self.fall / (2.0 * cost * self.squares).sqrt()
    }
}

/// √((1 − p) / p) of rewards that are right or wrong, of which a share p is right. It follows from
/// the skewness s of the advantages, whatever their scale and mean: s is the upside minus its
/// inverse. Rewards of another kind have the upside of the two values with that skewness; it is 1
/// where they are symmetric.
fn upside(batch: &Batch) -> f64 {
    let mut count = 0.0;
    let mut squares = 0.0;
    let mut cubes = 0.0;
    for b in 0..batch.dims.completions as usize {
        let mut tokens = batch.dims.row(b).filter(|i| batch.completion_mask[*i] != 0);
        let advantage = tokens
            .next()
            .map_or(0.0, |i| f64::from(batch.advantages[i]));
        // Completions of a prompt that are all right, or all wrong, say nothing.
        if advantage != 0.0 {
            count += 1.0;
            squares += advantage.powi(2);
            cubes += advantage.powi(3);
        }
    }
    let skewness: f64 = cubes / count / (squares / count).powf(1.5);
    (skewness + skewness.hypot(2.0)) / 2.0
}

/// `Σ c²` of a loss whose token derivatives are those of −A log p, times the tokens' `weights`. The
/// ratio to the old policy and the clip range are left out: where they matter, the sum is slightly
/// too large.
fn squares(batch: &Batch, weights: &[f32]) -> Option<f64> {
    let dims = batch.dims;
    let kept: Vec<u8> = (weights.iter().zip(batch.completion_mask))
        .map(|(weight, mask)| u8::from(*weight != 0.0 && *mask != 0))
        .collect();
    let counted = match batch.denominator {
        Denominator::KEPT => &kept,
        _ => batch.completion_mask,
    };
    let scales = batch
        .reduction
        .scales(dims, batch.max_completion_length, counted)?;
    let mut sum = 0.0;
    for (b, scale) in scales.into_iter().enumerate() {
        for i in dims.row(b).filter(|i| batch.completion_mask[*i] != 0) {
            let factor = scale * f64::from(batch.advantages[i]) * f64::from(weights[i]);
            sum += factor * factor;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests;
