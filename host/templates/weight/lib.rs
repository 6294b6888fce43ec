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

impl TokenWeight for SurpriseWeight {
    fn weigh(&mut self, _: &mut Ctx, batch: &Batch, keep: &[u8], weights: &mut [f32]) -> Result<(), PluginError> {
        for (i, weight) in weights.iter_mut().enumerate().filter(|(i, _)| keep[*i] == 1) {
            *weight = (self.max_nats / batch.logps[i].abs()).min(1.0);
        }
        Ok(())
    }

    fn validate(&self) -> Result<(), PluginError> {
        if self.max_nats > 0.0 { Ok(()) } else { Err("`max_nats` must be above 0".into()) }
    }
}

register!(
    TokenWeight,
    SurpriseWeight,
    "plugin-name.plugin-point",
    "lets tokens above a surprise limit count less",
    { max_nats = max_nats() => "largest surprise that counts in full, nats" }
);

#[cfg(test)]
mod tests;
