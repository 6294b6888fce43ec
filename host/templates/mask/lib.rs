//! A mask that drops the tokens that surprised the policy too much.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Keeps a token while its surprise, `-logp`, is at most `max_nats`.
///
/// The fields are the keys of its table in a config.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SurpriseLimit {
    /// Largest surprise kept, nats.
    #[serde(default = "max_nats")]
    max_nats: f32,
}

fn max_nats() -> f32 {
    6.0
}

impl Mask for SurpriseLimit {
    fn mask(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let surprise: Vec<f32> = batch.logps.iter().map(|logp| -logp).collect();
        for (keep, surprise) in token_mask.iter_mut().zip(&surprise) {
            *keep &= u8::from(*surprise <= self.max_nats);
        }
        ctx.record_tokens("surprise", &surprise);
        Ok(())
    }
}

register!(
    Mask,
    SurpriseLimit,
    "plugin-name.mask",
    "drops tokens above a surprise limit",
    { max_nats = max_nats() => "largest surprise kept, nats"; 1e-3..50.0 }
);

#[cfg(test)]
mod tests;
