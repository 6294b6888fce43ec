//! AdamW with global-norm clipping, and learning-rate schedules.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{CpuStorage, D, DType, Device, InplaceOp2, InplaceOp3, Layout, Storage, Tensor, Var};

use crate::model::ops::{fused, layout_error, sum_squares, update2, update3};
use crate::model::{Gradients, Params};

/// Constants of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the corrected second moment.
    pub eps: f64,
    /// Decoupled weight decay of matrices; biases and norm weights have none.
    pub weight_decay: f64,
}

impl Default for AdamWConfig {
    /// The defaults of Hugging Face's `TrainingArguments`.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

/// What happened in one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// Euclidean norm of all gradients before clipping; may be infinite or NaN.
    pub grad_norm: f64,
    /// Whether the weights were updated; `false` when the norm is not finite.
    pub taken: bool,
}

/// AdamW over all weights of a model.
///
/// `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `w = w (1 - lr decay) - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)`. Source: `torch.optim.AdamW`; which
/// weights decay: `transformers.Trainer.get_decay_parameter_names`.
#[derive(Debug)]
pub struct AdamW {
    config: AdamWConfig,
    exp_avg: BTreeMap<String, Tensor>,
    exp_avg_sq: BTreeMap<String, Tensor>,
    steps_taken: u64,
}

const STEPS_TAKEN: &str = "steps_taken";
const EXP_AVG: &str = "exp_avg";
const EXP_AVG_SQ: &str = "exp_avg_sq";

impl AdamW {
    /// An optimizer that has taken no step; both moments of every weight are 0.
    pub fn new(params: &Params, config: AdamWConfig) -> Result<Self> {
        let zeros = || -> Result<BTreeMap<String, Tensor>> {
            params.iter().map(|(name, var)| Ok((name.to_owned(), var.as_detached_tensor().zeros_like()?))).collect()
        };
        Ok(Self { config, exp_avg: zeros()?, exp_avg_sq: zeros()?, steps_taken: 0 })
    }

    /// The constants.
    pub fn config(&self) -> &AdamWConfig {
        &self.config
    }

    /// Number of updates so far.
    pub fn steps_taken(&self) -> u64 {
        self.steps_taken
    }

    /// `exp_avg` and `exp_avg_sq` of the weight `name`, in its shape; an unknown name is an error.
    pub fn moments(&self, name: &str) -> Result<(&Tensor, &Tensor)> {
        let unknown = || format!("the optimizer has no weight `{name}`");
        Ok((self.exp_avg.get(name).with_context(unknown)?, self.exp_avg_sq.get(name).with_context(unknown)?))
    }

    /// The mean of squared gradients of the weight `name`, and what it is to be divided by to be free of its start at 0; none for an
    /// optimizer that keeps none.
    pub fn second_moment(&self, name: &str) -> Result<Option<(&Tensor, f64)>> {
        let (_, exp_avg_sq) = self.moments(name)?;
        Ok(Some((exp_avg_sq, 1.0 - self.config.beta2.powf(self.steps_taken as f64))))
    }

    /// A copy, where the moments lie, that shares no storage with the original.
    pub fn deep_copy(&self) -> Result<Self> {
        let copy = |moments: &BTreeMap<String, Tensor>| -> Result<BTreeMap<String, Tensor>> {
            moments.iter().map(|(name, moment)| Ok((name.clone(), moment.copy()?))).collect()
        };
        Ok(Self { exp_avg: copy(&self.exp_avg)?, exp_avg_sq: copy(&self.exp_avg_sq)?, ..*self })
    }

    /// Clips `grads` to `max_grad_norm` (0: no clipping) and updates `params` in place.
    ///
    /// A gradient norm that is not finite changes nothing. Clipping: `torch.nn.utils.clip_grad_norm_`.
    pub fn step(
        &mut self,
        params: &Params,
        grads: &Gradients,
        learning_rate: f64,
        max_grad_norm: f64,
    ) -> Result<StepOutcome> {
        let grad_norm = global_norm(grads)?;
        if !grad_norm.is_finite() {
            return Ok(StepOutcome { grad_norm, taken: false });
        }
        self.steps_taken += 1;
        let AdamWConfig { beta1, beta2, eps, weight_decay } = self.config;
        let scale = clip_scale(grad_norm, max_grad_norm);
        let means = [(beta1, false), (beta2, true)].map(|(beta, squared)| MeanOfGradients { beta, scale, squared });
        let (correction1, correction2) =
            (1.0 - beta1.powf(self.steps_taken as f64), 1.0 - beta2.powf(self.steps_taken as f64));
        for (name, var) in params.iter() {
            let grad = grads.get(name)?.to_dtype(DType::F32)?.contiguous()?;
            let decay = if decays(var) { weight_decay } else { 0.0 };
            let update = Update {
                keep: 1.0 - learning_rate * decay,
                rate: learning_rate / correction1,
                root: correction2.sqrt(),
                eps,
            };
            self.update(name, var, &grad, &means, &update)?;
        }
        Ok(StepOutcome { grad_norm, taken: true })
    }

    /// Updates one weight and its moments: in place by the fused CPU kernels, on other devices by candle's operations.
    fn update(
        &mut self,
        name: &str,
        var: &Var,
        grad: &Tensor,
        means: &[MeanOfGradients; 2],
        update: &Update,
    ) -> Result<()> {
        let unknown = || format!("the optimizer has no weight `{name}`");
        let exp_avg = self.exp_avg.get_mut(name).with_context(unknown)?;
        let exp_avg_sq = self.exp_avg_sq.get_mut(name).with_context(unknown)?;
        if fused(var) {
            exp_avg.inplace_op2(grad, &means[0])?;
            exp_avg_sq.inplace_op2(grad, &means[1])?;
            var.as_tensor().inplace_op3(exp_avg, exp_avg_sq, update)?;
        } else {
            *exp_avg = means[0].of(exp_avg, grad)?;
            *exp_avg_sq = means[1].of(exp_avg_sq, grad)?;
            var.set(&update.of(&var.as_detached_tensor(), exp_avg, exp_avg_sq)?)?;
        }
        Ok(())
    }

    /// A copy of the state as named tensors in host memory: `exp_avg/NAME`, `exp_avg_sq/NAME` (f32) and `steps_taken` (i64, `[1]`).
    pub fn state(&self) -> Result<BTreeMap<String, Tensor>> {
        let mut state = BTreeMap::new();
        for (kind, moments) in [(EXP_AVG, &self.exp_avg), (EXP_AVG_SQ, &self.exp_avg_sq)] {
            for (name, moment) in moments {
                let copy = if moment.device().is_cpu() { moment.copy()? } else { moment.to_device(&Device::Cpu)? };
                state.insert(format!("{kind}/{name}"), copy);
            }
        }
        let steps = Tensor::new(&[self.steps_taken as i64], &Device::Cpu)?;
        state.insert(STEPS_TAKEN.to_owned(), steps);
        Ok(state)
    }

    /// Restores what `state` gave, bit for bit; a missing, extra or wrongly shaped tensor is an error.
    pub fn load_state(&mut self, state: &BTreeMap<String, Tensor>) -> Result<()> {
        let steps = state.get(STEPS_TAKEN).context("the optimizer state has no `steps_taken`")?;
        let steps_taken = u64::try_from(steps.to_vec1::<i64>()?.first().copied().unwrap_or(-1))
            .context("the optimizer state has a negative `steps_taken`")?;
        let expected = 2 * self.exp_avg.len() + 1;
        ensure!(
            state.len() == expected,
            "the optimizer state has {} tensors, expected {expected} (use a checkpoint of this model)",
            state.len()
        );
        let exp_avg = restore(state, EXP_AVG, &self.exp_avg)?;
        let exp_avg_sq = restore(state, EXP_AVG_SQ, &self.exp_avg_sq)?;
        (self.exp_avg, self.exp_avg_sq, self.steps_taken) = (exp_avg, exp_avg_sq, steps_taken);
        Ok(())
    }
}

/// Copies the moments of one kind out of a state.
fn restore(
    state: &BTreeMap<String, Tensor>,
    kind: &str,
    like: &BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Tensor>> {
    let mut moments = BTreeMap::new();
    for (name, like) in like {
        let full = format!("{kind}/{name}");
        let Some(moment) = state.get(&full) else {
            bail!("the optimizer state has no `{full}` (use a checkpoint of this model)");
        };
        ensure!(
            moment.dims() == like.dims() && moment.dtype() == DType::F32,
            "`{full}` in the optimizer state has shape {:?}, expected {:?} (use a checkpoint of this model)",
            moment.dims(),
            like.dims()
        );
        moments.insert(name.clone(), moment.to_device(like.device())?.copy()?);
    }
    Ok(moments)
}

/// Whether weight decay applies: to matrices, not to biases and norm weights.
fn decays(weight: &Tensor) -> bool {
    weight.rank() >= 2
}

/// The Euclidean norm of all gradients, summed in f64 in name order.
pub fn global_norm(grads: &Gradients) -> Result<f64> {
    if grads.iter().any(|(_, grad)| !fused(grad)) {
        let rows = |(_, grad): (&str, &Tensor)| grad.to_dtype(DType::F32)?.sqr()?.sum(D::Minus1)?.flatten_all();
        let rows = grads.iter().map(rows).collect::<candle_core::Result<Vec<_>>>()?;
        return Ok(Tensor::cat(&rows, 0)?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?.sqrt());
    }
    let mut sum = 0.0;
    for (_, grad) in grads.iter() {
        let grad = grad.contiguous()?;
        let (storage, layout) = grad.storage_and_layout();
        sum += match (&*storage, layout.contiguous_offsets()) {
            (Storage::Cpu(CpuStorage::F32(values)), Some((from, to))) => sum_squares(&values[from..to]),
            _ => f64::from(grad.sqr()?.sum_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?),
        };
    }
    Ok(sum.sqrt())
}

/// What gradients of norm `norm` are multiplied by: `max / (norm + 1e-6)` when less than 1; 1 when `max` is 0.
fn clip_scale(norm: f64, max: f64) -> f64 {
    if max > 0.0 { (max / (norm + 1e-6)).min(1.0) } else { 1.0 }
}

/// `m = beta m + (1 - beta) (scale g)^p` with p = 1 or 2, in place.
struct MeanOfGradients {
    beta: f64,
    scale: f64,
    squared: bool,
}

impl MeanOfGradients {
    /// The new mean, as the kernel below computes it in place.
    fn of(&self, m: &Tensor, grad: &Tensor) -> candle_core::Result<Tensor> {
        let grad = (grad * self.scale)?;
        if self.squared {
            (m * self.beta)? + (grad.sqr()? * (1.0 - self.beta))?
        } else {
            m + ((grad - m)? * (1.0 - self.beta))?
        }
    }
}

impl InplaceOp2 for MeanOfGradients {
    fn name(&self) -> &'static str {
        "mean-of-gradients"
    }

    fn cpu_fwd(&self, m: &mut CpuStorage, ml: &Layout, g: &CpuStorage, gl: &Layout) -> candle_core::Result<()> {
        let (m, g) = (whole_mut(m, ml, g_len(gl))?, whole(g, gl)?);
        let (beta, rest, scale) = (self.beta as f32, (1.0 - self.beta) as f32, self.scale as f32);
        if self.squared {
            update2(m, g, |m, g| *m = beta * *m + rest * (scale * g) * (scale * g));
        } else {
            update2(m, g, |m, g| *m += rest * (scale * g - *m));
        }
        Ok(())
    }
}

/// `w = keep w - rate m / (sqrt(v) / root + eps)`, in place.
struct Update {
    keep: f64,
    rate: f64,
    root: f64,
    eps: f64,
}

impl Update {
    /// The new weight, as the kernel below computes it in place.
    fn of(&self, w: &Tensor, m: &Tensor, v: &Tensor) -> candle_core::Result<Tensor> {
        let root = ((v.sqrt()? / self.root)? + self.eps)?;
        (w * self.keep)? - ((m / root)? * self.rate)?
    }
}

impl InplaceOp3 for Update {
    fn name(&self) -> &'static str {
        "adamw-update"
    }

    fn cpu_fwd(
        &self,
        w: &mut CpuStorage,
        wl: &Layout,
        m: &CpuStorage,
        ml: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> candle_core::Result<()> {
        let (w, m, v) = (whole_mut(w, wl, g_len(ml))?, whole(m, ml)?, whole(v, vl)?);
        let (keep, rate, root, eps) = (self.keep as f32, self.rate as f32, self.root as f32, self.eps as f32);
        update3(w, m, v, |w, m, v| *w = *w * keep - rate * (m / (v.sqrt() / root + eps)));
        Ok(())
    }
}

fn g_len(layout: &Layout) -> usize {
    layout.shape().elem_count()
}

/// The elements of a contiguous f32 tensor.
fn whole<'a>(storage: &'a CpuStorage, layout: &Layout) -> candle_core::Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((from, to))) => Ok(&values[from..to]),
        _ => layout_error("adamw", "tensors must be contiguous f32".to_owned()),
    }
}

fn whole_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout, len: usize) -> candle_core::Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((from, to))) if to - from == len => Ok(&mut values[from..to]),
        _ => layout_error("adamw", format!("a weight is not {len} contiguous f32")),
    }
}

/// The shape of a learning-rate schedule, by its Hugging Face name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Warm-up, then a straight line to 0 at the last step.
    Linear,
    /// Warm-up, then half a cosine to 0 at the last step.
    Cosine,
    /// The peak from the first step on; warm-up is ignored.
    Constant,
    /// Warm-up, then the peak.
    ConstantWithWarmup,
}

/// A learning rate as a function of the optimizer step. Source: `transformers.get_scheduler`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The shape.
    pub kind: ScheduleKind,
    /// The learning rate at the end of the warm-up.
    pub peak: f64,
    /// Length of the warm-up, steps.
    pub warmup_steps: u64,
    /// Length of the whole run, steps.
    pub max_steps: u64,
}

impl Schedule {
    /// A schedule whose warm-up is the share `warmup_ratio` of `max_steps`, rounded up; a ratio outside 0 to 1 is an error.
    pub fn new(kind: ScheduleKind, peak: f64, warmup_ratio: f64, max_steps: u64) -> Result<Self> {
        ensure!(
            (0.0..=1.0).contains(&warmup_ratio),
            "`warmup_ratio` is {warmup_ratio}, expected 0 to 1 (it is a share of `max_steps`)"
        );
        let warmup_steps = (warmup_ratio * max_steps as f64).ceil() as u64;
        Ok(Self { kind, peak, warmup_steps, max_steps })
    }

    /// The learning rate of the update after `step` updates: 0 for the first one when there is a warm-up.
    pub fn learning_rate(&self, step: u64) -> f64 {
        self.peak * self.factor(step)
    }

    fn factor(&self, step: u64) -> f64 {
        if self.kind == ScheduleKind::Constant {
            return 1.0;
        }
        if step < self.warmup_steps {
            return step as f64 / self.warmup_steps.max(1) as f64;
        }
        let length = self.max_steps.saturating_sub(self.warmup_steps).max(1) as f64;
        match self.kind {
            ScheduleKind::Linear => self.max_steps.saturating_sub(step) as f64 / length,
            ScheduleKind::Cosine => {
                let progress = (step - self.warmup_steps) as f64 / length;
                (0.5 * (1.0 + (PI * progress).cos())).max(0.0)
            }
            ScheduleKind::Constant | ScheduleKind::ConstantWithWarmup => 1.0,
        }
    }
}
