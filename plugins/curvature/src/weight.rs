//! The curvature weight: no token moves the policy further than a bound, and none is thrown away.

use capo_plugin::prelude::*;

use crate::predictor::Predictor;
use crate::table::WeightTable;

/// Weighs each token by `min(1, sqrt(fisher_threshold / m_F))`: the share of its step at which it moves the policy by
/// `fisher_threshold`, since m_F grows with the square of a step.
#[derive(Deserialize)]
#[serde(try_from = "WeightTable")]
pub struct CurvatureWeight {
    pub(crate) predictor: Predictor,
    /// `δ_F`, nats.
    pub(crate) threshold: f64,
}

impl CurvatureWeight {
    /// `δ_F` where a table does not say, nats.
    pub const FISHER: f64 = 1e-6;

    /// The weight of a token that would move the policy by `m_f`; 0 where that is no number.
    fn weight(&self, m_f: f32) -> f32 {
        let m_f = f64::from(m_f);
        if m_f.is_nan() { 0.0 } else { (self.threshold / m_f.max(0.0)).sqrt().min(1.0) as f32 }
    }
}

impl TokenWeight for CurvatureWeight {
    fn weigh(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        keep: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        let assessment = self.predictor.assess(ctx, batch, keep)?;
        for (i, weight) in weights.iter_mut().enumerate().filter(|(i, _)| keep[*i] == 1) {
            *weight = self.weight(assessment.m_f[i]);
        }
        self.predictor.assign.weights(batch, keep, weights);
        ctx.record_tokens("weight", weights);
        Ok(())
    }

    fn step_end(
        &mut self,
        _ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        weights: &[f32],
        taken: bool,
    ) -> Result<(), PluginError> {
        self.predictor.step_end(batch, weights, taken)
    }

    fn inputs(&self) -> Inputs {
        self.predictor.inputs()
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        self.predictor.save()
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        self.predictor.load(state)
    }
}
