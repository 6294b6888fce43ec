//! The end of stage 4: a weight for each token that the masks kept.

use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::{HostRef, WireBatch, WireError};
use crate::abi_weight::{WeightBox, WeightPoint, WeightWire, WeightWire_TO};
use crate::guard::{Answers, Guarded};
use crate::{Batch, Ctx, Inputs, MaskTraits, PluginError, Sink};

/// Weighs each kept token in the gradient. The end of stage 4 of 6: a mask decides 0 or 1, a weight any value from 0 up.
///
/// The host multiplies a token's loss and derivative by the weights of all weight components. The reduction's token count
/// does not change: a token of weight ½ counts as one token. A token of weight 0 is dropped as by a mask.
pub trait TokenWeight: Send {
    /// Fills `weights`, `[B, T]`, each finite and at least 0. The array arrives as 1 where `keep` is 1, and as 0 elsewhere,
    /// where it must stay 0. `keep` marks the tokens that all masks kept and earlier weights did not set to 0.
    ///
    /// # Errors
    ///
    /// A message with the reason; the run stops with it and can be resumed.
    fn weigh(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        keep: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError>;

    /// Called once after the optimizer step with the product of all `weights`, `[B, T]`, 0 for dropped tokens.
    /// `taken` is false when the step was skipped. A weight that models the optimizer updates its model here.
    ///
    /// # Errors
    ///
    /// A message with the reason; the run stops with it and can be resumed.
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

    inputs_method!();

    traits_method!();

    common_methods!();
}

point! {
    Weight: TokenWeight, built by weight "a weight",
    WeightPoint of WeightBox over WeightWire_TO inputs,
    Weight answers |component| Answers { inputs: component.inputs(), ..Answers::NONE },
    declares traits
}

impl<T: TokenWeight> WeightWire for Guarded<T> {
    guarded_inputs!();

    fn weigh(
        &mut self,
        host: &mut HostRef<'_>,
        batch: &WireBatch<'_>,
        keep: RSlice<'_, u8>,
        weights: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        self.call("weigh", |component| {
            component.weigh(&mut Ctx::new(host), &batch.into(), keep.as_slice(), weights.into_mut_slice())
        })
    }

    guarded_step_end!(weights: f32);

    guarded_state!();
}

impl Weight {
    /// Copies `keep`, `[B, T]` of zeros and ones, into `weights`, then calls `weigh` on them.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a weight that is negative or not finite, or not 0 where `keep` is 0.
    pub fn weigh(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        keep: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        assert!(keep.len() == batch.dims.len() && weights.len() == keep.len(), "`keep` and `weights` are [B, T]");
        weights.iter_mut().zip(keep).for_each(|(weight, keep)| *weight = f32::from(*keep));
        self.call("weigh", sink, batch, |wire, host, seen| {
            wire.weigh(host, seen, RSlice::from_slice(keep), RSliceMut::from_mut_slice(weights))
        })?;
        self.check(batch.dims, |i| match weights[i] {
            weight if !(weight.is_finite() && weight >= 0.0) => {
                Some((format!("the weight is {weight}"), " (it must be finite, 0 or more)"))
            }
            weight if keep[i] == 0 && weight != 0.0 => {
                Some((format!("the weight is {weight}"), ", which is padding or was dropped (leave it at 0)"))
            }
            _ => None,
        })
    }

    handled_step_end!(weights: f32, "product of all weights");
}
