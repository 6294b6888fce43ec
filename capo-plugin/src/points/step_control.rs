//! Within stage 6: the applied share of the optimizer's proposed update.

use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::sabi_types::RMut;
use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RVec};

use crate::call::{Arithmetic, keeping_arithmetic};
use crate::guard::{Answers, Guarded};
use crate::sink::{Sink, contract};
use crate::wire::{
    HostRef, MeasurementsRef, StepControlBox, WireBatch, WireError, WireGroup, WireMeasurements,
    WireMeasurements_TO, WireStepControl, WireStepControl_TO,
};
use crate::{
    Batch, Ctx, ErrorKind, Extension, Inputs, Measurements, ParameterGroup, PluginError,
    ProposedStep, Update,
};

/// Decides how much of the optimizer's proposed update is applied. Within stage 6 of 6, between the
/// gradient and the new weights.
///
/// The host does not call it when no step is proposed: no token was kept, or the gradient is not
/// finite.
pub trait StepControl: Send {
    /// Scales `update`, with [`Update::scale`] for the whole model or [`Update::scale_group`] for
    /// one group. Each scale is between 0 and 1, with default 1. The new weights are the old
    /// weights plus the scaled update.
    fn control(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        update: &mut Update<'_>,
    ) -> Result<(), PluginError>;

    /// True if the optimizer's moments return to their earlier values when nothing of a step is
    /// applied, as if there had been no step. Asked once, at creation. If no control returns true,
    /// the moments keep the step's values, whatever share of it is applied.
    fn restores_moments(&self) -> bool {
        false
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
    StepControl, built by step_control "a step control",
    as StepControlBox over WireStepControl_TO,
    held as StepControlHandle,
    component answers Answers {
        inputs: component.inputs(),
        restores_moments: component.restores_moments(),
        ..Answers::NONE
    }
}

impl<T: StepControl> WireStepControl for Guarded<T> {
    fn restores_moments(&self) -> bool {
        self.answers.restores_moments
    }

    fn control(
        &mut self,
        host: &mut HostRef<'_>,
        measurements: &mut MeasurementsRef<'_>,
        batch: &WireBatch<'_>,
        weights: RSlice<'_, f32>,
        groups: RSlice<'_, WireGroup<'_>>,
        scales: RSliceMut<'_, f64>,
    ) -> RResult<(), WireError> {
        self.call("control", |component| {
            let groups: Vec<ParameterGroup<'_>> = groups.iter().map(ParameterGroup::from).collect();
            let mut update = Update::new(
                measurements,
                &groups,
                weights.as_slice(),
                scales.into_mut_slice(),
            );
            component.control(&mut Ctx::new(host), &batch.into(), &mut update)
        })
    }

    guarded_methods!();
}

/// Measurements on the wire, made under the host's own floating-point settings.
struct Meter<'a> {
    measurements: &'a mut dyn Measurements,
    arithmetic: Arithmetic,
    inputs: Inputs,
}

impl Meter<'_> {
    fn own<R>(
        &mut self,
        measure: impl FnOnce(&mut dyn Measurements) -> Result<R, PluginError>,
    ) -> RResult<R, WireError> {
        self.arithmetic
            .during(|| measure(self.measurements))
            .map_err(WireError::from)
            .into()
    }
}

impl Meter<'_> {
    /// The number `name`, which hosts know only for controls that ask for the alignment.
    fn of_gradient(
        &mut self,
        name: &str,
        measure: impl FnOnce(&mut dyn Measurements) -> Result<Option<f64>, PluginError>,
    ) -> RResult<ROption<f64>, WireError> {
        if self.inputs.contains(Inputs::ALIGNMENT) {
            return self.own(|host| Ok(measure(host)?.into()));
        }
        let sentence = format!(
            "the step's {name} is not there (return `Inputs::ALIGNMENT` from a step control's \
             `inputs`)"
        );
        RResult::RErr(PluginError::new(ErrorKind::MISSING_INPUT, sentence).into())
    }
}

impl WireMeasurements for Meter<'_> {
    fn norms(&mut self, norms: RSliceMut<'_, f64>) -> RResult<(), WireError> {
        self.own(|host| host.norms(norms.into_mut_slice()))
    }

    fn fisher(&mut self) -> RResult<f64, WireError> {
        self.own(|host| host.fisher())
    }

    fn last_layer_kl(&mut self) -> RResult<f64, WireError> {
        self.own(|host| host.last_layer_kl())
    }

    fn measure_kl(&mut self, fraction: f64, share: f64) -> RResult<f64, WireError> {
        self.own(|host| host.measure_kl(fraction, share))
    }

    fn alignment(&mut self) -> RResult<ROption<f64>, WireError> {
        self.of_gradient("alignment", |host| host.alignment())
    }

    fn gradient_norm(&mut self) -> RResult<ROption<f64>, WireError> {
        self.of_gradient("gradient norm", |host| host.gradient_norm())
    }
}

impl StepControlHandle {
    /// True if the moments return to their earlier values when nothing of a step is applied.
    pub fn restores_moments(&self) -> bool {
        keeping_arithmetic(|| self.wire.restores_moments())
    }

    /// Asks the component how much of `step` is applied: a scale for each group.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a scale that is not between 0 and 1.
    pub fn control(
        &mut self,
        sink: &mut dyn Sink,
        batch: &Batch<'_>,
        step: ProposedStep<'_>,
    ) -> Result<Vec<f64>, PluginError> {
        assert_eq!(step.weights.len(), batch.dims.len(), "`weights` is [B, T]");
        let mut scales = vec![1.0; step.groups.len()];
        let groups: Vec<WireGroup<'_>> = step.groups.iter().map(WireGroup::from).collect();
        let mut meter = Meter {
            measurements: step.measurements,
            arithmetic: Arithmetic::now(),
            inputs: self.inputs(),
        };
        self.call("control", sink, batch, |wire, host, seen| {
            let mut measurements = WireMeasurements_TO::from_ptr(RMut::new(&mut meter), TD_Opaque);
            wire.control(
                host,
                &mut measurements,
                seen,
                RSlice::from_slice(step.weights),
                RSlice::from_slice(&groups),
                RSliceMut::from_mut_slice(&mut scales),
            )
        })?;
        let outside = step
            .groups
            .iter()
            .zip(&scales)
            .find(|(_, scale)| !(0.0..=1.0).contains(*scale));
        let Some((group, scale)) = outside else {
            return Ok(scales);
        };
        let sentence = format!(
            "the scale of `{}` is {scale} (it must be between 0 and 1)",
            group.name
        );
        Err(self.named(contract(sentence)))
    }
}
