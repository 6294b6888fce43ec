//! Governors of the optimizer's step: they shorten it where it would move the policy too far. And the recipe that
//! `--plugin libgovernor.so` selects.

#![forbid(unsafe_code)]

mod kl;
mod last_layer;

use capo_plugin::{recipe, register};

use kl::Kl;
use last_layer::LastLayerGovernor;

register!(StepControl, Kl, "governor.kl", "shortens steps whose KL divergence exceeds a target", {
    target = kl::TARGET => "largest KL divergence of a step, nats per completion token",
    fraction = kl::FRACTION => "share of the completions on which it is measured, above 0 and at most 1",
    every = kl::EVERY => "measure every so many steps; in between the KL is told from Adam's second moment",
});
register!(
    StepControl,
    LastLayerGovernor,
    "governor.last-layer",
    "shortens steps that would move the policy too far by the last layer alone",
    { target = last_layer::TARGET => "largest predicted KL divergence of the last layer's step, nats per kept token" }
);
recipe!("governed-grpo", "GRPO whose steps keep to a KL divergence", include_str!("../recipe.toml"));

/// How much of a step is taken so that its KL divergence, which grows with the square of its length, comes to `target`: all where
/// `kl` is less, nothing where it is not a number.
fn scale(target: f64, kl: f64) -> f64 {
    if !kl.is_finite() {
        0.0
    } else if kl <= target {
        1.0
    } else {
        (target / kl).sqrt()
    }
}

/// Whether `target` can be kept to; `usual` says what is.
fn check_target(target: f64, usual: &str) -> Result<(), capo_plugin::PluginError> {
    if target > 0.0 && target.is_finite() {
        return Ok(());
    }
    Err(format!("`target` is {target} (it must be finite and above 0; {usual} nats is usual)").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_components_conform() {
        capo_plugin::testing::conform(&[]).unwrap();
    }

    #[test]
    fn a_step_is_shortened_to_its_target_and_never_lengthened() {
        assert_eq!([0.0, 1e-4, 4e-4, 1e300].map(|kl| scale(1e-4, kl)), [1.0, 1.0, 0.5, 1e-152]);
        assert_eq!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|kl| scale(1e-4, kl)), [0.0; 3]);
    }
}
