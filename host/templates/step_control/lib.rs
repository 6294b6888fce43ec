//! A step control that shortens the steps that would change the policy too much.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Scales a step so that the KL divergence between the policy before and after it comes to at most
/// `target`.
///
/// The fields are the keys of its table in a config.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KlLimit {
    /// Largest KL divergence of a step, nats.
    #[serde(default = "target")]
    target: f64,
}

fn target() -> f64 {
    1e-3
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

    fn validate(&self) -> Result<(), PluginError> {
        if self.target > 0.0 {
            return Ok(());
        }
        Err("`target` must be above 0".into())
    }
}

register!(
    StepControl,
    KlLimit,
    "plugin-name.plugin-point",
    "shortens steps above a KL limit",
    { target = target() => "largest KL divergence of a step, nats" }
);

#[cfg(test)]
mod tests;
