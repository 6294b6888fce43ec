//! Learning rates as functions of the optimizer step.

use std::f64::consts::PI;

use anyhow::{Result, ensure};

/// The shape of a learning-rate schedule, by its Hugging Face name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Warm-up, then linear decay to 0 at the last step.
    Linear,
    /// Warm-up, then half a cosine down to 0 at the last step.
    Cosine,
    /// The peak learning rate from the first step on; warm-up is ignored.
    Constant,
    /// Warm-up, then the peak learning rate.
    ConstantWithWarmup,
}

/// A learning rate as a function of the optimizer step. Source: `transformers.get_scheduler`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    pub kind: ScheduleKind,
    /// Learning rate at the end of the warm-up.
    pub peak: f64,
    /// Length of the warm-up, steps.
    pub warmup_steps: u64,
    /// Length of the whole run, steps.
    pub max_steps: u64,
}

impl Schedule {
    /// A schedule whose warm-up is the share `warmup_ratio` of `max_steps`, rounded up. A tiny
    /// excess from floating-point rounding does not count: 0.07 · 100 is above 7 in f64.
    pub fn new(kind: ScheduleKind, peak: f64, warmup_ratio: f64, max_steps: u64) -> Result<Self> {
        ensure!(
            (0.0..=1.0).contains(&warmup_ratio),
            "`warmup_ratio` is {warmup_ratio}, expected 0 to 1 (it is a share of `max_steps`)"
        );
        let warmup_steps = (warmup_ratio * max_steps as f64 * (1.0 - 1e-9)).ceil() as u64;
        Ok(Self {
            kind,
            peak,
            warmup_steps,
            max_steps,
        })
    }

    /// Learning rate of the update after `step` updates. With a warm-up, the first update has 0.
    pub fn learning_rate(&self, step: u64) -> f64 {
        self.peak * self.factor(step)
    }

    /// Largest learning rate with which the gradient of the update after `step` updates moves the
    /// weights.
    ///
    /// A first moment with the decay rate `beta1` also adds the gradient to later updates, in
    /// shares that shrink by the factor `beta1` from each update to the next. It remembers about
    /// `1 / (1 − beta1)` updates, and the largest learning rate in them bounds how far the gradient
    /// moves the weights. With a momentum of 0, only this update counts.
    pub fn acting_rate(&self, step: u64, beta1: f64) -> f64 {
        // 1 / (1 − 0.9) is a little above 10 in f64.
        let memory = (1.0 / (1.0 - beta1) - 1e-9).ceil().max(1.0);
        let left = self.max_steps.saturating_sub(step).max(1);
        let remembered = if memory < left as f64 {
            memory as u64
        } else {
            left
        };
        (step..step + remembered)
            .map(|step| self.learning_rate(step))
            .fold(0.0, f64::max)
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
