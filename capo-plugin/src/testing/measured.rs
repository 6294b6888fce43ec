//! A proposed update for tests of step controls.

use crate::{Measurements, ParameterGroup, PluginError};

/// A proposed update of a model with three groups, given by a host's measurements of it.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Euclidean norm of each group's part.
    pub norms: [f64; 3],
    /// `½ Σ Δ² v̂`.
    pub fisher: f64,
    /// KL divergence that the last layer's part alone would cause, nats.
    pub last_layer_kl: f64,
    /// KL divergence of the whole update, nats, for every fraction of the batch. That of a part
    /// falls with the square of its share.
    pub kl: f64,
    /// Cosine between the previous step and this step's `−gradient`; NaN before the second step.
    pub alignment: f64,
    /// Norm of the gradient before clipping; NaN where it is not known.
    pub gradient_norm: f64,
}

impl Measured {
    /// The groups of the model.
    pub const GROUPS: [ParameterGroup<'static>; 3] = [
        ParameterGroup::new("embedding", 1000),
        ParameterGroup::new("block.0", 4000),
        ParameterGroup::new("last_layer", 1000),
    ];
}

impl Default for Measured {
    /// A step that is slightly too long for most limits.
    fn default() -> Self {
        Self {
            norms: [0.03, 0.12, 0.04],
            fisher: 2e-3,
            last_layer_kl: 1e-6,
            kl: 4e-3,
            alignment: 0.1,
            gradient_norm: 1.5,
        }
    }
}

impl Measurements for Measured {
    fn norms(&mut self, norms: &mut [f64]) -> Result<(), PluginError> {
        norms.copy_from_slice(&self.norms);
        Ok(())
    }

    fn fisher(&mut self) -> Result<f64, PluginError> {
        Ok(self.fisher)
    }

    fn last_layer_kl(&mut self) -> Result<f64, PluginError> {
        Ok(self.last_layer_kl)
    }

    fn measure_kl(&mut self, _fraction: f64, share: f64) -> Result<f64, PluginError> {
        Ok(self.kl * share.powi(2))
    }

    fn alignment(&mut self) -> Result<Option<f64>, PluginError> {
        Ok(Some(self.alignment).filter(|cosine| cosine.is_finite()))
    }

    fn gradient_norm(&mut self) -> Result<Option<f64>, PluginError> {
        Ok(Some(self.gradient_norm).filter(|norm| norm.is_finite()))
    }
}
