//! Within stage 6: the applied share of the optimizer's proposed update.

use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::sabi_types::RMut;
use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::{HostRef, WireBatch, WireError};
use crate::abi_step_control::{
    MeasureRef, MeasureWire, MeasureWire_TO, StepControlBox, StepControlPoint, StepControlWire, StepControlWire_TO,
    WireGroup,
};
use crate::call::{Arithmetic, guarded};
use crate::guard::{Answers, Guarded};
use crate::sink::{Sink, contract};
use crate::{Batch, Ctx, Inputs, Measurements, ParameterGroup, PluginError, Update};

/// Decides how much of the optimizer's proposed update is applied. Within stage 6 of 6, between the gradient and the new weights.
///
/// The host does not call it when no step is proposed: no token was kept, or the gradient is not finite.
pub trait StepControl: Send {
    /// Scales `update`, with [`Update::scale`] for the whole model or [`Update::scale_group`] for one group. Each
    /// scale is between 0 and 1, with default 1. The new weights are the old weights plus the scaled update.
    ///
    /// # Errors
    ///
    /// A message with the reason; the run stops with it and can be resumed.
    fn control(&mut self, ctx: &mut Ctx<'_>, batch: &Batch<'_>, update: &mut Update<'_>) -> Result<(), PluginError>;

    /// True if the optimizer's moments return to their earlier values when nothing of a step is applied, as if there had been no step.
    /// Asked once, at creation. If no control returns true, the moments keep the step's values, whatever share of it is applied.
    fn restores_moments(&self) -> bool {
        false
    }

    inputs_method!();

    common_methods!();
}

point! {
    StepControl: StepControl, built by step_control "a step control",
    StepControlPoint of StepControlBox over StepControlWire_TO inputs,
    StepControlFn answers |component| Answers {
        inputs: component.inputs(),
        restores_moments: component.restores_moments(),
        ..Answers::NONE
    }
}

impl<T: StepControl> StepControlWire for Guarded<T> {
    guarded_inputs!();

    fn restores_moments(&self) -> bool {
        self.answers.restores_moments
    }

    fn control(
        &mut self,
        host: &mut HostRef<'_>,
        measure: &mut MeasureRef<'_>,
        batch: &WireBatch<'_>,
        weights: RSlice<'_, f32>,
        groups: RSlice<'_, WireGroup<'_>>,
        scales: RSliceMut<'_, f64>,
    ) -> RResult<(), WireError> {
        self.call("control", |component| {
            let groups: Vec<ParameterGroup<'_>> = groups.iter().map(ParameterGroup::from).collect();
            let mut update = Update::new(measure, &groups, weights.as_slice(), scales.into_mut_slice());
            component.control(&mut Ctx::new(host), &batch.into(), &mut update)
        })
    }

    guarded_state!();
}

/// Measurements on the wire, made under the host's own floating-point settings.
struct Meter<'a>(&'a mut dyn Measurements, Arithmetic);

impl Meter<'_> {
    fn own<R>(
        &mut self,
        measure: impl FnOnce(&mut dyn Measurements) -> Result<R, PluginError>,
    ) -> RResult<R, WireError> {
        let Self(measurements, arithmetic) = self;
        arithmetic.during(|| measure(*measurements)).map_err(WireError::from).into()
    }
}

impl MeasureWire for Meter<'_> {
    fn norms(&mut self, norms: RSliceMut<'_, f64>) -> RResult<(), WireError> {
        self.own(|host| host.norms(norms.into_mut_slice()))
    }

    fn fisher(&mut self) -> RResult<f64, WireError> {
        self.own(|host| host.fisher())
    }

    fn last_layer_kl(&mut self) -> RResult<f64, WireError> {
        self.own(|host| host.last_layer_kl())
    }

    fn measure_kl(&mut self, fraction: f64) -> RResult<f64, WireError> {
        self.own(|host| host.measure_kl(fraction))
    }
}

impl StepControlFn {
    /// True if the moments return to their earlier values when nothing of a step is applied.
    pub fn restores_moments(&self) -> bool {
        guarded(|| self.wire.restores_moments())
    }

    /// Calls `control` on `scales`, one per group and initially 1; `weights` is `[B, T]`, each token's weight in the gradient.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a scale that is not between 0 and 1.
    pub fn control(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        weights: &[f32],
        groups: &[ParameterGroup<'_>],
        measurements: &mut dyn Measurements,
        scales: &mut [f64],
    ) -> Result<(), PluginError> {
        assert_eq!(weights.len(), batch.dims.len(), "`weights` is [B, T]");
        assert_eq!(scales.len(), groups.len(), "there is a scale for each group");
        scales.fill(1.0);
        let wire_groups: Vec<WireGroup<'_>> = groups.iter().map(WireGroup::from).collect();
        let mut meter = Meter(measurements, Arithmetic::now());
        self.call("control", sink, batch, |wire, host, seen| {
            let mut measure = MeasureWire_TO::from_ptr(RMut::new(&mut meter), TD_Opaque);
            let (weights, groups) = (RSlice::from_slice(weights), RSlice::from_slice(&wire_groups));
            wire.control(host, &mut measure, seen, weights, groups, RSliceMut::from_mut_slice(scales))
        })?;
        let outside = groups.iter().zip(scales).find(|(_, scale)| !(0.0..=1.0).contains(*scale));
        let Some((group, scale)) = outside else { return Ok(()) };
        let sentence = format!("the scale of `{}` is {scale} (it must be between 0 and 1)", group.name);
        Err(self.named(contract(sentence)))
    }
}
