//! Drops completions that the length limit cut off: their reward says nothing about what would have come.

#![forbid(unsafe_code)]

use capo_plugin::prelude::*;

/// Keeps the tokens of completions that ended by themselves.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Truncated {}

impl PreBackwardMask for Truncated {
    fn mask(&mut self, _: &mut Ctx, batch: &Batch, keep: &mut [u8]) -> Result<(), PluginError> {
        for (b, truncated) in batch.truncated.iter().enumerate() {
            if *truncated == 1 {
                keep[batch.dims.row(b)].fill(0);
            }
        }
        Ok(())
    }

    fn traits(&self) -> MaskTraits {
        MaskTraits::TOKEN_WISE | MaskTraits::NO_OPTIMIZER
    }
}

register!(PreBackwardMask, Truncated, "example.truncated", "drops completions that the length limit cut off");

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{self, Fixture};

    #[test]
    fn drops_all_tokens_of_what_was_cut_off() {
        let fixture = Fixture::new(3, 3).lengths(&[3, 3, 2]).truncated(&[1, 0, 0]);
        let mut mask = testing::mask::<Truncated>("").unwrap();
        assert_eq!(fixture.mask(&mut mask).unwrap().keep, [0, 0, 0, 1, 1, 1, 1, 1, 0]);
    }
}
