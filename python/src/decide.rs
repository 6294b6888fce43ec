//! The decision of all masks and weights about a batch, in the loader's own code, with each
//! component's reports.

use anyhow::{Result, bail};
use capo_loader::decision::Decision;
use capo_loader::{mask, weight};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch::Batch;
use crate::collective::Collective;
use crate::component::{Component, Handle};
use crate::error::failed;
use crate::numpy;
use crate::records::Records;

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

/// Applies `masks` in order and then `weights` in order to `batch`, as a step of `host` does. The
/// object `collective` connects them to other ranks.
#[pyfunction]
pub(crate) fn decide<'py>(
    py: Python<'py>,
    batch: &Batch,
    masks: Vec<Py<Component>>,
    weights: Vec<Py<Component>>,
    collective: Option<&Bound<'py, PyAny>>,
) -> PyResult<Decided<'py>> {
    let ranks = collective.map(Collective::new).transpose()?;
    let masks: Vec<&Component> = masks.iter().map(Py::get).collect();
    let weights: Vec<&Component> = weights.iter().map(Py::get).collect();
    // Before the first call, so that a refusal leaves no component in the middle of a step.
    masks
        .iter()
        .chain(&weights)
        .try_for_each(|component| component.check(batch))?;
    let mut decision = Decision::of(batch.completion_mask().to_vec());
    let tokens = decision.tokens().max(1) as f64;
    let mut of_masks = Vec::with_capacity(masks.len());
    for component in masks {
        let told = one(py, batch, component, ranks.as_ref(), &mut decision)?;
        let rejected = decision.rejected.last().map_or(0, |mask| mask.tokens.len());
        of_masks.push((told, rejected as f64 / tokens));
    }
    let mut of_weights = Vec::with_capacity(weights.len());
    for component in weights {
        let told = one(py, batch, component, ranks.as_ref(), &mut decision)?;
        of_weights.push((
            told,
            decision.factors.last().map_or(0.0, |weight| weight.mean()),
        ));
    }
    let shape = batch.extents();
    let token_mask = numpy::array(py, &shape, &decision.token_mask)?;
    Ok((
        token_mask,
        numpy::array(py, &shape, &decision.token_weights)?,
        of_masks,
        of_weights,
    ))
}

/// Applies the next mask or weight. Returns its reports.
fn one<'py>(
    py: Python<'py>,
    batch: &Batch,
    component: &Component,
    ranks: Option<&Collective>,
    decision: &mut Decision,
) -> PyResult<Bound<'py, PyDict>> {
    let mut records = Records::on(ranks);
    let outcome = component.with(py, |handle| apply(handle, &mut records, batch, decision))?;
    let records = records.to_dict(py, &batch.extents());
    outcome.map_err(|error| match ranks {
        None => failed(&error),
        Some(ranks) => ranks.callback.caused(py, failed(&error)),
    })?;
    records
}

fn apply(
    handle: &mut Handle,
    records: &mut Records<'_>,
    batch: &Batch,
    decision: &mut Decision,
) -> Result<()> {
    match handle {
        Handle::Mask(mask) => mask::apply_one(mask, records, &batch.view(), decision),
        Handle::Weight(weight) => weight::apply_one(weight, records, &batch.view(), decision),
        _ => bail!("a decision is made of masks and weights alone"),
    }
}
