//! The optimizer: clipping by the global norm, then the rule of AdamW or SGD for each weight.

pub mod adamw;
mod moments;
pub mod sgd;

use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{CpuStorage, D, DType, Device, Storage, Tensor};
use capo_plugin::{OptimizerInfo, OptimizerKind};
use serde::{Deserialize, Serialize};

use self::adamw::{AdamW, AdamWConfig, SecondMoment};
use self::moments::{Moments, State, WeightStep};
use self::sgd::{Sgd, SgdConfig};
use crate::ops::adamw::{squares, takes_all};
use crate::ops::{add, fused, sum_blocks, sum_squares, to_dtype};
use crate::update::values;
use crate::{Gradients, Params};

/// Name of an optimizer in the settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    #[default]
    AdamW,
    /// SGD, with or without momentum.
    Sgd,
}

/// An optimizer's rule and its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OptimizerConfig {
    AdamW(AdamWConfig),
    Sgd(SgdConfig),
}

/// Result of one optimizer step. Norms are Euclidean, over all trained weights, before clipping;
/// they may be infinite or NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// Norm of the gradient of the accepted tokens.
    pub grad_norm: f64,
    /// Norm of the gradient of the rejected tokens; 0 if there are none.
    pub rejected_grad_norm: f64,
    /// Norm of the sum of both gradients, which determines clipping.
    pub grad_norm_unmasked: f64,
    /// True if the weights were updated; `false` if a norm is not finite.
    pub taken: bool,
}

/// An optimizer over all weights of a model.
#[derive(Debug)]
pub struct Optimizer {
    rule: Rule,
    steps_taken: u64,
}

#[derive(Debug, Clone)]
enum Rule {
    AdamW(AdamW),
    Sgd(Sgd),
}

impl Rule {
    fn moments(&self) -> &[Moments] {
        match self {
            Self::AdamW(adamw) => &adamw.moments,
            Self::Sgd(sgd) => sgd.sums.as_slice(),
        }
    }

    fn moments_mut(&mut self) -> &mut [Moments] {
        match self {
            Self::AdamW(adamw) => &mut adamw.moments,
            Self::Sgd(sgd) => sgd.sums.as_mut_slice(),
        }
    }
}

const STEPS_TAKEN: &str = "steps_taken";

impl Optimizer {
    /// An optimizer before its first step.
    pub fn new(params: &Params, config: OptimizerConfig) -> Result<Self> {
        let rule = match config {
            OptimizerConfig::AdamW(config) => Rule::AdamW(AdamW::new(params, config)?),
            OptimizerConfig::Sgd(config) => Rule::Sgd(Sgd::new(params, config)?),
        };
        Ok(Self {
            rule,
            steps_taken: 0,
        })
    }

    /// Description of the optimizer for components, before the coming step. For SGD, `beta1` is its
    /// momentum.
    pub fn info(&self, learning_rate: f64, max_grad_norm: f64) -> OptimizerInfo {
        let steps_taken = self.steps_taken;
        match &self.rule {
            Rule::AdamW(AdamW { config, .. }) => OptimizerInfo {
                kind: match config.second_moment {
                    SecondMoment::Kept => OptimizerKind::ADAMW,
                    SecondMoment::KeptAndRejected => OptimizerKind::ADAMW_KEPT_AND_REJECTED,
                },
                learning_rate,
                beta1: config.beta1,
                beta2: config.beta2,
                eps: config.eps,
                weight_decay: config.weight_decay,
                max_grad_norm,
                steps_taken,
            },
            Rule::Sgd(Sgd { config, .. }) => OptimizerInfo {
                kind: OptimizerKind::SGD,
                learning_rate,
                beta1: config.momentum,
                beta2: 0.0,
                eps: 0.0,
                weight_decay: config.weight_decay,
                max_grad_norm,
                steps_taken,
            },
        }
    }

    /// Number of updates so far.
    pub fn steps_taken(&self) -> u64 {
        self.steps_taken
    }

    /// Adam's `exp_avg` and `exp_avg_sq` of the weight `name`, in its shape and their stored dtype.
    /// An unknown name is an error, and so is another optimizer.
    pub fn moments(&self, name: &str) -> Result<(&Tensor, &Tensor)> {
        match &self.rule {
            Rule::AdamW(adamw) => {
                let [exp_avg, exp_avg_sq] = &adamw.moments;
                Ok((exp_avg.get(name)?, exp_avg_sq.get(name)?))
            }
            Rule::Sgd(_) => bail!("`sgd` has no second moment (use `adamw`)"),
        }
    }

    /// Mean of squared gradients of the weight `name`, f32, and the divisor that corrects its bias
    /// from the start at 0. `None` for an optimizer without second moments.
    pub fn second_moment(&self, name: &str) -> Result<Option<(Tensor, f64)>> {
        let Rule::AdamW(adamw) = &self.rule else {
            return Ok(None);
        };
        let correction = 1.0 - adamw.config.beta2.powf(self.steps_taken as f64);
        Ok(Some((adamw.moments[1].open(name)?, correction)))
    }

    /// Cosine between `-grads` and the direction of the previous step, according to the moments.
    /// `None` before the first step, and for SGD without momentum, which has no moments.
    pub fn alignment(&self, grads: &Gradients) -> Result<Option<f64>> {
        if self.steps_taken == 0 {
            return Ok(None);
        }
        let mut product = 0.0;
        let mut square = 0.0;
        for (name, grad) in grads.iter() {
            let direction = match &self.rule {
                Rule::AdamW(adamw) => adamw.direction(name, self.steps_taken)?,
                Rule::Sgd(sgd) => match sgd.direction(name)? {
                    Some(direction) => direction,
                    None => return Ok(None),
                },
            };
            product += products(&direction, &to_dtype(grad, DType::F32)?)?;
            square += products(&direction, &direction)?;
        }
        let norms = square.sqrt() * global_norm(grads)?;
        Ok((norms > 0.0 && norms.is_finite()).then(|| product / norms))
    }

    /// The name in a state of the first moment that has a number that is not finite.
    pub fn not_finite(&self) -> Result<Option<String>> {
        for moments in self.rule.moments() {
            if let Some(name) = moments.not_finite()? {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// Bytes of all moments.
    pub fn bytes(&self) -> usize {
        self.rule.moments().iter().map(Moments::bytes).sum()
    }

    /// A copy on the same device that shares no storage with the original.
    pub fn deep_copy(&self) -> Result<Self> {
        let mut rule = self.rule.clone();
        rule.moments_mut()
            .iter_mut()
            .try_for_each(Moments::unshare)?;
        Ok(Self { rule, ..*self })
    }

    /// Stage 6: clips the gradients to `max_grad_norm` (0: no clipping) and updates `params` in
    /// place.
    ///
    /// `grads` are the gradients of the accepted tokens, `rejected` those of the rejected tokens.
    /// One factor clips both, by the norm of their sum. The step follows `grads` alone; `rejected`
    /// enters Adam's second moment. If a norm is not finite, nothing changes. Source of the
    /// clipping: `torch.nn.utils.clip_grad_norm_`.
    pub fn step(
        &mut self,
        params: &Params,
        grads: &Gradients,
        rejected: Option<&Gradients>,
        learning_rate: f64,
        max_grad_norm: f64,
    ) -> Result<StepOutcome> {
        if let Rule::AdamW(adamw) = &self.rule {
            // On a GPU one launch updates all weights, and two more give the norms.
            let trained = adamw.trained(params, grads, rejected, learning_rate)?;
            if takes_all(&trained) {
                let outcome = StepOutcome::from_squares(squares(&trained)?, rejected.is_some());
                if outcome.taken {
                    let scale = clip_scale(outcome.grad_norm_unmasked, max_grad_norm);
                    adamw.update_all(&trained, self.steps_taken + 1, scale, learning_rate)?;
                    self.steps_taken += 1;
                }
                return Ok(outcome);
            }
        }
        let outcome = StepOutcome::of(grads, rejected)?;
        if !outcome.taken {
            return Ok(outcome);
        }
        self.steps_taken += 1;
        let scale = clip_scale(outcome.grad_norm_unmasked, max_grad_norm);
        for (name, var) in params.iter() {
            let rejected = rejected.map(|rejected| gradient_of(rejected, name));
            let weight = WeightStep {
                name,
                var,
                grad: gradient_of(grads, name)?,
                rejected: rejected.transpose()?,
                scale,
                learning_rate,
                number: self.steps_taken,
            };
            match &mut self.rule {
                Rule::AdamW(adamw) => adamw.update(&weight)?,
                Rule::Sgd(sgd) => sgd.update(&weight)?,
            }
        }
        Ok(outcome)
    }

    /// The state as named tensors in host memory, to be written before the next step changes them.
    /// Moments are `KIND/NAME`, where `KIND` is `exp_avg` and `exp_avg_sq` for AdamW or
    /// `momentum_buffer` for SGD with momentum. `steps_taken` is i64, `[1]`.
    pub fn state(&self) -> Result<State> {
        let mut state = State::new();
        self.rule
            .moments()
            .iter()
            .try_for_each(|moments| moments.save(&mut state))?;
        state.insert(
            STEPS_TAKEN.to_owned(),
            Tensor::new(&[self.steps_taken as i64], &Device::Cpu)?,
        );
        Ok(state)
    }

    /// Restores a result of `state`, bit for bit. A missing, extra or wrongly shaped tensor is an
    /// error.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        // The state may share its storage with another optimizer, so it is copied.
        self.restore(state.len(), &mut |name| {
            Ok(state.get(name).map(Tensor::copy).transpose()?)
        })
    }

    /// Like `load_state`, for `count` tensors that `get` returns by name, one at a time. After an
    /// error, some tensors are already restored.
    pub fn restore(
        &mut self,
        count: usize,
        get: &mut dyn FnMut(&str) -> Result<Option<Tensor>>,
    ) -> Result<()> {
        let steps = get(STEPS_TAKEN)?.context("the optimizer state has no `steps_taken`")?;
        let steps_taken = u64::try_from(steps.to_vec1::<i64>()?.first().copied().unwrap_or(-1))
            .context("the optimizer state has a negative `steps_taken`")?;
        let expected = 1 + self
            .rule
            .moments()
            .iter()
            .map(Moments::count)
            .sum::<usize>();
        ensure!(
            count == expected,
            "the optimizer state has {count} tensors, expected {expected} \
             (use a checkpoint of this model and this optimizer)"
        );
        self.rule
            .moments_mut()
            .iter_mut()
            .try_for_each(|moments| moments.restore(get))?;
        self.steps_taken = steps_taken;
        Ok(())
    }
}

impl StepOutcome {
    /// The norms before the step; `taken` is true if all of them are finite.
    fn of(grads: &Gradients, rejected: Option<&Gradients>) -> Result<Self> {
        let grad_norm = global_norm(grads)?;
        let (rejected_grad_norm, grad_norm_unmasked) = match rejected {
            None => (0.0, grad_norm),
            Some(rejected) => (global_norm(rejected)?, norm_of_sum(grads, rejected)?),
        };
        Ok(Self::from_norms([
            grad_norm,
            rejected_grad_norm,
            grad_norm_unmasked,
        ]))
    }

    /// The outcome by three sums of squares: of the gradients of accepted tokens, of those of
    /// rejected tokens, and of the sums of both.
    fn from_squares(squares: [f64; 3], rejects: bool) -> Self {
        let [grad, rejected, sum] = squares.map(f64::sqrt);
        Self::from_norms(if rejects {
            [grad, rejected, sum]
        } else {
            [grad, 0.0, grad]
        })
    }

    fn from_norms(norms: [f64; 3]) -> Self {
        let [grad_norm, rejected_grad_norm, grad_norm_unmasked] = norms;
        let taken = norms.iter().all(|norm| norm.is_finite());
        Self {
            grad_norm,
            rejected_grad_norm,
            grad_norm_unmasked,
            taken,
        }
    }
}

/// The gradient by the weight `name`, contiguous and in f32.
fn gradient_of(grads: &Gradients, name: &str) -> Result<Tensor> {
    Ok(grads.get(name)?.to_dtype(DType::F32)?.contiguous()?)
}

/// The sum of `a b` over all elements.
fn products(a: &Tensor, b: &Tensor) -> Result<f64> {
    if !fused(a) {
        return Ok((a * b)?
            .sum(D::Minus1)?
            .flatten_all()?
            .to_dtype(DType::F64)?
            .sum_all()?
            .to_scalar()?);
    }
    let a = a.contiguous()?;
    let (a_storage, layout) = a.storage_and_layout();
    let a = values(&a_storage, layout)?;
    let b = b.contiguous()?;
    let (b_storage, layout) = b.storage_and_layout();
    let b = values(&b_storage, layout)?;
    Ok(sum_blocks(a.len(), |block: Range<usize>| {
        a[block.clone()]
            .iter()
            .zip(&b[block])
            .map(|(a, b)| f64::from(*a) * f64::from(*b))
            .sum()
    }))
}

/// Euclidean norm of all gradients, summed in f64 in the order of names.
pub fn global_norm(grads: &Gradients) -> Result<f64> {
    let on_host = grads.iter().all(|(_, grad)| fused(grad));
    norm(grads.iter().map(|(_, grad)| Ok(grad.clone())), on_host)
}

/// The norm of the sum of two gradients of the same model.
fn norm_of_sum(a: &Gradients, b: &Gradients) -> Result<f64> {
    let on_host = a.iter().chain(b.iter()).all(|(_, grad)| fused(grad));
    let sums = a.iter().map(|(name, grad)| {
        let a = grad.to_dtype(DType::F32)?;
        let b = b.get(name)?.to_dtype(DType::F32)?;
        Ok(add(&a, &b)?)
    });
    norm(sums, on_host)
}

/// Euclidean norm of all `grads`; `on_host` is true if the fused kernels accept each of them.
fn norm(grads: impl Iterator<Item = Result<Tensor>>, on_host: bool) -> Result<f64> {
    if !on_host {
        let mut rows = Vec::new();
        for grad in grads {
            let squares = grad?.to_dtype(DType::F32)?.sqr()?;
            rows.push(squares.sum(D::Minus1)?.flatten_all()?);
        }
        return Ok(Tensor::cat(&rows, 0)?
            .to_dtype(DType::F64)?
            .sum_all()?
            .to_scalar::<f64>()?
            .sqrt());
    }
    let mut sum = 0.0;
    for grad in grads {
        let grad = grad?.contiguous()?;
        let (storage, layout) = grad.storage_and_layout();
        sum += match (&*storage, layout.contiguous_offsets()) {
            (Storage::Cpu(CpuStorage::F32(values)), Some((from, to))) => {
                sum_squares(&values[from..to])
            }
            _ => f64::from(
                grad.sqr()?
                    .sum_all()?
                    .to_dtype(DType::F32)?
                    .to_scalar::<f32>()?,
            ),
        };
    }
    Ok(sum.sqrt())
}

/// Clipping factor for gradients of norm `norm`: `max / (norm + 1e-6)`, but at most 1. It is 1 if
/// `max` is 0.
fn clip_scale(norm: f64, max: f64) -> f64 {
    if max > 0.0 {
        (max / (norm + 1e-6)).min(1.0)
    } else {
        1.0
    }
}
