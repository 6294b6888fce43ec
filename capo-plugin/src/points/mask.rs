//! Stage 4: selection of the tokens that reach the backward pass.

use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::{HostRef, MaskBox, MaskPoint, MaskWire, MaskWire_TO, WireBatch, WireError};
use crate::guard::{Answers, Guarded};
use crate::{Batch, Ctx, Inputs, MaskTraits, PluginError, Sink};

/// Selects the tokens that reach the backward pass. Stage 4 of 6.
pub trait PreBackwardMask: Send {
    /// Clears `keep[b * T + t]` for each token to drop. `keep` arrives as the completion mask without the tokens that
    /// earlier masks dropped. A mask may only clear: setting a cleared entry is an error.
    ///
    /// # Errors
    ///
    /// A message with the reason; the run stops with it and can be resumed.
    fn mask(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, keep: &mut [u8]) -> Result<(), PluginError>;

    /// Called once after the optimizer step with the final `keep` of all masks. `taken` is false when the step was
    /// skipped. A mask that models the optimizer updates its model here.
    ///
    /// # Errors
    ///
    /// A message with the reason; the run stops with it and can be resumed.
    fn step_end(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, keep: &[u8], taken: bool) -> Result<(), PluginError> {
        let _ = (ctx, batch, keep, taken);
        Ok(())
    }

    inputs_method!();

    traits_method!();

    common_methods!();
}

point! {
    Mask: PreBackwardMask, built by mask "a mask",
    MaskPoint of MaskBox over MaskWire_TO inputs,
    Mask answers |component| Answers { inputs: component.inputs(), ..Answers::NONE },
    declares traits
}

impl<T: PreBackwardMask> MaskWire for Guarded<T> {
    guarded_inputs!();

    guarded_fill!(mask(batch: WireBatch, keep: u8));

    guarded_step_end!(keep: u8);

    guarded_state!();
}

impl Mask {
    /// Calls `mask` on `keep`, `[B, T]`, which holds zeros and ones.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a cleared entry that it set.
    pub fn mask(&mut self, sink: &mut dyn Sink, batch: &Batch<'_>, keep: &mut [u8]) -> Result<(), PluginError> {
        assert_eq!(keep.len(), batch.dims.len(), "`keep` is [B, T]");
        let before = keep.to_vec();
        self.call("mask", sink, batch, |wire, host, seen| wire.mask(host, seen, RSliceMut::from_mut_slice(keep)))?;
        // No early exit, so that the compiler vectorizes the loop.
        if !before.iter().zip(&*keep).fold(false, |set, (before, after)| set | (after > before)) {
            return Ok(());
        }
        self.check(batch.dims, |i| match (before[i], keep[i]) {
            (before, after) if after <= before => None,
            (0, after) => Some((format!("set `keep` to {after}"), ", where it was cleared (a mask may only clear)")),
            (_, after) => Some((format!("wrote {after} into `keep`"), " (entries are 0 or 1)")),
        })
    }

    handled_step_end!(keep: u8, "final `keep` of all masks");
}
