//! A recorded batch as numpy arrays and numbers: the arguments that rebuild it.

use capo_loader::batch_file::OPTIMIZERS;
use capo_plugin::{Batch as View, Dims};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::failed;
use crate::fields::DENOMINATORS;
use crate::numpy;

/// `[B, T]`: numbers per token.
pub(crate) fn floats<'py>(
    py: Python<'py>,
    dims: Dims,
    values: &[f32],
) -> PyResult<Bound<'py, PyAny>> {
    numpy::array(
        py,
        &[dims.completions as usize, dims.tokens as usize],
        values,
    )
}

/// Sets items of a dictionary to the fields of a value that have their names.
macro_rules! set_fields {
    ($dict:ident of $from:expr => $($field:ident)*) => {
        $($dict.set_item(stringify!($field), $from.$field)?;)*
    };
}

/// The arguments that rebuild a batch in host memory.
pub(crate) fn to_fields<'py>(py: Python<'py>, view: &View<'_>) -> PyResult<Bound<'py, PyDict>> {
    let (fields, dims) = (PyDict::new(py), view.dims);
    let (b, t) = (dims.completions as usize, dims.tokens as usize);
    fields.set_item(
        "completion_ids",
        numpy::array(py, &[b, t], view.completion_ids)?,
    )?;
    fields.set_item(
        "completion_mask",
        numpy::array(py, &[b, t], view.completion_mask)?,
    )?;
    fields.set_item("truncated", numpy::array(py, &[b], view.truncated)?)?;
    fields.set_item("rewards", numpy::array(py, &[b], view.rewards)?)?;
    for (name, values) in view.per_token() {
        fields.set_item(name, floats(py, dims, values)?)?;
    }
    for (name, tensor) in view.tensors() {
        let shape: Vec<usize> = tensor
            .shape()
            .iter()
            .map(|&extent| extent as usize)
            .collect();
        let refused = |error: capo_plugin::PluginError| failed(&error.into());
        let array = match tensor.as_u32() {
            Ok(ids) => numpy::array(py, &shape, ids)?,
            Err(_) => numpy::array(py, &shape, tensor.as_f32().map_err(refused)?)?,
        };
        fields.set_item(name, array)?;
    }
    if let Some(last) = &view.last_layer {
        fields.set_item("vocab_size", last.vocab_size)?;
    }
    fields.set_item("group_size", dims.group_size)?;
    set_fields!(fields of view => step max_steps iteration seed sampling_temperature sampling_top_k sampling_top_p);
    set_fields!(fields of view => loss_temperature max_completion_length);
    fields.set_item("reduction", view.reduction.name())?;
    fields.set_item(
        "denominator",
        DENOMINATORS
            .iter()
            .find(|(_, d)| *d == view.denominator)
            .map(|(name, _)| *name),
    )?;
    fields.set_item("optimizer", optimizer(py, view)?)?;
    Ok(fields)
}

fn optimizer<'py>(py: Python<'py>, view: &View<'_>) -> PyResult<Bound<'py, PyDict>> {
    let info = &view.optimizer;
    let dict = PyDict::new(py);
    dict.set_item(
        "kind",
        OPTIMIZERS
            .iter()
            .find(|(_, kind)| *kind == info.kind)
            .map(|(name, _)| *name),
    )?;
    set_fields!(dict of info => learning_rate beta1 beta2 eps weight_decay max_grad_norm steps_taken);
    dict.set_item("step_learning_rate", view.step_learning_rate)?;
    Ok(dict)
}
