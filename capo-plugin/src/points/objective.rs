//! Stage 3: from advantages and log-probabilities to a loss per token.

use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::{HostRef, ObjectiveBox, ObjectivePoint, ObjectiveWire, ObjectiveWire_TO, WireBatch, WireError};
use crate::guard::{Answers, Guarded};
use crate::{Batch, Ctx, Inputs, PluginError, Reduction, Sink, guarded};

/// Per-token results of an objective.
#[derive(Debug)]
pub struct PerToken<'a> {
    /// `[B, T]`: loss to be minimised. The array arrives zeroed, and padding must stay zero.
    pub loss: &'a mut [f32],
    /// `[B, T]`: derivative, by this token's entry of `batch.logps`, of the *sum of all losses of its completion*, not of its
    /// own loss alone. The two agree where a token's loss depends on its own log-probability only. Where tokens of a
    /// completion share a term, such as a ratio, include this token's effect on the others' losses. A value that the method
    /// holds constant (stop-gradient) is constant here. The array arrives zeroed, and padding must stay zero.
    pub dloss_dlogp: &'a mut [f32],
}

/// Computes a per-token loss from advantages and log-probabilities. Stage 3 of 6.
///
/// The autograd graph stays in the host. A component returns the loss *and* its derivative by the log-probability.
/// The derivative, reduced over the kept tokens, starts the host's backward pass. A reduction weighs all tokens of a
/// completion alike. Therefore the derivative of the completion's summed losses ([`PerToken`]) also gives the right
/// gradient for objectives over whole completions. [`Fixture::derivative`](crate::testing::Fixture::derivative)
/// measures the expected derivative.
pub trait Objective: Send {
    /// Fills `out` with the loss and its derivative per token.
    ///
    /// # Errors
    ///
    /// A message with the reason; the run stops with it and can be resumed.
    fn evaluate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: PerToken<'_>) -> Result<(), PluginError>;

    /// Rule that reduces per-token losses to one number, after masking.
    fn reduction(&self) -> Reduction {
        Reduction::COMPLETION_MEAN
    }

    inputs_method!();

    common_methods!();
}

point! {
    Objective: Objective, built by objective "an objective",
    ObjectivePoint of ObjectiveBox over ObjectiveWire_TO inputs,
    ObjectiveFn answers |component| Answers {
        inputs: component.inputs(),
        reduction: component.reduction(),
        ..Answers::NONE
    }
}

impl<T: Objective> ObjectiveWire for Guarded<T> {
    guarded_inputs!();

    fn reduction(&self) -> Reduction {
        self.answers.reduction
    }

    fn evaluate(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        loss: RSliceMut<'_, f32>,
        dloss_dlogp: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        let out = PerToken { loss: loss.into_mut_slice(), dloss_dlogp: dloss_dlogp.into_mut_slice() };
        self.call("evaluate", |component| component.evaluate(&mut Ctx::new(host), &batch.into(), out))
    }

    guarded_state!();
}

impl ObjectiveFn {
    /// Rule that reduces the component's per-token losses to one number.
    pub fn reduction(&self) -> Reduction {
        guarded(|| self.wire.reduction())
    }

    /// Calls `evaluate` on zeroed `loss` and `dloss_dlogp`, `[B, T]` each.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a value that is not finite, or not zero on padding.
    pub fn evaluate(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        loss: &mut [f32],
        dloss_dlogp: &mut [f32],
    ) -> Result<(), PluginError> {
        assert!(
            loss.len() == batch.dims.len() && dloss_dlogp.len() == loss.len(),
            "`loss` and `dloss_dlogp` are [B, T]"
        );
        loss.fill(0.0);
        dloss_dlogp.fill(0.0);
        self.call("evaluate", sink, batch, |wire, host, seen| {
            let (loss, slope) = (RSliceMut::from_mut_slice(loss), RSliceMut::from_mut_slice(dloss_dlogp));
            wire.evaluate(host, seen, loss, slope)
        })?;
        self.check_per_token("the loss", loss, batch)?;
        self.check_per_token("the loss's derivative", dloss_dlogp, batch)
    }
}
