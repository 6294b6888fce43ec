//! A step control that shortens the steps that would change the policy too much.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Shortens steps above a limit on the KL divergence between the policy before and after them.
///
/// The fields with `#[key]` are the keys of its table in a config.
#[component(StepControl, id = "plugin-name.plugin-point")]
struct KlLimit {
    /// Largest KL divergence of a step, nats.
    #[key(default = 1e-3, above = 0)]
    target: f64,
}

impl StepControl for KlLimit {
    fn control(
        &mut self,
        ctx: &mut Ctx,
        _: &Batch,
        update: &mut Update,
    ) -> Result<(), PluginError> {
        let kl = update.measure_kl(0.125)?;
        ctx.record("kl", kl);
        // The KL grows with the square of the step's length.
        let scale = (self.target / kl).sqrt().min(1.0);
        update.scale(if kl.is_finite() { scale } else { 0.0 });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
