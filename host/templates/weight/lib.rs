//! A weight that lets the tokens that surprised the policy count less.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Weighs a token by `min(1, max_nats / surprise)`, where its surprise is `-logp`.
///
/// The fields are the keys of its table in a config.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SurpriseWeight {
    /// Largest surprise that counts in full, nats.
    #[serde(default = "max_nats")]
    max_nats: f32,
}

fn max_nats() -> f32 {
    2.0
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

    fn validate(&self) -> Result<(), PluginError> {
        let is_limit = (self.max_nats > 0.0).then_some(());
        is_limit.ok_or("`max_nats` must be above 0".into())
    }
}

register!(
    Weight,
    SurpriseWeight,
    "plugin-name.plugin-point",
    "lets tokens above a surprise limit count less",
    { max_nats = max_nats() => "largest surprise that counts in full, nats" }
);

#[cfg(test)]
mod tests;
