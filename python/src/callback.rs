//! Methods of a Python object that a component calls during its work.

use std::sync::OnceLock;

use capo_plugin::{Measurements, PluginError};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// A Python object for callbacks. Each call takes Python's lock again.
pub(crate) struct Callback {
    name: &'static str,
    object: Py<PyAny>,
    /// The first exception that a callback raised.
    raised: OnceLock<PyErr>,
}

impl Callback {
    /// Wraps `object`, the argument `name`, which must have all `members`.
    pub(crate) fn new(
        name: &'static str,
        object: &Bound<'_, PyAny>,
        members: &[&str],
    ) -> PyResult<Self> {
        for member in members {
            if !object.hasattr(*member)? {
                let (kind, [others @ .., last]) = (object.get_type().name()?, members) else {
                    break;
                };
                return Err(PyTypeError::new_err(format!(
                    "`{name}` is of type `{kind}`, which has no `{member}` (it must have `{}` and \
                     `{last}`)",
                    others.join("`, `")
                )));
            }
        }
        Ok(Self {
            name,
            object: object.clone().unbind(),
            raised: OnceLock::new(),
        })
    }

    /// The error of a call in which this object was used. If the object raised an exception, that
    /// is the error's cause. An exception that should end the program, such as `KeyboardInterrupt`,
    /// is returned itself.
    pub(crate) fn caused(&self, py: Python<'_>, error: PyErr) -> PyErr {
        match self.raised.get().map(|raised| raised.clone_ref(py)) {
            Some(raised) if !raised.is_instance_of::<PyException>(py) => raised,
            cause => {
                error.set_cause(py, cause);
                error
            }
        }
    }

    /// Result of `call`, or a message about the exception that `method` raised.
    pub(crate) fn call<T>(
        &self,
        method: &str,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, PluginError> {
        Python::attach(|py| {
            call(self.object.bind(py)).map_err(|raised| {
                let sentence = format!(
                    "`{}.{method}` raised {}",
                    self.name,
                    raised.to_string().replace('\n', " ")
                );
                drop(self.raised.set(raised));
                PluginError::failed(sentence)
            })
        })
    }
}

/// Measurements of a proposed update by an object with `norms()`, `fisher()`, `last_layer_kl()` and
/// `measure_kl(fraction, share)`.
pub(crate) struct Measure(pub(crate) Callback);

impl Measure {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Callback::new(
            "measure",
            object,
            &["norms", "fisher", "last_layer_kl", "measure_kl"],
        )
        .map(Self)
    }
}

impl Measurements for &Measure {
    fn norms(&mut self, norms: &mut [f64]) -> Result<(), PluginError> {
        self.0.call("norms", |object| {
            let given: Vec<f64> = object.call_method0("norms")?.extract()?;
            if given.len() != norms.len() {
                return Err(PyValueError::new_err(format!(
                    "it gave {} norms for {} groups (one of each)",
                    given.len(),
                    norms.len()
                )));
            }
            norms.copy_from_slice(&given);
            Ok(())
        })
    }

    fn fisher(&mut self) -> Result<f64, PluginError> {
        self.0
            .call("fisher", |object| object.call_method0("fisher")?.extract())
    }

    fn last_layer_kl(&mut self) -> Result<f64, PluginError> {
        self.0.call("last_layer_kl", |object| {
            object.call_method0("last_layer_kl")?.extract()
        })
    }

    fn measure_kl(&mut self, fraction: f64, share: f64) -> Result<f64, PluginError> {
        self.0.call("measure_kl", |object| {
            object
                .call_method1("measure_kl", (fraction, share))?
                .extract()
        })
    }

    fn alignment(&mut self) -> Result<Option<f64>, PluginError> {
        let cosine: Option<f64> = self.0.call("alignment", |object| {
            object.call_method0("alignment")?.extract()
        })?;
        Ok(cosine.filter(|cosine| cosine.is_finite()))
    }

    fn gradient_norm(&mut self) -> Result<Option<f64>, PluginError> {
        let norm: Option<f64> = self.0.call("gradient_norm", |object| {
            object.call_method0("gradient_norm")?.extract()
        })?;
        Ok(norm.filter(|norm| norm.is_finite()))
    }
}
