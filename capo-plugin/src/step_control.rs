//! The view that a step control has of the optimizer's proposed update, and its answer.

use crate::abi_step_control::MeasureRef;
use crate::error::PluginError;

/// A part of the model that the host can scale on its own: the embedding, each block, the last norm with the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterGroup<'a> {
    /// The host's name for it: `embedding`, `block.0`, ..., `last_layer`.
    pub name: &'a str,
    /// Number of its weights.
    pub parameters: u64,
}

/// The update Δ that the optimizer proposes for all weights: what it would do, measured when asked, and how much of it is applied.
///
/// Numbers are of the update as the step controls before this one left it; none depends on the scales that this one has set so far.
/// Only numbers cross: the weights stay where they are.
pub struct Update<'a> {
    measure: &'a mut dyn Measurements,
    groups: &'a [ParameterGroup<'a>],
    weights: &'a [f32],
    scales: &'a mut [f64],
}

/// Measurements that a host makes of a proposed update on request: implemented by hosts. It must not panic. [`Update`]
/// describes the numbers.
pub trait Measurements {
    /// Euclidean norm of each group's part, into `norms`.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn norms(&mut self, norms: &mut [f64]) -> Result<(), PluginError>;
    /// `½ Σ Δ² v̂`.
    ///
    /// # Errors
    ///
    /// When there is no second moment, or the device fails.
    fn fisher(&mut self) -> Result<f64, PluginError>;
    /// Mean KL divergence that the output matrix's part alone would cause, nats.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn last_layer_kl(&mut self) -> Result<f64, PluginError>;
    /// Mean KL divergence of the whole update on `fraction` of the batch's completions, nats.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn measure_kl(&mut self, fraction: f64) -> Result<f64, PluginError>;
}

impl Measurements for MeasureRef<'_> {
    fn norms(&mut self, norms: &mut [f64]) -> Result<(), PluginError> {
        Ok(MeasureRef::norms(self, norms.into()).into_result()?)
    }

    fn fisher(&mut self) -> Result<f64, PluginError> {
        Ok(MeasureRef::fisher(self).into_result()?)
    }

    fn last_layer_kl(&mut self) -> Result<f64, PluginError> {
        Ok(MeasureRef::last_layer_kl(self).into_result()?)
    }

    fn measure_kl(&mut self, fraction: f64) -> Result<f64, PluginError> {
        Ok(MeasureRef::measure_kl(self, fraction).into_result()?)
    }
}

impl<'a> Update<'a> {
    pub(crate) fn new(
        measure: &'a mut dyn Measurements,
        groups: &'a [ParameterGroup<'a>],
        weights: &'a [f32],
        scales: &'a mut [f64],
    ) -> Self {
        Self { measure, groups, weights, scales }
    }

    /// The parts of the model, in the order of the forward pass.
    #[must_use]
    pub fn groups(&self) -> &'a [ParameterGroup<'a>] {
        self.groups
    }

    /// `[B, T]`: what each token weighed in the gradient behind this update; 0 for dropped ones and padding, 1 where no weight was
    /// given.
    #[must_use]
    pub fn weights(&self) -> &'a [f32] {
        self.weights
    }

    /// Euclidean norm of each group's part of Δ, in the order of [`groups`](Self::groups).
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn norms(&mut self) -> Result<Vec<f64>, PluginError> {
        let mut norms = vec![0.0; self.groups.len()];
        self.measure.norms(&mut norms)?;
        Ok(norms)
    }

    /// Euclidean norm of Δ.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn norm(&mut self) -> Result<f64, PluginError> {
        Ok(self.norms()?.iter().map(|norm| norm * norm).sum::<f64>().sqrt())
    }

    /// `½ Σ Δ² v̂` over all weights, v̂ Adam's second moment after this step, bias-corrected: what the step would cost in KL were
    /// the squared gradients the Fisher information's diagonal. No forward pass; a multiple of the KL that changes slowly.
    ///
    /// # Errors
    ///
    /// When the optimizer keeps no second moment, or the device fails.
    pub fn fisher(&mut self) -> Result<f64, PluginError> {
        self.measure.fisher()
    }

    /// KL divergence in nats, old policy to new, that Δ of the output matrix alone would cause: exact over the vocabulary, mean over
    /// the batch's completion tokens. No forward pass but the last layer's.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn last_layer_kl(&mut self) -> Result<f64, PluginError> {
        self.measure.last_layer_kl()
    }

    /// KL divergence in nats, old policy to new, that Δ would cause: exact over the vocabulary, mean over the completion tokens of
    /// `fraction` of the batch's completions, at least one, drawn anew in every step from the run's seed. One forward pass over them.
    ///
    /// # Errors
    ///
    /// When `fraction` is not above 0 and at most 1, or the device fails.
    pub fn measure_kl(&mut self, fraction: f64) -> Result<f64, PluginError> {
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(PluginError::failed(format!(
                "asked for the KL on {fraction} of the batch (it must be above 0 and at most 1)"
            )));
        }
        self.measure.measure_kl(fraction)
    }

    /// Applies `scale` of the update, for every group: 0 leaves the weights as they were, 1 takes the whole step.
    pub fn scale(&mut self, scale: f64) {
        self.scales.fill(scale);
    }

    /// Applies `scale` of group `group`'s part of the update.
    ///
    /// # Panics
    ///
    /// When there is no such group.
    pub fn scale_group(&mut self, group: usize, scale: f64) {
        self.scales[group] = scale;
    }
}
