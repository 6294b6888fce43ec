//! Drops completions that the length limit cut off, because their reward says nothing about the
//! missing rest.
//!
//! TRL, `mask_truncated_completions`; DAPO's overlong filtering, arXiv 2503.14476.

use capo_plugin::prelude::*;

use crate::tokens;

/// Drops completions that the length limit cut off.
#[component(Mask, id = "masks.truncated")]
struct Truncated {}

impl Mask for Truncated {
    fn mask(
        &mut self,
        _: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        for (b, _) in batch
            .truncated
            .iter()
            .enumerate()
            .filter(|(_, truncated)| **truncated == 1)
        {
            token_mask[batch.dims.row(b)].fill(0);
        }
        Ok(())
    }

    fn traits(&self) -> Traits {
        tokens::ALONE
    }
}
