//! Reports of a component during a call.

use std::ffi::CString;

use capo_loader::batch_file::Outcome;
use capo_plugin::abi_alignment::{ALIGNMENT, Alignment};
use capo_plugin::{Extension, Sink};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::CapoWarning;
use crate::numpy;

/// Numbers, numbers per token and warnings of one call.
#[derive(Default)]
pub(crate) struct Records {
    outcome: Outcome,
    warnings: Vec<String>,
    /// Agreement of the gradient with the previous step, for a step control that asks for it.
    alignment: Option<Alignment>,
}

impl Sink for Records {
    fn record(&mut self, component: &str, name: &str, value: f64) {
        self.outcome.numbers.insert(format!("{component}/{name}"), value);
    }

    fn record_tokens(&mut self, component: &str, name: &str, values: &[f32]) {
        self.outcome.tokens.insert(format!("{component}/{name}"), values.to_vec());
    }

    fn warn(&mut self, component: &str, text: &str) {
        self.warnings.push(format!("component `{component}`: {}", text.replace('\0', "")));
    }

    fn extension(&mut self, id: &str) -> Option<Extension<'_>> {
        self.alignment.as_ref().filter(|_| id == ALIGNMENT).map(Extension::of)
    }
}

impl Records {
    /// Empty records of a call that lends `alignment`.
    pub(crate) fn lending(alignment: Option<Alignment>) -> Self {
        Self { alignment, ..Self::default() }
    }

    /// Records as a dict with keys `component/name`; arrays have this shape. Warnings become Python warnings.
    pub(crate) fn to_dict<'py>(&self, py: Python<'py>, shape: &[usize]) -> PyResult<Bound<'py, PyDict>> {
        for sentence in &self.warnings {
            PyErr::warn(py, &py.get_type::<CapoWarning>(), &CString::new(sentence.as_str())?, 2)?;
        }
        let dict = PyDict::new(py);
        add(&dict, shape, &self.outcome)?;
        Ok(dict)
    }
}

/// Adds the components' reports to `dict`.
pub(crate) fn add(dict: &Bound<'_, PyDict>, shape: &[usize], outcome: &Outcome) -> PyResult<()> {
    for (name, values) in &outcome.tokens {
        dict.set_item(name, numpy::array(dict.py(), shape, values)?)?;
    }
    outcome.numbers.iter().try_for_each(|(name, value)| dict.set_item(name, value))
}
