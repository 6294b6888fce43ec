//! Masks that drop a set share of a step's tokens, as controls for other masks: random tokens, and
//! the least probable ones.

use std::marker::PhantomData;

use capo_plugin::Draws;
use capo_plugin::prelude::*;

use crate::{checks, tokens};

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

#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound = "")]
struct Share<O> {
    #[serde(default = "share")]
    share: f64,
    #[serde(skip)]
    order: PhantomData<O>,
}

fn share() -> f64 {
    0.02
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

    fn validate(&self) -> Result<(), PluginError> {
        checks::share("share", self.share)
    }

    fn traits(&self) -> Traits {
        Traits::NO_OPTIMIZER
    }
}

register!(Mask, Share<Random>, "masks.random", "drops random tokens, drawn from the run's seed and the step", {
    share = share() => "share of the tokens that goes"; 1e-4..1.0,
});
register!(Mask, Share<LeastProbable>, "masks.probability-quantile", "drops the least probable tokens", {
    share = share() => "share of the tokens that goes"; 1e-4..1.0,
});
