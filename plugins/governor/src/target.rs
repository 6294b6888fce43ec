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
