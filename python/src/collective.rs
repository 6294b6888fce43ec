//! The ranks of a run, as an object of Python's connects them.

use std::sync::{Mutex, PoisonError};

use capo_plugin::{PluginError, Ranks};
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::dlpack::Lent;
use crate::error::broken;
use crate::numpy::{self, Element};

/// An object with `rank`, `size`, `all_reduce_sum(array)` and `all_gather(array)`, called with Python's lock taken again.
pub(crate) struct Collective {
    object: Py<PyAny>,
    rank: usize,
    size: usize,
    /// The first exception that a call of it ended with.
    raised: Mutex<Option<PyErr>>,
}

impl Collective {
    /// Of `object`.
    ///
    /// # Errors
    ///
    /// `TypeError` where it lacks one of the four, `ValueError` where its rank is none of its ranks.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        for name in ["rank", "size", "all_reduce_sum", "all_gather"] {
            if !object.hasattr(name)? {
                let kind = object.get_type().name()?;
                return Err(PyTypeError::new_err(format!(
                    "`collective` is of type `{kind}`, which has no `{name}` (it must have `rank`, `size`, `all_reduce_sum` and `all_gather`)"
                )));
            }
        }
        let number = |name: &str| object.getattr(name)?.extract::<usize>();
        let (rank, size) = (number("rank")?, number("size")?);
        if rank >= size {
            return Err(PyValueError::new_err(format!(
                "`collective` has rank {rank} of {size} (ranks count from 0 to one below `size`)"
            )));
        }
        Ok(Self { object: object.clone().unbind(), rank, size, raised: Mutex::new(None) })
    }

    /// A component's error; where an exception of the object's was behind it, that is its cause. One that is to end the program, as
    /// `KeyboardInterrupt`, comes back itself.
    pub(crate) fn broken(&self, py: Python<'_>, error: &PluginError) -> PyErr {
        let raised = self.raised.lock().unwrap_or_else(PoisonError::into_inner).take();
        match raised {
            Some(raised) if !raised.is_instance_of::<PyException>(py) => raised,
            cause => {
                let error = broken(error);
                error.set_cause(py, cause);
                error
            }
        }
    }

    /// Result of `call`, or a sentence about the exception that `method` ended with.
    fn call<T>(&self, method: &str, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, PluginError> {
        Python::attach(|py| {
            call(self.object.bind(py)).map_err(|raised| {
                let sentence = format!("`collective.{method}` raised {}", raised.to_string().replace('\n', " "));
                self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(raised);
                PluginError::failed(sentence)
            })
        })
    }
}

impl Ranks for Collective {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), PluginError> {
        self.call("all_reduce_sum", |object| {
            let array = numpy::array(object.py(), &[values.len()], values)?;
            object.call_method1("all_reduce_sum", (&array,))?;
            values.copy_from_slice(&given("all_reduce_sum", &array)?);
            Ok(())
        })
    }

    fn all_gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, PluginError> {
        self.call("all_gather", |object| {
            let array = numpy::array(object.py(), &[values.len()], values)?;
            let gathered = object.call_method1("all_gather", (array,))?;
            let each = gathered.try_iter()?.map(|one| given("all_gather", &one?));
            let each = each.collect::<PyResult<Vec<_>>>()?;
            if each.len() == self.size {
                return Ok(each);
            }
            let (got, size) = (each.len(), self.size);
            Err(PyValueError::new_err(format!("it gave {got} arrays for {size} ranks (it must be one of each)")))
        })
    }
}

/// The values of an array that `method` filled or gave.
fn given<T: Element>(method: &str, array: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    let name = format!("an array of `{method}`");
    numpy::values(&name, &Lent::on_host(&name, array)?)
}
