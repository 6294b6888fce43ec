//! The ranks of a run, connected by a Python object.

use capo_plugin::{PluginError, Ranks};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::callback::Callback;
use crate::dlpack::Lent;
use crate::numpy::{self, Element};

/// An object with `rank`, `size`, `all_reduce_sum(array)` and `all_gather(array)`.
pub(crate) struct Collective {
    pub(crate) callback: Callback,
    rank: usize,
    size: usize,
}

impl Collective {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let callback = Callback::new(
            "collective",
            object,
            &["rank", "size", "all_reduce_sum", "all_gather"],
        )?;
        let rank: usize = object.getattr("rank")?.extract()?;
        let size: usize = object.getattr("size")?.extract()?;
        if rank >= size {
            return Err(PyValueError::new_err(format!(
                "`collective` has rank {rank} of {size} (ranks count from 0 to one below `size`)"
            )));
        }
        Ok(Self {
            callback,
            rank,
            size,
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
        self.callback.call("all_reduce_sum", |object| {
            let array = numpy::array(object.py(), &[values.len()], values)?;
            object.call_method1("all_reduce_sum", (&array,))?;
            values.copy_from_slice(&given("all_reduce_sum", &array)?);
            Ok(())
        })
    }

    fn all_gather(&self, values: &[i64]) -> Result<Vec<Vec<i64>>, PluginError> {
        self.callback.call("all_gather", |object| {
            let array = numpy::array(object.py(), &[values.len()], values)?;
            let gathered = object.call_method1("all_gather", (array,))?;
            let each = gathered.try_iter()?.map(|one| given("all_gather", &one?));
            let each = each.collect::<PyResult<Vec<_>>>()?;
            if each.len() == self.size {
                return Ok(each);
            }
            Err(PyValueError::new_err(format!(
                "it gave {} arrays for {} ranks (it must be one of each)",
                each.len(),
                self.size
            )))
        })
    }
}

/// Values of an array that `method` filled or returned.
fn given<T: Element>(method: &str, array: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    let name = format!("an array of `{method}`");
    numpy::values(&name, &Lent::on_host(&name, array)?)
}
