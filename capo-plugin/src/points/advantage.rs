//! Stage 2: from rewards to advantages.

use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::{AdvantageBox, AdvantagePoint, AdvantageWire, AdvantageWire_TO, HostRef, WireBatch, WireError};
use crate::guard::{Answers, Guarded};
use crate::{Batch, Ctx, Inputs, PluginError, Sink};

/// Computes advantages from rewards. Stage 2 of 6.
pub trait AdvantageEstimator: Send {
    /// Fills `advantages`, `[B, T]`, reward units. The array arrives zeroed, and padding must stay zero.
    ///
    /// # Errors
    ///
    /// A message with the reason; the run stops with it and can be resumed.
    fn estimate(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, advantages: &mut [f32]) -> Result<(), PluginError>;

    inputs_method!();

    common_methods!();
}

point! {
    Advantage: AdvantageEstimator, built by advantage "an advantage estimator",
    AdvantagePoint of AdvantageBox over AdvantageWire_TO inputs,
    Advantage answers |component| Answers { inputs: component.inputs(), ..Answers::NONE }
}

impl<T: AdvantageEstimator> AdvantageWire for Guarded<T> {
    guarded_inputs!();

    guarded_fill!(estimate(batch: WireBatch, advantages: f32));

    guarded_state!();
}

impl Advantage {
    /// Calls `estimate` on zeroed `advantages`, `[B, T]`.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a value that is not finite, or not zero on padding.
    pub fn estimate(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError> {
        assert_eq!(advantages.len(), batch.dims.len(), "`advantages` is [B, T]");
        advantages.fill(0.0);
        self.call("estimate", sink, batch, |wire, host, seen| {
            wire.estimate(host, seen, RSliceMut::from_mut_slice(advantages))
        })?;
        self.check_per_token("the advantage", advantages, batch)
    }
}
