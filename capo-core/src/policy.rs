//! The distribution from which the tokens were sampled.

use crate::Error;
use crate::error::ensure;

/// The sampling policy: a softmax over the largest logits, renormalised, with the sampled token
/// always inside.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// Divisor of the raw logits; above 0.
    pub temperature: f32,
    /// The sampler's top-k, at least 1; `None` or a value above K uses all K kept logits.
    pub top_k: Option<usize>,
}

impl Policy {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let temperature = self.temperature;
        ensure(temperature.is_finite() && temperature > 0.0, || {
            format!(
                "sampling temperature is `{temperature}`, expected a finite number above 0 (greedy \
                 sampling has no policy gradient)"
            )
        })?;
        ensure(
            self.top_k != Some(0),
            || "`top_k` is 0, expected at least 1 (leave it out for no limit)",
        )
    }
}
