//! Masks that drop a set share of a step's tokens, as controls for other masks: random tokens, and
//! the least probable ones.

use std::marker::PhantomData;

use capo_plugin::Draws;
use capo_plugin::prelude::*;

use crate::tokens;

/// An order of tokens, of which the first ones are dropped.
trait Order: Send {
    fn sort(batch: &Batch, places: &mut Vec<usize>);
}

/// The control that every study of a mask needs.
struct Random;

/// The control for masks that tend to drop improbable tokens.
struct LeastProbable;

impl Order for Random {
    fn sort(batch: &Batch, places: &mut Vec<usize>) {
        Draws::new(batch.seed ^ STREAM, batch.step).shuffle(places);
    }
}

impl Order for LeastProbable {
    fn sort(batch: &Batch, places: &mut Vec<usize>) {
        places.sort_by(|&a, &b| batch.logps[a].total_cmp(&batch.logps[b]));
    }
}

/// Constant that separates the random mask's draws from those of other components.
const STREAM: u64 = 0x4A4D_0311;

#[keys]
struct Share<O> {
    /// Share of the tokens that is dropped.
    #[key(default = 0.02, at_least = 0, at_most = 1, search = 1e-4..=1.0)]
    share: f64,
    order: PhantomData<O>,
}

impl<O: Order> Mask for Share<O> {
    fn mask(
        &mut self,
        _: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let mut left = tokens::left(token_mask);
        O::sort(batch, &mut left);
        let count = (self.share * left.len() as f64).round() as usize;
        left.into_iter().take(count).for_each(|i| token_mask[i] = 0);
        Ok(())
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}

register!(
    Mask,
    Share<Random>,
    "masks.random",
    "Drops random tokens, drawn from the run's seed and the step."
);
register!(
    Mask,
    Share<LeastProbable>,
    "masks.probability-quantile",
    "Drops the least probable tokens."
);
