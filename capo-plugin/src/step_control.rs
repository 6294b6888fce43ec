//! A step control's view of the optimizer's proposed update, and its answer.

use crate::PluginError;
use crate::wire::MeasurementsRef;

/// A part of the model with a scale of its own: the embedding, each block, or the final norm with
/// the output head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParameterGroup<'a> {
    /// The host's name for the group: `embedding`, `block.0`, ..., `last_layer`.
    pub name: &'a str,
    /// Number of weights in the group.
    pub parameters: u64,
}

impl<'a> ParameterGroup<'a> {
    /// A group of `parameters` weights.
    pub const fn new(name: &'a str, parameters: u64) -> Self {
        Self { name, parameters }
    }
}

/// A step that an optimizer proposes, as a host shows it to a step control.
pub struct ProposedStep<'a> {
    /// `[B, T]`: each token's weight in the gradient behind the step.
    pub weights: &'a [f32],
    /// The parts of the model, ordered as in the forward pass.
    pub groups: &'a [ParameterGroup<'a>],
    /// Measurements of the step as earlier controls left it.
    pub measurements: &'a mut dyn Measurements,
}

/// The update Δ that the optimizer proposes for all weights, with measurements of it on request and
/// the scale to apply.
///
/// All numbers describe the update as earlier step controls left it, before any scale that this
/// control sets. Only numbers cross the ABI: the weights stay where they are.
pub struct Update<'a> {
    measure: &'a mut dyn Measurements,
    groups: &'a [ParameterGroup<'a>],
    weights: &'a [f32],
    scales: &'a mut [f64],
}

/// Measurements of a proposed update on request. Hosts implement the trait, and it must not panic.
/// [`Update`] describes the numbers.
///
/// # Errors
///
/// Each method fails when the device does. [`fisher`](Self::fisher) also fails where the optimizer
/// keeps no second moment.
pub trait Measurements {
    /// Writes the Euclidean norm of each group's part of Δ to `norms`.
    fn norms(&mut self, norms: &mut [f64]) -> Result<(), PluginError>;
    /// Computes `½ Σ Δ² v̂`.
    fn fisher(&mut self) -> Result<f64, PluginError>;
    /// Mean KL divergence that the output matrix's part of Δ alone would cause, nats.
    fn last_layer_kl(&mut self) -> Result<f64, PluginError>;
    /// Mean KL divergence that `share` of Δ would cause, on `fraction` of the batch's completions,
    /// nats. Both numbers are above 0 and at most 1.
    fn measure_kl(&mut self, fraction: f64, share: f64) -> Result<f64, PluginError>;
    /// Cosine between the previous step and `−gradient`; `None` where there is none. Asked of a
    /// host only if a control's `inputs` name [`Inputs::ALIGNMENT`](crate::Inputs::ALIGNMENT).
    fn alignment(&mut self) -> Result<Option<f64>, PluginError>;
    /// Euclidean norm of the gradient before it was clipped; `None` where only a clipped one is
    /// left. Asked of a host as [`alignment`](Self::alignment) is.
    fn gradient_norm(&mut self) -> Result<Option<f64>, PluginError>;
}

impl Measurements for MeasurementsRef<'_> {
    fn norms(&mut self, norms: &mut [f64]) -> Result<(), PluginError> {
        Ok(MeasurementsRef::norms(self, norms.into()).into_result()?)
    }

    fn fisher(&mut self) -> Result<f64, PluginError> {
        Ok(MeasurementsRef::fisher(self).into_result()?)
    }

    fn last_layer_kl(&mut self) -> Result<f64, PluginError> {
        Ok(MeasurementsRef::last_layer_kl(self).into_result()?)
    }

    fn measure_kl(&mut self, fraction: f64, share: f64) -> Result<f64, PluginError> {
        Ok(MeasurementsRef::measure_kl(self, fraction, share).into_result()?)
    }

    fn alignment(&mut self) -> Result<Option<f64>, PluginError> {
        Ok(MeasurementsRef::alignment(self)
            .into_result()?
            .into_option())
    }

    fn gradient_norm(&mut self) -> Result<Option<f64>, PluginError> {
        Ok(MeasurementsRef::gradient_norm(self)
            .into_result()?
            .into_option())
    }
}

/// A measurement fails when the device does. [`fisher`](Self::fisher) also fails where the
/// optimizer keeps no second moment.
impl<'a> Update<'a> {
    pub(crate) fn new(
        measure: &'a mut dyn Measurements,
        groups: &'a [ParameterGroup<'a>],
        weights: &'a [f32],
        scales: &'a mut [f64],
    ) -> Self {
        Self {
            measure,
            groups,
            weights,
            scales,
        }
    }

    /// The parts of the model, ordered as in the forward pass.
    pub fn groups(&self) -> &'a [ParameterGroup<'a>] {
        self.groups
    }

    /// `[B, T]`: each token's weight in the gradient behind this update. 0 for dropped tokens and
    /// padding; 1 where no component gave a weight.
    pub fn weights(&self) -> &'a [f32] {
        self.weights
    }

    /// Euclidean norm of each group's part of Δ, ordered as [`groups`](Self::groups).
    pub fn norms(&mut self) -> Result<Vec<f64>, PluginError> {
        let mut norms = vec![0.0; self.groups.len()];
        self.measure.norms(&mut norms)?;
        Ok(norms)
    }

    /// Euclidean norm of Δ.
    pub fn norm(&mut self) -> Result<f64, PluginError> {
        Ok(self
            .norms()?
            .iter()
            .map(|norm| norm * norm)
            .sum::<f64>()
            .sqrt())
    }

    /// `½ Σ Δ² v̂` over all weights, where v̂ is Adam's bias-corrected second moment after this
    /// step. It would be the step's KL cost if squared gradients were the diagonal of the Fisher
    /// information. It needs no forward pass, and its ratio to the KL changes slowly.
    pub fn fisher(&mut self) -> Result<f64, PluginError> {
        self.measure.fisher()
    }

    /// KL divergence in nats, old policy to new, that Δ of the output matrix alone would cause. It
    /// is exact over the vocabulary and a mean over the batch's completion tokens. It needs no
    /// forward pass but the last layer's.
    pub fn last_layer_kl(&mut self) -> Result<f64, PluginError> {
        self.measure.last_layer_kl()
    }

    /// KL divergence in nats, old policy to new, that Δ would cause; exact over the vocabulary. It
    /// is the mean over completion tokens of `fraction` of the completions, at least one, drawn in
    /// every step from the run's seed. It needs one forward pass over them.
    ///
    /// # Errors
    ///
    /// When `fraction` is not above 0 and at most 1, or the device fails.
    pub fn measure_kl(&mut self, fraction: f64) -> Result<f64, PluginError> {
        self.measure_kl_of_part(fraction, 1.0)
    }

    /// KL divergence as [`measure_kl`](Self::measure_kl) has it, that `share` times Δ would cause.
    /// The KL divergence of a long step says little about that of a short one, so a control that
    /// shortens a step much can measure what it is about to leave. For the forward pass, the host
    /// holds the weights of the shortened step beside those of the whole one.
    ///
    /// # Errors
    ///
    /// When `fraction` or `share` is not above 0 and at most 1, or the device fails.
    pub fn measure_kl_of_part(&mut self, fraction: f64, share: f64) -> Result<f64, PluginError> {
        for (value, of) in [(fraction, "batch"), (share, "step")] {
            if !(value > 0.0 && value <= 1.0) {
                return Err(PluginError::failed(format!(
                    "asked for the KL on {value} of the {of} (it must be above 0 and at most 1)"
                )));
            }
        }
        self.measure.measure_kl(fraction, share)
    }

    /// Cosine between the previous step and the descent direction, `−gradient`, of this step's
    /// batch, over all weights. A large value means that the last step still descends on new
    /// completions. `None` before the second step, and for SGD without momentum, which does not
    /// remember its step.
    ///
    /// # Errors
    ///
    /// When the component did not ask for it, with [`Inputs::ALIGNMENT`](crate::Inputs::ALIGNMENT).
    pub fn alignment(&mut self) -> Result<Option<f64>, PluginError> {
        self.measure.alignment()
    }

    /// Euclidean norm of the gradient, over all weights, before it was clipped. `None` where the
    /// trainer has only the clipped one left.
    ///
    /// # Errors
    ///
    /// When the component did not ask for it, with [`Inputs::ALIGNMENT`](crate::Inputs::ALIGNMENT).
    pub fn gradient_norm(&mut self) -> Result<Option<f64>, PluginError> {
        self.measure.gradient_norm()
    }

    /// Applies `scale` times the update to every group: 0 keeps the old weights, 1 takes the whole
    /// step.
    pub fn scale(&mut self, scale: f64) {
        self.scales.fill(scale);
    }

    /// Applies `scale` times the update to group `group`.
    ///
    /// # Panics
    ///
    /// When group `group` does not exist.
    pub fn scale_group(&mut self, group: usize, scale: f64) {
        self.scales[group] = scale;
    }
}
