//! Masks with one threshold. The table gives the threshold, or it follows the run so that a chosen
//! fraction of tokens is dropped.

use capo_plugin::Sketch;
use capo_plugin::prelude::*;

use crate::tokens;

/// A mask that drops the tokens at which some quantity exceeds a threshold.
pub(crate) trait Bounded: Send {
    /// `[B, T]`: the bounded quantity; infinite where a token is dropped at any threshold, even an
    /// infinite one.
    fn sizes(&self, batch: &Batch) -> Result<Vec<f64>, PluginError>;

    /// Largest quantity that is kept for a token with this advantage, from the table or the
    /// defaults.
    fn limit(&self, advantage: f32) -> f64;

    /// Value of the threshold's key that corresponds to this limit.
    fn as_key(&self, limit: f64) -> f64 {
        limit
    }

    /// Inputs of the mask.
    fn inputs(&self) -> Inputs;

    /// Declarations of the mask.
    fn traits(&self) -> Traits {
        tokens::ALONE
    }

    /// Refuses keys that contradict each other. `follows_run` is true if the threshold follows the
    /// run.
    fn validate(&self, follows_run: bool) -> Result<(), PluginError> {
        let _ = follows_run;
        Ok(())
    }
}

/// The mask, with a sketch of recent quantities from which a threshold can follow the run.
#[keys]
pub(crate) struct Rated<M> {
    #[key(flatten)]
    mask: M,
    /// Share of tokens to drop, in the place of a threshold, which then follows the run.
    #[key(above = 0, below = 1)]
    target_rejection_rate: Option<f64>,
    sketch: Sketch,
}

/// True if a token of this size is dropped. A limit beyond the range of its numbers is infinite.
fn exceeds(size: f64, limit: f64) -> bool {
    size > limit.min(f64::MAX)
}

/// Sketch of the quantities at completion tokens.
fn sketch(batch: &Batch, sizes: &[f64]) -> Sketch {
    Sketch::of(
        sizes
            .iter()
            .zip(batch.completion_mask)
            .filter(|(_, mask)| **mask == 1)
            .map(|(size, _)| *size),
    )
}

impl<M: Bounded> Mask for Rated<M> {
    fn mask(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        let sizes = self.mask.sizes(batch)?;
        let Some(rate) = self.target_rejection_rate else {
            tokens::drop_where(token_mask, |i| {
                exceeds(sizes[i], self.mask.limit(batch.advantages[i]))
            });
            return Ok(());
        };
        let mut limit = self.sketch.quantile(1.0 - rate);
        if limit.is_none() && !self.traits().contains(Traits::TOKEN_WISE) {
            limit = sketch(batch, &sizes).quantile(1.0 - rate);
        }
        if let Some(limit) = limit {
            tokens::drop_where(token_mask, |i| exceeds(sizes[i], limit));
            ctx.record("threshold", self.mask.as_key(limit));
        }
        Ok(())
    }

    fn step_end(
        &mut self,
        ctx: &mut Ctx,
        batch: &Batch,
        _: &[u8],
        _: bool,
    ) -> Result<(), PluginError> {
        if self.target_rejection_rate.is_none() {
            return Ok(());
        }
        let step = self.mask.sizes(batch).map(|sizes| sketch(batch, &sizes));
        self.sketch.take_in(ctx, step)
    }

    fn inputs(&self) -> Inputs {
        self.mask.inputs()
    }

    fn traits(&self) -> Traits {
        self.mask.traits()
    }

    fn validate(&self) -> Result<(), PluginError> {
        self.mask.validate(self.target_rejection_rate.is_some())
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(if self.target_rejection_rate.is_some() {
            self.sketch.save()
        } else {
            Vec::new()
        })
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        let (sketch, rest) = match self.target_rejection_rate {
            Some(_) => Sketch::load(state)?,
            None => (Sketch::default(), state),
        };
        if !rest.is_empty() {
            let len = rest.len();
            return Err(PluginError::state(format!(
                "{len} bytes of saved state that this mask did not write (it was saved under \
                 another table)"
            )));
        }
        self.sketch = sketch;
        Ok(())
    }
}
