//! The scale with which a step stays within a target KL divergence.

/// Scale at which a step's KL divergence equals `target`; the divergence grows with the square of
/// the step's length. 1 where `kl` is at most `target`, 0 where `kl` is not finite.
pub(crate) fn scale(target: f64, kl: f64) -> f64 {
    if !kl.is_finite() {
        0.0
    } else if kl <= target {
        1.0
    } else {
        (target / kl).sqrt()
    }
}

/// Refuses a `target` that is not finite and positive; the message recommends the range `usual`.
pub(crate) fn check_target(target: f64, usual: &str) -> Result<(), capo_plugin::PluginError> {
    if target > 0.0 && target.is_finite() {
        return Ok(());
    }
    Err(
        format!("`target` is {target} (it must be finite and above 0; {usual} nats is usual)")
            .into(),
    )
}
