//! Fields of a batch, by the names of their Python arguments.

use capo_loader::batch_file::OPTIMIZERS;
use capo_plugin::{Denominator, OptimizerInfo, OptimizerKind, nearest};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::{self, Array, Large};
use crate::dlpack::Lent;

/// Names of the values of `denominator`.
pub(crate) const DENOMINATORS: [(&str, Denominator); 2] = [
    ("kept", Denominator::KEPT),
    ("original", Denominator::ORIGINAL),
];

/// Arguments by name; `None` counts as absent.
pub(crate) struct Fields<'a, 'py>(pub(crate) &'a Bound<'py, PyDict>);

impl<'py> Fields<'_, 'py> {
    fn get(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }

    pub(crate) fn has(&self, name: &str) -> PyResult<bool> {
        Ok(self.get(name)?.is_some())
    }

    fn must(&self, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.get(name)?
            .ok_or_else(|| PyTypeError::new_err(format!("`{name}` is missing (it is an array)")))
    }

    /// A number; `default` if absent.
    pub(crate) fn number<T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
        &self,
        name: &str,
        default: T,
    ) -> PyResult<T> {
        let Some(value) = self.get(name)? else {
            return Ok(default);
        };
        value.extract().map_err(|error: PyErr| {
            let text = format!("`{name}` is {value}: {}", error.value(value.py()));
            PyErr::from_type(error.get_type(value.py()), text)
        })
    }

    /// One of `known` by its name; `default` if absent.
    pub(crate) fn named<T: Copy>(
        &self,
        name: &str,
        known: &[(&str, T)],
        default: T,
    ) -> PyResult<T> {
        let Some(value) = self.get(name)? else {
            return Ok(default);
        };
        let typed: String = value.extract()?;
        match known.iter().find(|(known, _)| *known == typed) {
            Some((_, found)) => Ok(*found),
            None => Err(PyValueError::new_err(format!(
                "`{name}` is `{typed}` ({})",
                known_names(&typed, known)
            ))),
        }
    }

    /// Shape of the two-dimensional array `name`.
    pub(crate) fn extents(&self, name: &str) -> PyResult<[i64; 2]> {
        match *Lent::on_host(name, &self.must(name)?)?.shape() {
            [b, t] if b > 0 && t > 0 => Ok([b, t]),
            ref other => Err(PyValueError::new_err(format!(
                "`{name}` has shape {other:?} (it must be [B, T]: completions and tokens, at least one of each)"
            ))),
        }
    }

    pub(crate) fn bits(&self, name: &str, shape: &[i64]) -> PyResult<Option<Array<u8>>> {
        self.on_host(name, shape)?
            .map(|lent| array::bits(name, lent))
            .transpose()
    }

    pub(crate) fn ids(&self, name: &str, shape: &[i64]) -> PyResult<Option<Array<u32>>> {
        self.on_host(name, shape)?
            .map(|lent| array::ids(name, lent))
            .transpose()
    }

    pub(crate) fn floats(&self, name: &str, shape: &[i64]) -> PyResult<Option<Array<f32>>> {
        self.on_host(name, shape)?
            .map(|lent| array::floats(name, lent))
            .transpose()
    }

    /// `[B, T]`: numbers per token. A number per completion is copied to all of its tokens, with 0
    /// on padding.
    pub(crate) fn spread(
        &self,
        name: &str,
        shape: [i64; 2],
        mask: &[u8],
    ) -> PyResult<Option<Array<f32>>> {
        let Some(value) = self.get(name)? else {
            return Ok(None);
        };
        let lent = Lent::on_host(name, &value)?;
        if *lent.shape() != shape[..1] {
            return self.floats(name, &shape);
        }
        let (values, tokens) = (array::floats(name, lent)?, shape[1] as usize);
        let spread = mask
            .iter()
            .enumerate()
            .map(|(i, &mask)| f32::from(mask) * values.get()[i / tokens]);
        Ok(Some(Array::Own(spread.collect())))
    }

    fn on_host(&self, name: &str, shape: &[i64]) -> PyResult<Option<Lent>> {
        let Some(value) = self.get(name)? else {
            return Ok(None);
        };
        let lent = Lent::on_host(name, &value)?;
        shaped(name, lent.shape(), shape)?;
        Ok(Some(lent))
    }

    /// A large array of floats; -1 in `shape` allows any extent.
    pub(crate) fn large(&self, name: &str, shape: &[i64], stream: u64) -> PyResult<Large<f32>> {
        let lent = Lent::new(name, &self.must(name)?, stream)?;
        shaped(name, lent.shape(), shape)?;
        Large::<f32>::floats(name, lent, stream)
    }

    /// A large array of ids; -1 in `shape` allows any extent.
    pub(crate) fn large_ids(&self, name: &str, shape: &[i64], stream: u64) -> PyResult<Large<u32>> {
        let lent = Lent::new(name, &self.must(name)?, stream)?;
        shaped(name, lent.shape(), shape)?;
        Large::<u32>::ids(name, lent, stream)
    }

    /// The coming step's own learning rate, where the optimizer `name` gives it.
    pub(crate) fn step_learning_rate(&self, name: &str) -> PyResult<Option<f64>> {
        let Some(value) = self.get(name)? else {
            return Ok(None);
        };
        let own = Fields(value.cast::<PyDict>()?);
        let is_given = own.has("step_learning_rate")?;
        is_given
            .then(|| own.number("step_learning_rate", 0.0))
            .transpose()
    }

    /// The optimizer at the coming step.
    pub(crate) fn optimizer(&self, name: &str) -> PyResult<Option<OptimizerInfo>> {
        let Some(value) = self.get(name)? else {
            return Ok(None);
        };
        let own = Fields(value.cast::<PyDict>()?);
        let kind = own.named("kind", &OPTIMIZERS, OptimizerKind::ADAMW)?;
        let [beta1, beta2, eps] = if kind == OptimizerKind::SGD {
            [0.0; 3]
        } else {
            [0.9, 0.999, 1e-8]
        };
        Ok(Some(OptimizerInfo {
            kind,
            learning_rate: own.number("learning_rate", 0.0)?,
            beta1: own.number("beta1", beta1)?,
            beta2: own.number("beta2", beta2)?,
            eps: own.number("eps", eps)?,
            weight_decay: own.number("weight_decay", 0.0)?,
            max_grad_norm: own.number("max_grad_norm", 0.0)?,
            steps_taken: own.number("steps_taken", 0)?,
        }))
    }
}

fn shaped(name: &str, shape: &[i64], expected: &[i64]) -> PyResult<()> {
    let fits = shape.len() == expected.len()
        && shape
            .iter()
            .zip(expected)
            .all(|(have, want)| have == want || *want == -1 && *have > 0);
    if fits {
        return Ok(());
    }
    let extent = |extent: &i64| {
        if *extent == -1 {
            "any".to_owned()
        } else {
            extent.to_string()
        }
    };
    let wanted = expected.iter().map(extent).collect::<Vec<_>>().join(", ");
    Err(PyValueError::new_err(format!(
        "`{name}` has shape {shape:?} (it must be [{wanted}])"
    )))
}

fn known_names<T>(typed: &str, known: &[(&str, T)]) -> String {
    let names = || known.iter().map(|(name, _)| *name);
    match nearest(typed, names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known: `{}`", names().collect::<Vec<_>>().join("`, `")),
    }
}
