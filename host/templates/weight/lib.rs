//! A weight that lets the tokens that surprised the policy count less.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Lets tokens above a surprise limit count less.
///
/// The weight is `min(1, max_nats / surprise)`, where a token's surprise is `-logp`. The fields
/// with `#[key]` are the keys of its table in a config.
#[component(Weight, id = "plugin-name.plugin-point")]
struct SurpriseWeight {
    /// Largest surprise that counts in full, nats.
    #[key(default = 2.0, above = 0)]
    max_nats: f32,
}

impl Weight for SurpriseWeight {
    fn weigh(
        &mut self,
        _: &mut Ctx,
        batch: &Batch,
        _: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        // 1 for a kept token before, 0 for a dropped one.
        for (weight, logp) in weights.iter_mut().zip(batch.logps) {
            *weight *= (self.max_nats / logp.abs()).min(1.0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
