//! A mask that drops the tokens that surprised the policy too much.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Drops tokens above a surprise limit.
///
/// The fields with `#[key]` are the keys of its table in a config.
#[component(Mask, id = "plugin-name.mask")]
struct SurpriseLimit {
    /// Largest surprise, `-logp`, that is kept, nats.
    #[key(default = 6.0, above = 0, search = 1e-3..=50.0)]
    max_nats: f32,
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

#[cfg(test)]
mod tests;
