//! The curvature weight: no token moves the policy further than a bound, and none is thrown away.

use capo_core::Acceptance;
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

impl TryFrom<WeightTable> for CurvatureWeight {
    type Error = String;

    fn try_from(table: WeightTable) -> Result<Self, String> {
        let threshold = table.fisher_threshold.unwrap_or(CurvatureWeight::FISHER);
        if !(threshold.is_finite() && threshold > 0.0) {
            return Err(format!("`fisher_threshold` is {threshold} (it must be finite and above 0)"));
        }
        Ok(Self { predictor: table.predictor(Acceptance::default())?, threshold })
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
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        weights: &[f32],
        taken: bool,
    ) -> Result<(), PluginError> {
        self.predictor.step_end(ctx, batch, weights, taken)
    }

    fn inputs(&self) -> Inputs {
        self.predictor.inputs()
    }

    fn traits(&self) -> MaskTraits {
        self.predictor.traits()
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        self.predictor.save()
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        self.predictor.load(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{self, Fixture};
    use capo_plugin::{OptimizerInfo, OptimizerKind};

    fn weighed(table: &str, fixture: &Fixture) -> testing::Weighed {
        fixture.weigh(&mut testing::weight::<CurvatureWeight>(table).unwrap()).unwrap()
    }

    fn fixture() -> Fixture {
        Fixture::new(4, 6).lengths(&[6, 3, 0, 5])
    }

    /// The shifts themselves are proved by brute force in `capo-core`; at unit advantage they are those of a batch whose advantages are
    /// all 1, and whose loss has the derivative of such a one.
    #[test]
    fn unit_advantage_is_what_a_batch_of_ones_has() {
        for semantics in ["paper", "exact", "authors"] {
            let table =
                |signal: &str| format!("semantics = \"{semantics}\"\nsignal = \"{signal}\"\nbatch_shifts = false");
            let ones = fixture().advantages(&[1.0; 24]).losses(&[-1.0; 24], &[-1.0; 24]).lengths(&[6, 3, 0, 5]);
            let (unit, own) = (weighed(&table("unit"), &fixture()), weighed(&table("advantage"), &ones));
            assert_eq!((&unit.weights, &unit.records.tokens), (&own.weights, &own.records.tokens), "{semantics}");
            let other = weighed(&table("advantage"), &fixture());
            assert_ne!(unit.weights, other.weights, "{semantics}");
        }
    }

    #[test]
    fn a_weight_is_the_share_of_a_step_that_stays_within_the_bound() {
        let open = weighed("fisher_threshold = 1e9", &fixture());
        assert_eq!(
            open.weights,
            fixture().batch().completion_mask.iter().map(|&mask| f32::from(mask)).collect::<Vec<_>>()
        );
        let m_f = &open.records.tokens.iter().find(|(name, _)| name == "m_f").unwrap().1;
        let worst = m_f.iter().copied().fold(0.0, f32::max);
        let narrow = weighed(&format!("fisher_threshold = {}", worst / 4.0), &fixture());
        let least = narrow.weights.iter().copied().filter(|&weight| weight > 0.0).fold(1.0, f32::min);
        assert!((least - 0.5).abs() < 1e-6, "{least}");
        assert_eq!(narrow.records.number("rejected_not_finite"), Some(0.0));
    }

    #[test]
    fn own_moments_take_in_what_the_weights_left_of_the_gradient() {
        let state = |weight: f32, kind: OptimizerKind| {
            let optimizer = OptimizerInfo { kind, ..fixture().batch().optimizer };
            let (fixture, mut component) =
                (fixture().optimizer(optimizer), testing::weight::<CurvatureWeight>("").unwrap());
            let weights: Vec<f32> =
                fixture.batch().completion_mask.iter().map(|&mask| weight * f32::from(mask)).collect();
            fixture.weighed_step_end(&mut component, &weights, true).unwrap();
            component.save().unwrap()
        };
        let [plain, both] = [OptimizerKind::ADAMW, OptimizerKind::ADAMW_KEPT_AND_REJECTED];
        assert_ne!(state(0.5, plain), state(1.0, plain));
        assert_eq!(state(1.0, both), state(1.0, plain), "nothing is weighted away");
        assert_ne!(state(0.5, both), state(0.5, plain));
    }

    #[test]
    fn bounds_that_are_none_are_refused() {
        let say = |table: &str| testing::weight::<CurvatureWeight>(table).err().unwrap().to_string();
        assert_eq!(say("fisher_threshold = 0"), "`fisher_threshold` is 0 (it must be finite and above 0)");
        assert!(say("hessian_threshold = 1").starts_with("unknown key `hessian_threshold`"));
        assert!(say("signal = \"two\"").contains("unknown variant `two`, expected `advantage` or `unit`"));
    }
}
