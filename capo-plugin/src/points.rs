//! The extension points as plain Rust traits. They may gain methods with defaults; the wire does not change.

use crate::abi_traits::MaskTraits;
use crate::batch::{Batch, Inputs, Reduction};
use crate::ctx::Ctx;
use crate::error::PluginError;
use crate::rollout::Rollout;
use crate::step_control::Update;

fn stateless(state: &[u8]) -> Result<(), PluginError> {
    if state.is_empty() {
        return Ok(());
    }
    let len = state.len();
    Err(PluginError::state(format!(
        "{len} bytes of saved state, but this component keeps none (it was saved by another one)"
    )))
}

/// Completions to rewards. The end of stage 1 of 6.
///
/// What it records in training appears as `rewards/ID/NAME`; `mean` and `std` are taken by the rewards themselves. Its table's key
/// `weight` is the host's. A reward above 0 counts as right when the host measures accuracy.
pub trait Reward: Send {
    /// Fills `rewards`, `[B]`, reward units, one for each of `rollout.completions`. Arrives zeroed. There are no tokens here:
    /// [`Ctx::record_tokens`] takes `[B]`, one number per completion.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from doing so; the run stops with that sentence and can be resumed.
    fn score(&mut self, ctx: &mut Ctx<'_>, rollout: &Rollout<'_>, rewards: &mut [f32]) -> Result<(), PluginError>;

    /// Whether the values of its keys go together and lie within their ranges: asked once, when it is made, before anything else.
    ///
    /// # Errors
    ///
    /// A sentence about what is wrong in its table: the key, the value, the limit. Whatever its kind, it counts as
    /// [`ErrorKind::CONFIG`](crate::ErrorKind::CONFIG), and no run starts.
    fn validate(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// State for checkpoints; a resumed run continues bit for bit.
    ///
    /// # Errors
    ///
    /// When the state cannot be written down.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }

    /// Takes up what [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// When `state` was written by another component, configuration or version; the component stays as it was.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        stateless(state)
    }
}

/// Rewards to advantages. Stage 2 of 6.
pub trait AdvantageEstimator: Send {
    /// Fills `advantages`, `[B, T]`, reward units. Arrives zeroed; padding stays zero.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from doing so; the run stops with that sentence and can be resumed.
    fn estimate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, advantages: &mut [f32]) -> Result<(), PluginError>;

    /// What the host must compute for this component: asked once, when it is made. What it does not name is not in its batches.
    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    /// Whether the values of its keys go together and lie within their ranges: asked once, when it is made, before anything else.
    ///
    /// # Errors
    ///
    /// A sentence about what is wrong in its table: the key, the value, the limit. Whatever its kind, it counts as
    /// [`ErrorKind::CONFIG`](crate::ErrorKind::CONFIG), and no run starts.
    fn validate(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// State for checkpoints; a resumed run continues bit for bit.
    ///
    /// # Errors
    ///
    /// When the state cannot be written down.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }

    /// Takes up what [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// When `state` was written by another component, configuration or version; the component stays as it was.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        stateless(state)
    }
}

/// Per-token results of an objective.
#[derive(Debug)]
pub struct PerToken<'a> {
    /// `[B, T]`: loss to be minimised. Arrives zeroed; padding stays zero.
    pub loss: &'a mut [f32],
    /// `[B, T]`: derivative by this token's entry of `batch.logps` of the *sum of all losses of its completion*, not of its own
    /// loss alone. The two are the same where a token's loss depends on its own log-probability only; where a completion's
    /// tokens share something, such as a ratio, this token's part in the others' losses belongs here. What the method holds
    /// constant (a stop-gradient) is constant here. Arrives zeroed; padding stays zero.
    pub dloss_dlogp: &'a mut [f32],
}

/// Advantages and log-probabilities to a per-token loss. Stage 3 of 6.
///
/// The autograd graph stays in the host: a component returns the loss *and* its derivative by the log-probability, and
/// the host seeds its backward pass with the second, reduced over the tokens that the masks keep. A reduction weighs all
/// tokens of a completion alike; so with the derivative of the completion's summed losses, as [`PerToken`] says, the gradient is
/// right for objectives over whole completions too. [`Fixture::derivative`](crate::testing::Fixture::derivative) measures what
/// it should be.
pub trait Objective: Send {
    /// Fills `out`.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from doing so; the run stops with that sentence and can be resumed.
    fn evaluate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: PerToken<'_>) -> Result<(), PluginError>;

    /// How per-token losses become one number, after masking.
    fn reduction(&self) -> Reduction {
        Reduction::COMPLETION_MEAN
    }

    /// What the host must compute for this component: asked once, when it is made. What it does not name is not in its batches.
    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    /// Whether the values of its keys go together and lie within their ranges: asked once, when it is made, before anything else.
    ///
    /// # Errors
    ///
    /// A sentence about what is wrong in its table: the key, the value, the limit. Whatever its kind, it counts as
    /// [`ErrorKind::CONFIG`](crate::ErrorKind::CONFIG), and no run starts.
    fn validate(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// State for checkpoints; a resumed run continues bit for bit.
    ///
    /// # Errors
    ///
    /// When the state cannot be written down.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }

    /// Takes up what [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// When `state` was written by another component, configuration or version; the component stays as it was.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        stateless(state)
    }
}

/// The last say on which tokens reach the backward pass. Stage 4 of 6.
pub trait PreBackwardMask: Send {
    /// Clears `keep[b * T + t]` for each token to drop. Arrives as the completion mask thinned by the masks before this
    /// one. A mask may only clear: setting a cleared entry is an error.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from doing so; the run stops with that sentence and can be resumed.
    fn mask(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, keep: &mut [u8]) -> Result<(), PluginError>;

    /// Called once after the optimizer step with the final `keep` of all masks, `taken = false` when the step was
    /// skipped: the moment to update a model of the optimizer.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from doing so; the run stops with that sentence and can be resumed.
    fn step_end(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, keep: &[u8], taken: bool) -> Result<(), PluginError> {
        let _ = (ctx, batch, keep, taken);
        Ok(())
    }

    /// What the host must compute for this component: asked once, when it is made. What it does not name is not in its batches.
    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    /// Facts about how it decides, on which a host may rely: asked of an instance made for the question alone. Only what holds for every
    /// batch may be declared; `host check` tries it.
    fn traits(&self) -> MaskTraits {
        MaskTraits::NONE
    }

    /// Whether the values of its keys go together and lie within their ranges: asked once, when it is made, before anything else.
    ///
    /// # Errors
    ///
    /// A sentence about what is wrong in its table: the key, the value, the limit. Whatever its kind, it counts as
    /// [`ErrorKind::CONFIG`](crate::ErrorKind::CONFIG), and no run starts.
    fn validate(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// State for checkpoints; a resumed run continues bit for bit.
    ///
    /// # Errors
    ///
    /// When the state cannot be written down.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }

    /// Takes up what [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// When `state` was written by another component, configuration or version; the component stays as it was.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        stateless(state)
    }
}

/// How much each kept token counts in the gradient. The end of stage 4 of 6: a mask decides 0 or 1, a weight anything from 0 on.
///
/// What the objective said of a token, its loss and its derivative, is multiplied by the weights of all such components. What the
/// reduction counts stays the same: a token of weight one half is still one token; one of weight 0 is dropped as by a mask.
pub trait TokenWeight: Send {
    /// Fills `weights`, `[B, T]`, each finite and 0 or more. Arrives as 1 where `keep` is 1 and as 0 elsewhere, where it stays 0;
    /// `keep` is what all masks left, and what the weights before this one did not set to 0.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from doing so; the run stops with that sentence and can be resumed.
    fn weigh(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        keep: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError>;

    /// Called once after the optimizer step with the product of all `weights`, `[B, T]`, 0 for dropped tokens; `taken = false` when
    /// the step was skipped: the moment to update a model of the optimizer.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from doing so; the run stops with that sentence and can be resumed.
    fn step_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        weights: &[f32],
        taken: bool,
    ) -> Result<(), PluginError> {
        let _ = (ctx, batch, weights, taken);
        Ok(())
    }

    /// What the host must compute for this component: asked once, when it is made. What it does not name is not in its batches.
    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    /// Facts about how it decides, on which a host may rely: asked of an instance made for the question alone. Only what holds for every
    /// batch may be declared; `host check` tries it.
    fn traits(&self) -> MaskTraits {
        MaskTraits::NONE
    }

    /// Whether the values of its keys go together and lie within their ranges: asked once, when it is made, before anything else.
    ///
    /// # Errors
    ///
    /// A sentence about what is wrong in its table: the key, the value, the limit. Whatever its kind, it counts as
    /// [`ErrorKind::CONFIG`](crate::ErrorKind::CONFIG), and no run starts.
    fn validate(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// State for checkpoints; a resumed run continues bit for bit.
    ///
    /// # Errors
    ///
    /// When the state cannot be written down.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }

    /// Takes up what [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// When `state` was written by another component, configuration or version; the component stays as it was.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        stateless(state)
    }
}

/// How much of the update that the optimizer proposes is applied. Within stage 6 of 6, between gradient and new weights.
///
/// It is not called where no step is proposed: where nothing was kept, or the gradient is not finite.
pub trait StepControl: Send {
    /// Scales `update`, by [`Update::scale`] for the whole model or [`Update::scale_group`] for a part of it; each scale is between 0
    /// and 1, and 1 where none is set. The weights become what they were plus that much of the update.
    ///
    /// # Errors
    ///
    /// Whatever keeps it from doing so; the run stops with that sentence and can be resumed.
    fn control(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, update: &mut Update<'_>) -> Result<(), PluginError>;

    /// Whether the optimizer's moments go back to what they were before a step of which nothing is applied, as if there had been
    /// no such step: asked once, when it is made. Where no control says so they stay as the step made them, whatever is applied.
    fn restores_moments(&self) -> bool {
        false
    }

    /// What the host must compute for this component: asked once, when it is made. What it does not name is not in its batches.
    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    /// Whether the values of its keys go together and lie within their ranges: asked once, when it is made, before anything else.
    ///
    /// # Errors
    ///
    /// A sentence about what is wrong in its table: the key, the value, the limit. Whatever its kind, it counts as
    /// [`ErrorKind::CONFIG`](crate::ErrorKind::CONFIG), and no run starts.
    fn validate(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// State for checkpoints; a resumed run continues bit for bit.
    ///
    /// # Errors
    ///
    /// When the state cannot be written down.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }

    /// Takes up what [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// When `state` was written by another component, configuration or version; the component stays as it was.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        stateless(state)
    }
}
