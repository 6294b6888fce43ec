//! Common parts of the optimizers: their memory of gradients, and one weight's part of a step.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor, Var};
use rand::Rng;

use crate::model::device::Dtype;
use crate::model::ops::{round_by_chance, to_dtype};
use crate::model::{EMBEDDING, HEAD, Params};
use crate::rng;

/// One weight's part of an optimizer step.
pub struct WeightStep<'a> {
    /// The weight's name.
    pub name: &'a str,
    /// The weight.
    pub var: &'a Var,
    /// Its gradient, contiguous f32, not yet clipped.
    pub grad: Tensor,
    /// The gradient of what was held back, where there is any, like `grad`.
    pub rejected: Option<Tensor>,
    /// Clipping factor of both gradients.
    pub scale: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// Which step it is, counted from 1.
    pub number: u64,
}

impl WeightStep<'_> {
    /// Share of the weight that decoupled weight decay leaves. Matrices decay, biases and norm weights do not. Source:
    /// `transformers.Trainer.get_decay_parameter_names`.
    pub fn decay_factor(&self, weight_decay: f64) -> f64 {
        let decay = if self.var.rank() >= 2 { weight_decay } else { 0.0 };
        1.0 - self.learning_rate * decay
    }
}

/// An optimizer's state, by name: moments are `KIND/NAME`.
pub type State = BTreeMap<String, Tensor>;

/// A running mean of gradients, or of their squares, for every weight, in its shape.
///
/// Those of the last layer, which components see, and of norms and biases are f32. Those of the other matrices may be bf16: they are widened for a step, and
/// rounded up or down with the chance that leaves their mean what it is, for a running mean that changes by a thousandth is not moved at all by rounding
/// to the nearest.
#[derive(Debug)]
pub struct Moments {
    kind: &'static str,
    tensors: BTreeMap<String, Tensor>,
}

impl Moments {
    /// Zeros for every weight, those of matrices below the last layer in `dtype`; `kind` names them in a state.
    pub fn zeros(kind: &'static str, params: &Params, dtype: Dtype) -> Result<Self> {
        let last_layer = if params.contains(HEAD) { HEAD } else { EMBEDDING };
        let zeros = params.iter().map(|(name, var)| {
            let dtype = if name == last_layer || var.rank() < 2 { var.dtype() } else { dtype.into() };
            Ok((name.to_owned(), Tensor::zeros(var.shape(), dtype, var.device())?))
        });
        Ok(Self { kind, tensors: zeros.collect::<Result<_>>()? })
    }

    /// How many weights there are.
    pub fn count(&self) -> usize {
        self.tensors.len()
    }

    /// Those of the weight `name`; an unknown name is an error.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).with_context(|| unknown(name))
    }

    /// Those of the weight `name` in f32, for a step that changes them in place; an unknown name is an error.
    pub fn open(&self, name: &str) -> Result<Tensor> {
        Ok(to_dtype(self.get(name)?, DType::F32)?)
    }

    /// Takes in what became of [`Moments::open`]'s in the step `number`.
    pub fn close(&mut self, name: &str, moments: Tensor, number: u64) -> Result<()> {
        let slot = self.tensors.get_mut(name).with_context(|| unknown(name))?;
        *slot = match slot.dtype() {
            DType::BF16 => {
                let key = rng::stream(number, &format!("{}/{name}", self.kind), &[]).next_u32();
                round_by_chance(&moments, key)?
            }
            _ => moments,
        };
        Ok(())
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.tensors.values().map(|moment| moment.elem_count() * moment.dtype().size_in_bytes()).sum()
    }

    /// A copy, where these lie, that shares no storage with them.
    pub fn deep_copy(&self) -> Result<Self> {
        let copy = self.tensors.iter().map(|(name, moment)| Ok((name.clone(), moment.copy()?)));
        Ok(Self { kind: self.kind, tensors: copy.collect::<Result<_>>()? })
    }

    /// Adds them to `state`: themselves where they lie in host memory, else a copy there.
    pub fn save(&self, state: &mut State) -> Result<()> {
        for (name, moment) in &self.tensors {
            state.insert(format!("{}/{name}", self.kind), moment.to_device(&Device::Cpu)?);
        }
        Ok(())
    }

    /// Takes back what `save` added, which `get` gives by name, one at a time; a missing or wrongly shaped tensor is an error, after which some are new.
    pub fn restore(&mut self, get: &mut dyn FnMut(&str) -> Result<Option<Tensor>>) -> Result<()> {
        for (name, slot) in &mut self.tensors {
            let full = format!("{}/{name}", self.kind);
            let Some(moment) = get(&full)? else {
                bail!("the optimizer state has no `{full}` (use a checkpoint of this model and optimizer)");
            };
            ensure!(
                moment.dims() == slot.dims() && moment.dtype() == slot.dtype(),
                "`{full}` in the optimizer state is {:?} of shape {:?}, expected {:?} of shape {:?} (use a checkpoint of this model)",
                moment.dtype(),
                moment.dims(),
                slot.dtype(),
                slot.dims()
            );
            *slot = moment.to_device(slot.device())?;
        }
        Ok(())
    }
}

fn unknown(name: &str) -> String {
    format!("the optimizer has no weight `{name}`")
}
