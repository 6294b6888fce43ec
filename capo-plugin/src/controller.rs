//! The host's side of the step-control point: the handle that calls a component, and what a host offers it.

use abi_stable::sabi_trait::TD_Opaque;
use abi_stable::sabi_types::RMut;
use abi_stable::std_types::{RResult, RSlice, RSliceMut, RStr};

use crate::abi::{WireBatch, WireError};
use crate::abi_step_control::{MeasureWire, MeasureWire_TO, StepControlBox, WireGroup};
use crate::batch::{Batch, Inputs};
use crate::call::{Arithmetic, Guest, guarded};
use crate::component::handle_basics;
use crate::error::PluginError;
use crate::sink::{Sink, contract, listen, per_token};
use crate::step_control::ParameterGroup;

/// What a host measures of a proposed update when it is asked: implemented by hosts. It must not panic. What the numbers are is
/// described at [`crate::Update`].
pub trait Measurements {
    /// Euclidean norm of each group's part, into `norms`.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn norms(&mut self, norms: &mut [f64]) -> Result<(), PluginError>;
    /// `½ Σ Δ² v̂`.
    ///
    /// # Errors
    ///
    /// When there is no second moment, or the device fails.
    fn fisher(&mut self) -> Result<f64, PluginError>;
    /// Mean KL divergence that the output matrix's part alone would cause, nats.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn last_layer_kl(&mut self) -> Result<f64, PluginError>;
    /// Mean KL divergence of the whole update on `fraction` of the batch's completions, nats.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn measure_kl(&mut self, fraction: f64) -> Result<f64, PluginError>;
}

/// Measurements on the wire, in the host's own arithmetic.
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

/// A live [`crate::StepControl`].
pub struct StepControlFn {
    id: String,
    inputs: Inputs,
    restores_moments: bool,
    wire: Guest<StepControlBox>,
}

handle_basics!(StepControlFn);

impl StepControlFn {
    pub(crate) fn new(id: &str, wire: StepControlBox) -> Self {
        let (inputs, restores_moments) = guarded(|| (wire.inputs(), wire.restores_moments()));
        Self { id: id.to_owned(), inputs, restores_moments, wire: Guest::new(id, wire) }
    }

    /// What the host must compute for it: asked once, when it was made.
    #[must_use]
    pub fn inputs(&self) -> Inputs {
        self.inputs
    }

    /// Whether the moments go back where nothing of a step is applied: asked once, when it was made.
    #[must_use]
    pub fn restores_moments(&self) -> bool {
        self.restores_moments
    }

    /// The same control under another id in reports and sentences: for a host that runs a component more than once.
    #[must_use]
    pub fn renamed(self, id: &str) -> Self {
        Self { id: id.to_owned(), ..self }
    }

    /// Calls `control` on `scales`, one per group, each 1 before; `weights` is `[B, T]`, what each token weighed in the gradient.
    ///
    /// # Errors
    ///
    /// The component's own sentence, or the rule that it broke: a scale that is not between 0 and 1.
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
        let wire_groups: Vec<WireGroup<'_>> = groups
            .iter()
            .map(|group| WireGroup { name: RStr::from_str(group.name), parameters: group.parameters })
            .collect();
        let (seen, wire) = (WireBatch::from(&batch.with_only(self.inputs)), &mut self.wire);
        let mut meter = Meter(measurements, Arithmetic::now());
        let outcome = listen((&self.id, "control", self.inputs), per_token(batch.dims), sink, |host| {
            let mut measure = MeasureWire_TO::from_ptr(RMut::new(&mut meter), TD_Opaque);
            let (weights, groups) = (RSlice::from_slice(weights), RSlice::from_slice(&wire_groups));
            wire.control(host, &mut measure, &seen, weights, groups, RSliceMut::from_mut_slice(scales)).into_result()
        });
        outcome.and_then(|()| check_scales(groups, scales)).map_err(|error| self.named(error))
    }
}

fn check_scales(groups: &[ParameterGroup<'_>], scales: &[f64]) -> Result<(), PluginError> {
    match groups.iter().zip(scales).find(|(_, scale)| !(0.0..=1.0).contains(*scale)) {
        None => Ok(()),
        Some((group, scale)) => {
            Err(contract(format!("the scale of `{}` is {scale} (it must be between 0 and 1)", group.name)))
        }
    }
}
