//! Reports of a component during a call.

use std::ffi::CString;

use capo_loader::batch_file::Outcome;
use capo_plugin::{Ranks, Sink};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::collective::Collective;
use crate::error::CapoWarning;
use crate::numpy;

/// Numbers, numbers per token and warnings of one call.
#[derive(Default)]
pub(crate) struct Records<'a> {
    outcome: Outcome,
    warnings: Vec<String>,
    /// The ranks of the run; `None` for a single one.
    ranks: Option<&'a Collective>,
}

impl Sink for Records<'_> {
    fn record(&mut self, component: &str, name: &str, value: f64) {
        self.outcome
            .numbers
            .insert(format!("{component}/{name}"), value);
    }

    fn record_tokens(&mut self, component: &str, name: &str, values: &[f32]) {
        self.outcome
            .tokens
            .insert(format!("{component}/{name}"), values.to_vec());
    }

    fn warn(&mut self, component: &str, text: &str) {
        self.warnings.push(format!(
            "component `{component}`: {}",
            text.replace('\0', "")
        ));
    }

    fn ranks(&self) -> Option<&dyn Ranks> {
        self.ranks.map(|ranks| ranks as &dyn Ranks)
    }
}

impl<'a> Records<'a> {
    /// Empty records of a call on one of several ranks.
    pub(crate) fn on(ranks: Option<&'a Collective>) -> Self {
        Self {
            ranks,
            ..Self::default()
        }
    }

    /// Records as a dict with keys `component/name`; arrays have this shape. Warnings become Python
    /// warnings.
    pub(crate) fn to_dict<'py>(
        &self,
        py: Python<'py>,
        shape: &[usize],
    ) -> PyResult<Bound<'py, PyDict>> {
        for sentence in &self.warnings {
            PyErr::warn(
                py,
                &py.get_type::<CapoWarning>(),
                &CString::new(sentence.as_str())?,
                2,
            )?;
        }
        let dict = PyDict::new(py);
        add(&dict, shape, &self.outcome)?;
        Ok(dict)
    }
}

/// The reports of several calls, one after another.
#[derive(Default)]
pub(crate) struct RecordsOfCalls<'a> {
    calls: Vec<Records<'a>>,
    /// The ranks of the run; `None` for a single one.
    ranks: Option<&'a Collective>,
}

impl Sink for RecordsOfCalls<'_> {
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        let newest = self.calls.last_mut()?;
        Some(newest)
    }

    fn ranks(&self) -> Option<&dyn Ranks> {
        self.ranks.map(|ranks| ranks as &dyn Ranks)
    }

    fn enter(&mut self, _component: &str, _method: &'static str) {
        self.calls.push(Records::on(self.ranks));
    }
}

impl<'a> RecordsOfCalls<'a> {
    /// Empty records of calls on one of several ranks.
    pub(crate) fn on(ranks: Option<&'a Collective>) -> Self {
        Self {
            ranks,
            ..Self::default()
        }
    }

    /// The records of each call, as [`Records::to_dict`] has them.
    pub(crate) fn to_dicts<'py>(
        &self,
        py: Python<'py>,
        shape: &[usize],
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.calls
            .iter()
            .map(|call| call.to_dict(py, shape))
            .collect()
    }
}

/// Adds the components' reports to `dict`.
pub(crate) fn add(dict: &Bound<'_, PyDict>, shape: &[usize], outcome: &Outcome) -> PyResult<()> {
    for (name, values) in &outcome.tokens {
        dict.set_item(name, numpy::array(dict.py(), shape, values)?)?;
    }
    outcome
        .numbers
        .iter()
        .try_for_each(|(name, value)| dict.set_item(name, value))
}
