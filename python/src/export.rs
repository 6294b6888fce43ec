//! A recorded batch as numpy arrays and numbers: the arguments that rebuild it.

use capo_loader::batch_file::OPTIMIZERS;
use capo_plugin::fields::{Dtype, Extents, Field, Value};
use capo_plugin::{Batch as View, Denominator, Dims, OptimizerInfo, Reduction, Tensor};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::broken;
use crate::numpy;

/// `[B, T]`: numbers per token.
pub(crate) fn floats<'py>(
    py: Python<'py>,
    dims: Dims,
    values: &[f32],
) -> PyResult<Bound<'py, PyAny>> {
    let shape = [dims.completions as usize, dims.tokens as usize];
    numpy::array(py, &shape, values)
}

/// The arguments that rebuild a batch in host memory.
pub(crate) fn to_fields<'py>(py: Python<'py>, view: &View<'_>) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    let optimizer = optimizer(py, &view.optimizer)?;
    let extents = Extents::new(view.dims);
    for (field, value) in view.values() {
        let shape = extents.shape(field.shape);
        let shape: Vec<usize> = shape.iter().map(|&extent| extent as usize).collect();
        let owner = if field.class == "Optimizer" {
            &optimizer
        } else {
            &fields
        };
        match value {
            Value::Whole(number) => set_whole(owner, field, number)?,
            Value::Single(number) => owner.set_item(field.name, number)?,
            Value::Double(number) => owner.set_item(field.name, number)?,
            Value::Bits(values) => owner.set_item(field.name, numpy::array(py, &shape, values)?)?,
            Value::Ids(values) => owner.set_item(field.name, numpy::array(py, &shape, values)?)?,
            Value::Floats(values) => {
                owner.set_item(field.name, numpy::array(py, &shape, values)?)?;
            }
            Value::Tensor(tensor) => owner.set_item(field.name, of_tensor(py, &tensor)?)?,
        }
    }
    fields.set_item("group_size", view.dims.group_size)?;
    fields.set_item("optimizer", optimizer)?;
    Ok(fields)
}

/// Sets a whole number, by its name where it is one of a set with names.
fn set_whole(owner: &Bound<'_, PyDict>, field: &Field, number: u64) -> PyResult<()> {
    match field.dtype {
        Dtype::Reduction => owner.set_item(field.name, Reduction(number as u32).name()),
        Dtype::Denominator => {
            let mut named = Denominator::NAMED.iter();
            let found = named.find(|(_, known)| u64::from(known.0) == number);
            owner.set_item(field.name, found.map(|(name, _)| *name))
        }
        _ => owner.set_item(field.name, number),
    }
}

fn of_tensor<'py>(py: Python<'py>, tensor: &Tensor<'_>) -> PyResult<Bound<'py, PyAny>> {
    let shape: Vec<usize> = tensor
        .shape()
        .iter()
        .map(|&extent| extent as usize)
        .collect();
    if let Ok(ids) = tensor.as_u32() {
        return numpy::array(py, &shape, ids);
    }
    let values = tensor.as_f32().map_err(|error| broken(&error))?;
    numpy::array(py, &shape, values)
}

fn optimizer<'py>(py: Python<'py>, info: &OptimizerInfo) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let mut named = OPTIMIZERS.iter();
    let kind = named.find(|(_, kind)| *kind == info.kind);
    dict.set_item("kind", kind.map(|(name, _)| *name))?;
    dict.set_item("learning_rate", info.learning_rate)?;
    dict.set_item("beta1", info.beta1)?;
    dict.set_item("beta2", info.beta2)?;
    dict.set_item("eps", info.eps)?;
    dict.set_item("weight_decay", info.weight_decay)?;
    dict.set_item("max_grad_norm", info.max_grad_norm)?;
    dict.set_item("steps_taken", info.steps_taken)?;
    Ok(dict)
}
