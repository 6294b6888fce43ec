//! Common parts of the optimizers: moments of gradients, and the inputs of one weight's update.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor, Var};
use rand::Rng;

use crate::device::Dtype;
use crate::ops::{is_finite, round_by_chance, to_dtype};
use crate::params::not_finite;
use crate::{EMBEDDING, HEAD, Params};

/// Inputs of one weight's update in an optimizer step.
pub struct WeightStep<'a> {
    pub name: &'a str,
    pub var: &'a Var,
    /// Gradient of the accepted tokens by the weight, contiguous f32, before clipping.
    pub grad: Tensor,
    /// Gradient of the rejected tokens, if any, in the same form as `grad`.
    pub rejected: Option<Tensor>,
    /// Clipping factor of both gradients.
    pub scale: f64,
    pub learning_rate: f64,
    /// Number of the step, from 1.
    pub number: u64,
}

/// Factor that decoupled weight decay applies to the weight. Matrices decay, biases and norm
/// weights do not. Source: `transformers.Trainer.get_decay_parameter_names`.
pub fn decay_factor(weight: &Tensor, learning_rate: f64, weight_decay: f64) -> f64 {
    let decay = if weight.rank() >= 2 {
        weight_decay
    } else {
        0.0
    };
    1.0 - learning_rate * decay
}

/// An optimizer's state by tensor name; a moment has the name `KIND/NAME`.
pub type State = BTreeMap<String, Tensor>;

/// A running mean of gradients or of their squares, for every weight, in its shape.
///
/// Moments of the last layer (which components see), norms and biases are f32. Moments of the other
/// matrices may be bf16. A step converts them to f32 and rounds the results stochastically, which
/// preserves their mean. With rounding to the nearest, a running mean that moves by a thousandth
/// per step would never change.
///
/// A clone shares its storage with the original.
#[derive(Debug, Clone)]
pub struct Moments {
    kind: &'static str,
    tensors: BTreeMap<String, Tensor>,
}

impl Moments {
    /// Zeros for every weight, in `dtype` for matrices below the last layer. `kind` is the moment's
    /// name in a state.
    pub fn zeros(kind: &'static str, params: &Params, dtype: Dtype) -> Result<Self> {
        let last_layer = if params.contains(HEAD) {
            HEAD
        } else {
            EMBEDDING
        };
        let zeros = params.iter().map(|(name, var)| {
            let dtype = if name == last_layer || var.rank() < 2 {
                var.dtype()
            } else {
                dtype.into()
            };
            Ok((
                name.to_owned(),
                Tensor::zeros(var.shape(), dtype, var.device())?,
            ))
        });
        Ok(Self {
            kind,
            tensors: zeros.collect::<Result<_>>()?,
        })
    }

    /// Number of weights.
    pub fn count(&self) -> usize {
        self.tensors.len()
    }

    /// The moment of the weight `name`. An unknown name is an error.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).with_context(|| unknown(name))
    }

    /// The moment of the weight `name` in f32, for an update in place. An unknown name is an error.
    pub fn open(&self, name: &str) -> Result<Tensor> {
        Ok(to_dtype(self.get(name)?, DType::F32)?)
    }

    /// Stores the moment from [`Moments::open`] after its update in step `number`.
    pub fn close(&mut self, name: &str, moments: Tensor, number: u64) -> Result<()> {
        let slot = self.tensors.get_mut(name).with_context(|| unknown(name))?;
        *slot = match slot.dtype() {
            DType::BF16 => {
                let key =
                    host_rng::stream(number, &format!("{}/{name}", self.kind), &[]).next_u32();
                round_by_chance(&moments, key)?
            }
            _ => moments,
        };
        Ok(())
    }

    /// The name in a state of the first weight whose moment has a number that is not finite.
    pub fn not_finite(&self) -> Result<Option<String>> {
        let name = not_finite(
            self.tensors
                .iter()
                .map(|(name, moment)| (name.as_str(), moment)),
        )?;
        Ok(name.map(|name| self.named(name)))
    }

    /// Name of the moment of the weight `name` in a state.
    fn named(&self, name: &str) -> String {
        format!("{}/{name}", self.kind)
    }

    /// Bytes of all moments.
    pub fn bytes(&self) -> usize {
        self.tensors
            .values()
            .map(|moment| moment.elem_count() * moment.dtype().size_in_bytes())
            .sum()
    }

    /// Moves the moments to storage of their own on the same device.
    pub fn unshare(&mut self) -> Result<()> {
        for moment in self.tensors.values_mut() {
            *moment = moment.copy()?;
        }
        Ok(())
    }

    /// Adds the moments to `state`. Moments in host memory are shared, others are copied to host
    /// memory.
    pub fn save(&self, state: &mut State) -> Result<()> {
        for (name, moment) in &self.tensors {
            state.insert(self.named(name), moment.to_device(&Device::Cpu)?);
        }
        Ok(())
    }

    /// Restores the moments that `save` added; `get` returns them by name. After an error (a
    /// missing or wrong tensor), some are new.
    pub fn restore(&mut self, get: &mut dyn FnMut(&str) -> Result<Option<Tensor>>) -> Result<()> {
        for (name, slot) in &mut self.tensors {
            let full = format!("{}/{name}", self.kind);
            let Some(moment) = get(&full)? else {
                bail!(
                    "the optimizer state has no `{full}` \
                     (use a checkpoint of this model and optimizer)"
                );
            };
            ensure!(
                moment.dims() == slot.dims() && moment.dtype() == slot.dtype(),
                "`{full}` in the optimizer state is {:?} of shape {:?}, \
                 expected {:?} of shape {:?} (use a checkpoint of this model)",
                moment.dtype(),
                moment.dims(),
                slot.dtype(),
                slot.dims()
            );
            ensure!(
                is_finite(&moment)?,
                "numbers of `{full}` in the optimizer state are infinite or NaN \
                 (use an earlier checkpoint)"
            );
            *slot = moment.to_device(slot.device())?;
        }
        Ok(())
    }
}

fn unknown(name: &str) -> String {
    format!("the optimizer has no weight `{name}`")
}
