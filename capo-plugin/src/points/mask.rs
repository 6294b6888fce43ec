//! Stage 4: selection of the tokens that reach the backward pass.

use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RVec};

use crate::guard::{Answers, Guarded};
use crate::wire::{HostRef, MaskBox, WireBatch, WireError, WireMask, WireMask_TO};
use crate::{Batch, Ctx, Extension, Inputs, PluginError, Sink, Traits, keeping_arithmetic};

/// Selects the tokens that reach the backward pass. Stage 4 of 6.
pub trait Mask: Send {
    /// Clears `token_mask[b * T + t]` for each token to drop. `token_mask` arrives as the
    /// completion mask without the tokens that earlier masks dropped. A mask may only clear:
    /// setting a cleared entry is an error.
    fn mask(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError>;

    /// Called once after the optimizer step with the final `token_mask` of all masks. `taken` is
    /// false when the step was skipped. A mask that models the optimizer updates its model here.
    fn step_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &[u8],
        taken: bool,
    ) -> Result<(), PluginError> {
        let _ = (ctx, batch, token_mask, taken);
        Ok(())
    }

    /// Optional arrays of the batch that the host must compute for this component; the others are
    /// absent. Asked once, at creation.
    fn inputs(&self) -> Inputs {
        Inputs::NONE
    }

    /// Facts about the decisions, on which a host may rely. Asked once, at creation. Declare only
    /// what holds for every batch; `host check` tests it.
    fn traits(&self) -> Traits {
        Traits::NONE
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
    Mask, built by mask "a mask",
    as MaskBox over WireMask_TO,
    held as MaskHandle,
    component answers Answers {
        inputs: component.inputs(),
        traits: component.traits(),
        ..Answers::NONE
    }
}

impl<T: Mask> WireMask for Guarded<T> {
    fn mask(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        token_mask: RSliceMut<'_, u8>,
    ) -> RResult<(), WireError> {
        let batch = Batch::from(batch);
        self.call("mask", |component| {
            component.mask(&mut Ctx::new(host), &batch, token_mask.into_mut_slice())
        })
    }

    guarded_decision!(token_mask: u8);

    guarded_methods!();
}

impl MaskHandle {
    /// Calls `mask` on `token_mask`, `[B, T]`, which holds zeros and ones.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a cleared entry that it set.
    pub fn mask(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        token_mask: &mut [u8],
    ) -> Result<(), PluginError> {
        assert_eq!(token_mask.len(), batch.dims.len(), "`token_mask` is [B, T]");
        let before = token_mask.to_vec();
        self.call("mask", sink, batch, |wire, host, seen| {
            wire.mask(host, seen, RSliceMut::from_mut_slice(token_mask))
        })?;
        // No early exit, so that the compiler vectorizes the loop.
        if !before
            .iter()
            .zip(&*token_mask)
            .fold(false, |set, (before, after)| set | (after > before))
        {
            return Ok(());
        }
        self.check(batch.dims, |i| match (before[i], token_mask[i]) {
            (before, after) if after <= before => None,
            (0, after) => Some((
                format!("set `token_mask` to {after}"),
                ", where it was cleared (a mask may only clear)",
            )),
            (_, after) => Some((
                format!("wrote {after} into `token_mask`"),
                " (entries are 0 or 1)",
            )),
        })
    }

    handled_decision!(token_mask: u8, "final `token_mask` of all masks");
}
