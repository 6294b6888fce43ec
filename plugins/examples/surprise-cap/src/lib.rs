//! A third-party mask in thirty lines: drops tokens that the policy found too surprising.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Drops tokens above a surprise limit.
#[component(Mask, id = "example.surprise-cap")]
struct SurpriseCap {
    /// Largest surprise, `-logp`, that is kept, nats.
    #[key(above = 0, search = 1e-3..=50.0)]
    max_nats: f32,
}

impl Mask for SurpriseCap {
    fn mask(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let mut largest = 0.0_f32;
        for (keep, logp) in token_mask.iter_mut().zip(batch.logps) {
            if *keep == 1 {
                largest = largest.max(-logp);
                *keep = u8::from(-logp <= self.max_nats);
            }
        }
        ctx.record("largest_nats", f64::from(largest));
        Ok(())
    }

    fn traits(&self) -> Traits {
        Traits::TOKEN_WISE | Traits::NO_OPTIMIZER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{self, Fixture};

    #[test]
    fn drops_only_what_is_above_the_limit() {
        let fixture = Fixture::new(2, 3)
            .logps(&[-0.1, -0.2, -9.0, -0.1, -9.0, -0.3])
            .lengths(&[3, 2]);
        let mut mask = testing::mask::<SurpriseCap>("max_nats = 5.0").unwrap();
        let masked = fixture.mask(&mut mask).unwrap();
        assert_eq!(masked.token_mask, [1, 1, 0, 1, 0, 0]);
        assert_eq!(masked.records.number("largest_nats"), Some(9.0));
    }
}
