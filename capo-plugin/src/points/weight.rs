//! The end of stage 4: a weight for each token that the masks kept.

use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RVec};

use crate::guard::{Answers, Guarded};
use crate::wire::{HostRef, WeightBox, WireBatch, WireError, WireWeight, WireWeight_TO};
use crate::{Batch, Ctx, Extension, Inputs, PluginError, Sink, Traits, keeping_arithmetic};

/// Weighs each kept token in the gradient. The end of stage 4 of 6: a mask decides 0 or 1, a weight
/// any value from 0 up.
///
/// The host multiplies a token's loss and derivative by the weights of all weight components. The
/// reduction's token count does not change: a token of weight ½ counts as one token. A token of
/// weight 0 is dropped as by a mask.
pub trait Weight: Send {
    /// Fills `weights`, `[B, T]`, each finite and at least 0. The array arrives as 1 where
    /// `token_mask` is 1, and as 0 elsewhere, where it must stay 0. `token_mask` marks the tokens
    /// that all masks kept and earlier weights did not set to 0.
    fn weigh(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError>;

    /// Called once after the optimizer step with the product of all `weights`, `[B, T]`, 0 for
    /// dropped tokens. `taken` is false when the step was skipped. A weight that models the
    /// optimizer updates its model here.
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
    Weight, built by weight "a weight",
    as WeightBox over WireWeight_TO,
    held as WeightHandle,
    component answers Answers {
        inputs: component.inputs(),
        traits: component.traits(),
        ..Answers::NONE
    }
}

impl<T: Weight> WireWeight for Guarded<T> {
    fn weigh(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        token_mask: RSlice<'_, u8>,
        weights: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        let batch = Batch::from(batch);
        self.call("weigh", |component| {
            component.weigh(
                &mut Ctx::new(host),
                &batch,
                token_mask.as_slice(),
                weights.into_mut_slice(),
            )
        })
    }

    guarded_decision!(weights: f32);

    guarded_methods!();
}

impl WeightHandle {
    /// Copies `token_mask`, `[B, T]` of zeros and ones, into `weights`, then calls `weigh` on them.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a weight that is negative or not finite,
    /// or not 0 where `token_mask` is 0.
    pub fn weigh(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        token_mask: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        assert!(
            token_mask.len() == batch.dims.len() && weights.len() == token_mask.len(),
            "`token_mask` and `weights` are [B, T]"
        );
        weights
            .iter_mut()
            .zip(token_mask)
            .for_each(|(weight, token_mask)| *weight = f32::from(*token_mask));
        self.call("weigh", sink, batch, |wire, host, seen| {
            wire.weigh(
                host,
                seen,
                RSlice::from_slice(token_mask),
                RSliceMut::from_mut_slice(weights),
            )
        })?;
        self.check(batch.dims, |i| match weights[i] {
            weight if !(weight.is_finite() && weight >= 0.0) => Some((
                format!("the weight is {weight}"),
                " (it must be finite, 0 or more)",
            )),
            weight if token_mask[i] == 0 && weight != 0.0 => Some((
                format!("the weight is {weight}"),
                ", which is padding or was dropped (leave it at 0)",
            )),
            _ => None,
        })
    }

    handled_decision!(weights: f32, "product of all weights");
}
