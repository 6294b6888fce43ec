//! Stage 3: advantages and log-probabilities to a loss per token.

use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::{HostRef, ObjectiveBox, ObjectivePoint, ObjectiveWire, ObjectiveWire_TO, WireBatch, WireError};
use crate::batch::{Batch, Inputs, Reduction};
use crate::call::guarded;
use crate::ctx::Ctx;
use crate::error::PluginError;
use crate::guard::{Answers, Guarded};
use crate::sink::Sink;

/// Per-token results of an objective.
#[derive(Debug)]
pub struct PerToken<'a> {
    /// `[B, T]`: loss to be minimised. Arrives zeroed; padding stays zero.
    pub loss: &'a mut [f32],
    /// `[B, T]`: derivative by this token's entry of `batch.logps` of the *sum of all losses of its completion*, not of its own
    /// loss alone. The two are the same where a token's loss depends on its own log-probability only; where a completion's
    /// tokens share something, such as a ratio, this token's part in the others' losses belongs here. A value that the method
    /// holds constant (a stop-gradient) is constant here. Arrives zeroed; padding stays zero.
    pub dloss_dlogp: &'a mut [f32],
}

/// Advantages and log-probabilities to a per-token loss. Stage 3 of 6.
///
/// The autograd graph stays in the host: a component returns the loss *and* its derivative by the log-probability, and
/// the host starts its backward pass with the second, reduced over the tokens that the masks keep. A reduction weighs all
/// tokens of a completion alike; so with the derivative of the completion's summed losses, as [`PerToken`] says, the gradient is
/// right for objectives over whole completions too. [`Fixture::derivative`](crate::testing::Fixture::derivative) measures what
/// it should be.
pub trait Objective: Send {
    /// Fills `out`.
    ///
    /// # Errors
    ///
    /// A sentence about the reason; the run stops with it and can be resumed.
    fn evaluate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, out: PerToken<'_>) -> Result<(), PluginError>;

    /// How per-token losses become one number, after masking.
    fn reduction(&self) -> Reduction {
        Reduction::COMPLETION_MEAN
    }

    inputs_method!();

    common_methods!();
}

point! {
    Objective: Objective as objective, built by objective "an objective",
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
    /// How its per-token losses become one number.
    #[must_use]
    pub fn reduction(&self) -> Reduction {
        guarded(|| self.wire.reduction())
    }

    /// Calls `evaluate` on zeroed `loss` and `dloss_dlogp`, `[B, T]` each.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke: a value that is not finite, or not zero on padding.
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
