//! Stage 3: from advantages and log-probabilities to a loss per token.

use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RVec};

use crate::guard::{Answers, Guarded};
use crate::wire::{HostRef, ObjectiveBox, WireBatch, WireError, WireObjective, WireObjective_TO};
use crate::{Batch, Ctx, Extension, Inputs, PluginError, Reduction, Sink, keeping_arithmetic};

/// Per-token results of an objective.
#[derive(Debug)]
#[non_exhaustive]
pub struct TokenLosses<'a> {
    /// `[B, T]`: loss to be minimised. The array arrives zeroed, and padding must stay zero.
    pub losses: &'a mut [f32],
    /// `[B, T]`: derivative, by this token's entry of `batch.logps`, of the *sum of all losses of
    /// its completion*, not of its own loss alone. The two agree where a token's loss depends on
    /// its own log-probability only. Where tokens of a completion share a term, such as a ratio,
    /// include this token's effect on the others' losses. A value that the method holds constant
    /// (stop-gradient) is constant here. The array arrives zeroed, and padding must stay zero.
    pub dloss_dlogp: &'a mut [f32],
}

/// Computes a per-token loss from advantages and log-probabilities. Stage 3 of 6.
///
/// The autograd graph stays in the host. A component returns the loss *and* its derivative by the
/// log-probability. The derivative, reduced over the kept tokens, starts the host's backward pass.
/// A reduction weighs all tokens of a completion alike. Therefore the derivative of the
/// completion's summed losses ([`TokenLosses`]) also gives the right gradient for objectives over
/// whole completions. [`Fixture::derivative`](crate::testing::Fixture::derivative) measures the
/// expected derivative.
pub trait Objective: Send {
    /// Fills `out` with the loss and its derivative per token.
    fn evaluate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        out: TokenLosses<'_>,
    ) -> Result<(), PluginError>;

    /// Rule that reduces per-token losses to one number, after masking.
    fn reduction(&self) -> Reduction {
        Reduction::COMPLETION_MEAN
    }

    /// Optional arrays of the batch that the host must compute for this component; the others are
    /// absent. Asked once, at creation.
    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    /// Refuses key values that are out of range or contradict each other, with the key, the value
    /// and the limit. Asked once, at creation, before all else; no run starts after an error.
    fn validate(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// State for a checkpoint; a resumed run continues bit for bit.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }

    /// Restores the state that [`save`](Self::save) wrote. After an error, because the state is
    /// another component's, the component is as it was.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        PluginError::of_stateless(state)
    }
}

point! {
    Objective, built by objective "an objective",
    as ObjectiveBox over WireObjective_TO,
    held as ObjectiveHandle,
    component answers Answers {
        inputs: component.inputs(),
        reduction: component.reduction(),
        ..Answers::NONE
    }
}

impl<T: Objective> WireObjective for Guarded<T> {
    fn reduction(&self) -> Reduction {
        self.answers.reduction
    }

    fn evaluate(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        losses: RSliceMut<'_, f32>,
        dloss_dlogp: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        let out = TokenLosses {
            losses: losses.into_mut_slice(),
            dloss_dlogp: dloss_dlogp.into_mut_slice(),
        };
        self.call("evaluate", |component| {
            component.evaluate(&mut Ctx::new(host), &batch.into(), out)
        })
    }

    guarded_methods!();
}

impl ObjectiveHandle {
    /// Rule that reduces the component's per-token losses to one number.
    pub fn reduction(&self) -> Reduction {
        keeping_arithmetic(|| self.wire.reduction())
    }

    /// Calls `evaluate` on zeroed `losses` and `dloss_dlogp`, `[B, T]` each.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a value that is not finite, or not zero
    /// on padding.
    pub fn evaluate(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        losses: &mut [f32],
        dloss_dlogp: &mut [f32],
    ) -> Result<(), PluginError> {
        assert!(
            losses.len() == batch.dims.len() && dloss_dlogp.len() == losses.len(),
            "`losses` and `dloss_dlogp` are [B, T]"
        );
        losses.fill(0.0);
        dloss_dlogp.fill(0.0);
        self.call("evaluate", sink, batch, |wire, host, seen| {
            wire.evaluate(
                host,
                seen,
                RSliceMut::from_mut_slice(losses),
                RSliceMut::from_mut_slice(dloss_dlogp),
            )
        })?;
        self.check_per_token("the loss", losses, batch)?;
        self.check_per_token("the loss's derivative", dloss_dlogp, batch)
    }
}
