//! A KL divergence that a step keeps to.

/// How much of a step is taken so that its KL divergence, which grows with the square of its length, comes to `target`: all where
/// `kl` is less, nothing where it is not a number.
pub(crate) fn scale(target: f64, kl: f64) -> f64 {
    if !kl.is_finite() {
        0.0
    } else if kl <= target {
        1.0
    } else {
        (target / kl).sqrt()
    }
}

/// Refuses a `target` that cannot be kept to; `usual` says which can.
pub(crate) fn check_target(target: f64, usual: &str) -> Result<(), capo_plugin::PluginError> {
    if target > 0.0 && target.is_finite() {
        return Ok(());
    }
    Err(format!("`target` is {target} (it must be finite and above 0; {usual} nats is usual)").into())
}

#[cfg(test)]
mod tests {
    use super::scale;

    #[test]
    fn a_step_is_shortened_to_its_target_and_never_lengthened() {
        assert_eq!([0.0, 1e-4, 4e-4, 1e300].map(|kl| scale(1e-4, kl)), [1.0, 1.0, 0.5, 1e-152]);
        assert_eq!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|kl| scale(1e-4, kl)), [0.0; 3]);
    }
}
