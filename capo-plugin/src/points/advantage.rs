//! Stage 2: from rewards to advantages.

use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RVec};

use crate::guard::{Answers, Guarded};
use crate::wire::{AdvantageBox, HostRef, WireAdvantage, WireAdvantage_TO, WireBatch, WireError};
use crate::{Batch, Ctx, Extension, Inputs, PluginError, Sink};

/// Computes advantages from rewards. Stage 2 of 6.
pub trait Advantage: Send {
    /// Fills `advantages`, `[B, T]`, reward units. The array arrives zeroed, and padding must stay
    /// zero.
    fn estimate(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        advantages: &mut [f32],
    ) -> Result<(), PluginError>;

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
    Advantage, built by advantage "an advantage estimator",
    as AdvantageBox over WireAdvantage_TO,
    held as AdvantageHandle,
    component answers Answers {
        inputs: component.inputs(),
        ..Answers::NONE
    }
}

impl<T: Advantage> WireAdvantage for Guarded<T> {
    fn estimate(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        advantages: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        self.call("estimate", |component| {
            component.estimate(
                &mut Ctx::new(host),
                &batch.into(),
                advantages.into_mut_slice(),
            )
        })
    }

    guarded_methods!();
}

impl AdvantageHandle {
    /// Calls `estimate` on zeroed `advantages`, `[B, T]`.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a value that is not finite, or not zero
    /// on padding.
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
