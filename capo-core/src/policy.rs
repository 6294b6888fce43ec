//! Which distribution the tokens came from.

use crate::Error;

/// The sampling policy: a softmax over the largest logits, renormalised, with the sampled token always inside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// What raw logits are divided by; above 0.
    pub temperature: f32,
    /// The sampler's own limit, at least 1; `None` or anything above K uses all K kept logits.
    pub top_k: Option<usize>,
}

impl Policy {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let temperature = self.temperature;
        if !(temperature.is_finite() && temperature > 0.0) {
            return Err(Error::new(format!(
                "sampling temperature is `{temperature}`, expected a finite number above 0 (greedy sampling has no policy gradient)"
            )));
        }
        if self.top_k == Some(0) {
            return Err(Error::new("`top_k` is 0, expected at least 1 (leave it out for no limit)"));
        }
        Ok(())
    }

    /// How many of the K kept logits belong to the policy.
    pub(crate) fn columns(&self, k: usize) -> usize {
        self.top_k.map_or(k, |limit| limit.min(k))
    }

    /// Replaces logits by probabilities: softmax of logits ÷ temperature over the entries given.
    pub(crate) fn normalise(&self, logits: &mut [f64]) {
        let temperature = f64::from(self.temperature);
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        for x in logits.iter_mut() {
            *x = ((*x - largest) / temperature).exp();
        }
        let total: f64 = logits.iter().sum();
        for x in logits.iter_mut() {
            *x /= total;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_is_normalised_at_any_temperature_and_scale() {
        for temperature in [1e-30, 0.9, 1.0, 1e30] {
            let mut x = [3.0, 1.0, -2.0, -3e38];
            Policy { temperature, top_k: None }.normalise(&mut x);
            assert!((x.iter().sum::<f64>() - 1.0).abs() < 1e-15, "{temperature}: {x:?}");
            assert!(x.windows(2).all(|w| w[0] >= w[1]));
        }
        let mut x = [2.0, 2.0 - 0.9 * 3.0_f64.ln()];
        Policy { temperature: 0.9, top_k: None }.normalise(&mut x);
        assert!((x[0] - 0.75).abs() < 1e-7, "{x:?}");
    }
}
