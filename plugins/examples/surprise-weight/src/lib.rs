//! A third-party weight in thirty lines: lets tokens that the policy found too surprising count less.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Weighs a token by `min(1, max_nats / surprise)`, where its surprise is `-logp`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SurpriseWeight {
    /// Largest surprise that counts in full, nats.
    max_nats: f32,
}

impl TokenWeight for SurpriseWeight {
    fn weigh(&mut self, _: &mut Ctx, batch: &Batch, keep: &[u8], weights: &mut [f32]) -> Result<(), PluginError> {
        for (i, weight) in weights.iter_mut().enumerate().filter(|(i, _)| keep[*i] == 1) {
            *weight = (self.max_nats / batch.logps[i].abs()).min(1.0);
        }
        Ok(())
    }

    fn traits(&self) -> MaskTraits {
        MaskTraits::TOKEN_WISE | MaskTraits::NO_OPTIMIZER
    }

    fn validate(&self) -> Result<(), PluginError> {
        if self.max_nats > 0.0 { Ok(()) } else { Err("`max_nats` must be above 0".into()) }
    }
}

register!(TokenWeight, SurpriseWeight, "example.surprise-weight", "lets tokens above a surprise limit count less", {
    max_nats => "largest surprise that counts in full, nats"; 1e-3..50.0,
});

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{self, Fixture};

    #[test]
    fn what_is_above_the_limit_counts_less() {
        let fixture = Fixture::new(2, 3).logps(&[-0.5, -2.0, -4.0, -8.0, -1.0, -9.0]).lengths(&[3, 2]);
        let mut weight = testing::weight::<SurpriseWeight>("max_nats = 2.0").unwrap();
        assert_eq!(fixture.weigh(&mut weight).unwrap().weights, [1.0, 1.0, 0.5, 0.25, 1.0, 0.0]);
    }

    #[test]
    fn its_key_is_described() {
        testing::check_key_docs().unwrap();
    }
}
