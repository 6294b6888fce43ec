//! Drops tokens that the current policy holds for next to impossible: their gradient is large and there is little to gain.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Keeps a token while its probability under the current policy, `exp(logp)`, is at least `min_probability`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbabilityFloor {
    /// Smallest probability kept.
    min_probability: f32,
}

impl PreBackwardMask for ProbabilityFloor {
    fn mask(&mut self, _: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        for (keep, logp) in keep.iter_mut().zip(batch.logps) {
            *keep &= u8::from(logp.exp() >= self.min_probability);
        }
        Ok(())
    }

    fn traits(&self) -> MaskTraits {
        MaskTraits::TOKEN_WISE | MaskTraits::NO_OPTIMIZER
    }

    fn validate(&self) -> Result<(), PluginError> {
        if (0.0..=1.0).contains(&self.min_probability) {
            return Ok(());
        }
        Err(PluginError::config(format!("`min_probability` is {} (use 0 to 1)", self.min_probability)))
    }
}

register!(PreBackwardMask, ProbabilityFloor, "example.probability-floor", "drops tokens below a probability", {
    min_probability => "smallest probability kept, 0 to 1"; 1e-6..1.0,
});

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{self, Fixture};

    #[test]
    fn drops_only_what_is_below_the_floor() {
        let fixture = Fixture::new(2, 3).logps(&[-0.1, -2.0, -2.5, -9.0, -0.5, -9.0]).lengths(&[3, 2]);
        let mut mask = testing::mask::<ProbabilityFloor>("min_probability = 0.1").unwrap();
        assert_eq!(fixture.mask(&mut mask).unwrap().keep, [1, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn its_key_is_described_and_checked() {
        testing::check_key_docs().unwrap();
        let error = testing::mask::<ProbabilityFloor>("min_probability = 10").err().unwrap();
        assert_eq!(error.to_string(), "`min_probability` is 10 (use 0 to 1)");
    }
}
