//! Masks and weights that decide over a batch together, in the loader's own code.

use capo_loader::decision::{self, Decision};
use capo_plugin::{MaskHandle, PluginError, Sink, WeightHandle};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array;
use crate::batch::Batch;
use crate::collective::Collective;
use crate::component::{Component, Handle, per_token};
use crate::error::broken;
use crate::numpy;
use crate::records::RecordsOfCalls;

/// Masks and weights, in order. Python's side lets no other components through.
#[pyclass(frozen, module = "capo_rl._native")]
pub(crate) struct Deciders {
    masks: Vec<Py<Component>>,
    weights: Vec<Py<Component>>,
}

/// The same components during a call.
type Locked<'a> = decision::Deciders<&'a mut MaskHandle, &'a mut WeightHandle>;

/// What a mask or a weight did: its reports, and the share of all tokens that it rejected or the
/// mean of its factors.
type Said<'py> = (Bound<'py, PyDict>, f64);

/// The tokens that are left, their weights, and what each mask and each weight did, in order.
type Decided<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    Vec<Said<'py>>,
    Vec<Said<'py>>,
);

/// The arrays of a decision, attributes of an object of Python.
#[derive(FromPyObject)]
pub(crate) struct Arrays<'py> {
    token_mask: Bound<'py, PyAny>,
    weights: Bound<'py, PyAny>,
}

#[pymethods]
impl Deciders {
    #[new]
    fn new(masks: Vec<Py<Component>>, weights: Vec<Py<Component>>) -> Self {
        Self { masks, weights }
    }

    /// The decision about `batch`. The object `collective` connects the components to other ranks.
    fn decide<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        collective: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Decided<'py>> {
        let (decision, told) = self.call(py, batch, collective, |deciders, sink| {
            deciders.decide(sink, &batch.view())
        })?;
        let tokens: u32 = batch
            .completion_mask()
            .iter()
            .map(|&token| u32::from(token))
            .sum();
        let mut told = told.into_iter();
        let of_masks = told
            .by_ref()
            .zip(&decision.rejected)
            .map(|(told, mask)| (told, mask.tokens.len() as f64 / f64::from(tokens.max(1))))
            .collect();
        let of_weights = told
            .zip(&decision.factors)
            .map(|(told, weight)| (told, weight.mean()))
            .collect();
        let shape = batch.extents();
        Ok((
            numpy::array(py, &shape, &decision.token_mask)?,
            numpy::array(py, &shape, &decision.token_weights)?,
            of_masks,
            of_weights,
        ))
    }

    /// Tells all components how the step of `decision` ended. Returns the reports of each.
    fn step_end<'py>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        decision: Arrays<'py>,
        taken: bool,
        collective: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let token_mask = per_token("token_mask", batch, &decision.token_mask)?;
        let token_mask = array::bits("token_mask", token_mask)?;
        let weights = per_token("weights", batch, &decision.weights)?;
        let weights = array::floats("weights", weights)?;
        let decision = Decision {
            token_mask: token_mask.get().to_vec(),
            token_weights: weights.get().to_vec(),
            ..Decision::default()
        };
        let (_, told) = self.call(py, batch, collective, |deciders, sink| {
            deciders.step_end(sink, &batch.view(), &decision, taken)
        })?;
        Ok(told)
    }
}

impl Deciders {
    /// Result of `work` with all components, and the reports of each call.
    fn call<'py, R: Send>(
        &self,
        py: Python<'py>,
        batch: &Batch,
        collective: Option<&Bound<'py, PyAny>>,
        work: impl FnOnce(&mut Locked<'_>, &mut dyn Sink) -> Result<R, PluginError> + Send,
    ) -> PyResult<(R, Vec<Bound<'py, PyDict>>)> {
        let ranks = collective.map(Collective::new).transpose()?;
        let components: Vec<&Component> = self
            .masks
            .iter()
            .chain(&self.weights)
            .map(Py::get)
            .collect();
        // Before the first call, so that a refusal leaves no component in the middle of a step.
        for component in &components {
            component.check(batch)?;
        }
        let mut records = RecordsOfCalls::on(ranks.as_ref());
        let outcome = Component::with_all(py, &components, |handles| {
            work(&mut locked(handles), &mut records)
        })?;
        let told = records.to_dicts(py, &batch.extents());
        let outcome = outcome.map_err(|error| match &ranks {
            None => broken(&error),
            Some(ranks) => ranks.callback.caused(py, broken(&error)),
        })?;
        Ok((outcome, told?))
    }
}

fn locked(handles: Vec<&mut Handle>) -> Locked<'_> {
    let mut deciders = Locked {
        masks: Vec::new(),
        weights: Vec::new(),
    };
    for handle in handles {
        match handle {
            Handle::Mask(mask) => deciders.masks.push(mask),
            Handle::Weight(weight) => deciders.weights.push(weight),
            _ => {}
        }
    }
    deciders
}
