//! Fields of a batch, by the names of their Python arguments.

use capo_loader::batch_file::OPTIMIZERS;
use capo_plugin::fields::{Dtype, Field, Source, Value, fits, shape_text};
use capo_plugin::{
    Denominator, OptimizerInfo, OptimizerKind, Reduction, TensorBuffer, Values, nearest,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::{self, Array, Slot};
use crate::dlpack::Lent;

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
                "`{name}` has shape {other:?} (it must be [B, T]: completions and tokens, at \
                 least one of each)"
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
    fn spread(&self, name: &str, shape: &[i64]) -> PyResult<Option<Array<f32>>> {
        let Some(value) = self.get(name)? else {
            return Ok(None);
        };
        let lent = Lent::on_host(name, &value)?;
        let mask = self.bits("completion_mask", shape)?;
        let Some(mask) = mask.filter(|_| *lent.shape() == shape[..1]) else {
            return self.floats(name, shape);
        };
        let values = array::floats(name, lent)?;
        let tokens = shape[1] as usize;
        let entries = mask.get().iter().enumerate();
        let spread = entries.map(|(i, &mask)| f32::from(mask) * values.get()[i / tokens]);
        Ok(Some(Array::Own(spread.collect())))
    }

    /// The scalar `field` of a batch. Where it is left out, it is `default`.
    fn scalar(
        &self,
        field: &Field,
        default: Option<Value<'static>>,
    ) -> PyResult<Option<Value<'static>>> {
        let name = field.name;
        if !self.has(name)? {
            return match default {
                None if field.required => Err(PyTypeError::new_err(format!(
                    "`{name}` is missing ({})",
                    field.sentence().trim_end_matches('.')
                ))),
                default => Ok(default),
            };
        }
        Ok(Some(match field.dtype {
            Dtype::F32 => Value::Single(self.number(name, 0.0)?),
            Dtype::F64 => Value::Double(self.number(name, 0.0)?),
            Dtype::U64 => Value::Whole(self.number(name, 0)?),
            Dtype::Reduction => {
                let named = self.named(name, &Reduction::NAMED, Reduction::COMPLETION_MEAN)?;
                Value::Whole(named.0.into())
            }
            Dtype::Denominator => {
                let named = self.named(name, &Denominator::NAMED, Denominator::KEPT)?;
                Value::Whole(named.0.into())
            }
            Dtype::U32 | Dtype::Bit => Value::Whole(self.number::<u32>(name, 0)?.into()),
        }))
    }

    fn on_host(&self, name: &str, shape: &[i64]) -> PyResult<Option<Lent>> {
        let Some(value) = self.get(name)? else {
            return Ok(None);
        };
        let lent = Lent::on_host(name, &value)?;
        shaped(name, lent.shape(), shape)?;
        Ok(Some(lent))
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
    if fits(shape, expected) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "`{name}` has shape {shape:?} (it must be {})",
        shape_text(expected)
    )))
}

/// The arguments as a source of a batch's fields. It notes where each array lies.
pub(crate) struct Arguments<'a, 'py> {
    pub(crate) fields: Fields<'a, 'py>,
    /// The CUDA stream on which arrays on a device are ready.
    pub(crate) stream: u64,
    pub(crate) arrays: Vec<NamedSlot>,
}

/// The slot of a batch's array.
pub(crate) struct NamedSlot {
    pub(crate) name: &'static str,
    pub(crate) slot: Slot,
    /// True for an array of the last layer or of its state, which may lie on a device.
    pub(crate) is_large: bool,
}

impl Arguments<'_, '_> {
    /// Notes the slot of an array in host memory, and keeps the array.
    fn keep<T: Send + Sync + 'static>(
        &mut self,
        field: &'static Field,
        array: Option<Array<T>>,
    ) -> Option<Values<T>> {
        let array = array?;
        self.arrays.push(NamedSlot {
            name: field.name,
            slot: array.slot(),
            is_large: false,
        });
        Some(array.into_values())
    }
}

impl Source for Arguments<'_, '_> {
    type Error = PyErr;

    fn has(&mut self, field: &'static Field) -> PyResult<bool> {
        self.fields.has(field.name)
    }

    fn scalar(
        &mut self,
        field: &'static Field,
        default: Option<Value<'static>>,
    ) -> PyResult<Option<Value<'static>>> {
        if field.class == "Optimizer" {
            return match self.fields.get("optimizer")? {
                Some(own) => Fields(own.cast::<PyDict>()?).scalar(field, default),
                None => Ok(default),
            };
        }
        self.fields.scalar(field, default)
    }

    fn bits(&mut self, field: &'static Field, shape: &[i64]) -> PyResult<Option<Values<u8>>> {
        let array = self.fields.bits(field.name, shape)?;
        Ok(self.keep(field, array))
    }

    fn ids(&mut self, field: &'static Field, shape: &[i64]) -> PyResult<Option<Values<u32>>> {
        let array = self.fields.ids(field.name, shape)?;
        Ok(self.keep(field, array))
    }

    fn floats(&mut self, field: &'static Field, shape: &[i64]) -> PyResult<Option<Values<f32>>> {
        let array = match field.name {
            "advantages" => self.fields.spread(field.name, shape)?,
            _ => self.fields.floats(field.name, shape)?,
        };
        // A loop of its own may have no rewards and no advantages.
        let is_missing = array.is_none() && ["rewards", "advantages"].contains(&field.name);
        let array = if is_missing {
            let count = shape.iter().product::<i64>() as usize;
            Some(Array::Own(vec![0.0; count]))
        } else {
            array
        };
        Ok(self.keep(field, array))
    }

    fn tensor(&mut self, field: &'static Field, shape: &[i64]) -> PyResult<TensorBuffer> {
        let name = field.name;
        let lent = Lent::new(name, &self.fields.must(name)?, self.stream)?;
        shaped(name, lent.shape(), shape)?;
        let (tensor, slot) = array::large(name, lent, field.dtype, self.stream)?;
        self.arrays.push(NamedSlot {
            name,
            slot,
            is_large: true,
        });
        Ok(tensor)
    }

    fn missing(&mut self, field: &'static Field, shape: &[i64]) -> PyErr {
        let sentence = format!(
            "`{}` is missing (it is an array of shape {})",
            field.name,
            shape_text(shape)
        );
        PyValueError::new_err(sentence)
    }
}

fn known_names<T>(typed: &str, known: &[(&str, T)]) -> String {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    match nearest(typed, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known: `{}`", names.join("`, `")),
    }
}
