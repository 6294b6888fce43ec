//! The curvature weight: no token moves the policy further than a bound, and none is dropped.

use capo_core::Acceptance;
use capo_plugin::prelude::*;
use capo_plugin::wire::KeyDoc;
use capo_plugin::{Keys, Sketch, Table};

use crate::predictor::Predictor;
use crate::table::{Bound, WEIGHT_FISHER, WeightKeys};

/// Weighs each token by `min(1, sqrt(fisher_threshold / m_F))`. At this share of its step the token
/// moves the policy by `fisher_threshold`, because `m_F` grows with the square of the step.
pub struct CurvatureWeight {
    pub(crate) predictor: Predictor,
    pub(crate) threshold: Threshold,
}

/// The bound `δ_F`, nats.
pub(crate) enum Threshold {
    Given(f64),
    /// The bound that leaves the fraction [`CurvatureWeight::SHARE`] of the squared gradients. The
    /// sketch holds `m_F` of recent tokens, each weighted by its squared gradient.
    Auto(Sketch),
}

impl CurvatureWeight {
    /// Fraction of the squared gradients that `"auto"` leaves, as [`WEIGHT_FISHER`] does at the
    /// embedded task's good rate.
    const SHARE: f64 = 0.05;

    /// `δ_F` of this step. Nothing is known before a run's first step, which is Adam's longest, so
    /// that step uses the default.
    fn now(&self) -> f64 {
        match &self.threshold {
            Threshold::Given(threshold) => *threshold,
            Threshold::Auto(last) => last.bound(Self::SHARE).unwrap_or(WEIGHT_FISHER),
        }
    }
}

/// Sketch of `m_F` of the completion tokens. A token's weight is its squared gradient by its own
/// logit, `(dloss_dlogp (1 − p))²`. A step that is predicted at rate 0 moves nothing and says
/// nothing, so its sketch is empty.
fn sketch(predictor: &Predictor, batch: &Batch<'_>) -> Result<Sketch, PluginError> {
    if predictor.stands_still(batch) {
        return Ok(Sketch::default());
    }
    let m_f = predictor
        .shifts(batch, batch.completion_mask, &Acceptance::default())?
        .m_f;
    let slopes = batch.dloss_dlogp.unwrap_or(batch.advantages);
    let square = |at: usize| f64::from(slopes[at] * (1.0 - batch.logps[at].exp())).powi(2);
    let tokens = (0..m_f.len()).filter(|&at| batch.completion_mask[at] == 1);
    Ok(Sketch::weighted(
        tokens.map(|at| (f64::from(m_f[at]), square(at))),
    ))
}

/// Weight of a token that would move the policy by `m_f`; 0 if `m_f` is NaN.
fn weight(threshold: f64, m_f: f32) -> f32 {
    let m_f = f64::from(m_f);
    if m_f.is_nan() {
        0.0
    } else {
        (threshold / m_f.max(0.0)).sqrt().min(1.0) as f32
    }
}

impl Keys for CurvatureWeight {
    const ABOUT: &'static str =
        "Lets tokens whose predicted step moves the policy too far count less.";

    fn keys() -> Vec<KeyDoc> {
        WeightKeys::keys()
    }

    fn from_table(table: &Table) -> Result<Self, PluginError> {
        let keys = WeightKeys::from_table(table)?;
        Ok(Self {
            predictor: keys.predictor()?,
            threshold: match keys.fisher_threshold {
                Bound::At(threshold) => Threshold::Given(threshold),
                Bound::Auto => Threshold::Auto(Sketch::default()),
            },
        })
    }
}

impl Weight for CurvatureWeight {
    fn weigh(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        token_mask: &[u8],
        weights: &mut [f32],
    ) -> Result<(), PluginError> {
        let threshold = self.now();
        let assessment = self
            .predictor
            .assess(ctx, batch, token_mask, &Acceptance::default())?;
        for (i, entry) in weights
            .iter_mut()
            .enumerate()
            .filter(|(i, _)| token_mask[*i] == 1)
        {
            *entry = weight(threshold, assessment.m_f[i]);
        }
        self.predictor.assign.weights(batch, token_mask, weights);
        ctx.record_tokens("weight", weights);
        if matches!(self.threshold, Threshold::Auto(_)) {
            ctx.record("threshold", threshold);
        }
        Ok(())
    }

    fn step_end(
        &mut self,
        ctx: &mut Ctx<'_>,
        batch: &Batch<'_>,
        weights: &[f32],
        taken: bool,
    ) -> Result<(), PluginError> {
        if let Threshold::Auto(last) = &mut self.threshold {
            last.take_in(ctx, sketch(&self.predictor, batch))?;
        }
        self.predictor.step_end(ctx, batch, weights, taken)
    }

    fn inputs(&self) -> Inputs {
        self.predictor.inputs()
    }

    fn traits(&self) -> Traits {
        self.predictor
            .traits(matches!(self.threshold, Threshold::Auto(_)))
    }

    fn save(&self) -> Result<Vec<u8>, PluginError> {
        let sketch = if let Threshold::Auto(last) = &self.threshold {
            last.save()
        } else {
            Vec::new()
        };
        Ok([sketch, self.predictor.save()?].concat())
    }

    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        let Threshold::Auto(last) = &mut self.threshold else {
            return self.predictor.load(state);
        };
        let (sketch, rest) = Sketch::load(state)?;
        self.predictor.load(rest)?;
        *last = sketch;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use capo_plugin::testing::{self, Fixture};
    use capo_plugin::{OptimizerInfo, OptimizerKind};

    fn weighed(table: &str, fixture: &Fixture) -> testing::Weighed {
        fixture
            .weigh(&mut testing::weight::<CurvatureWeight>(table).unwrap())
            .unwrap()
    }

    fn fixture() -> Fixture {
        Fixture::new(4, 6).lengths(&[6, 3, 0, 5])
    }

    /// `capo-core` proves the shifts themselves by brute force. At unit advantage they must equal
    /// the shifts of a batch with advantages 1 and the loss derivative of such a batch.
    #[test]
    fn unit_advantage_is_what_a_batch_of_ones_has() {
        for semantics in ["paper", "exact", "authors"] {
            let table = |signal: &str| {
                format!("semantics = \"{semantics}\"\nsignal = \"{signal}\"\nbatch_shifts = false")
            };
            let ones = fixture()
                .advantages(&[1.0; 24])
                .losses(&[-1.0; 24], &[-1.0; 24])
                .lengths(&[6, 3, 0, 5]);
            let (unit, own) = (
                weighed(&table("unit"), &fixture()),
                weighed(&table("advantage"), &ones),
            );
            assert_eq!(
                (&unit.weights, &unit.records.tokens),
                (&own.weights, &own.records.tokens),
                "{semantics}"
            );
            let other = weighed(&table("advantage"), &fixture());
            assert_ne!(unit.weights, other.weights, "{semantics}");
        }
    }

    #[test]
    fn a_weight_is_the_share_of_a_step_that_stays_within_the_bound() {
        let open = weighed("fisher_threshold = 1e9", &fixture());
        assert_eq!(
            open.weights,
            fixture()
                .batch()
                .completion_mask
                .iter()
                .map(|&mask| f32::from(mask))
                .collect::<Vec<_>>()
        );
        let m_f = &open
            .records
            .tokens
            .iter()
            .find(|(name, _)| name == "m_f")
            .unwrap()
            .1;
        let worst = m_f.iter().copied().fold(0.0, f32::max);
        let narrow = weighed(&format!("fisher_threshold = {}", worst / 4.0), &fixture());
        let least = narrow
            .weights
            .iter()
            .copied()
            .filter(|&weight| weight > 0.0)
            .fold(1.0, f32::min);
        assert!((least - 0.5).abs() < 1e-6, "{least}");
        assert_eq!(narrow.records.number("rejected_not_finite"), Some(0.0));
    }

    #[test]
    fn own_moments_take_in_what_the_weights_left_of_the_gradient() {
        let state = |weight: f32, kind: OptimizerKind| {
            let optimizer = OptimizerInfo {
                kind,
                ..fixture().batch().optimizer
            };
            let (fixture, mut component) = (
                fixture().optimizer(optimizer),
                testing::weight::<CurvatureWeight>("").unwrap(),
            );
            let weights: Vec<f32> = fixture
                .batch()
                .completion_mask
                .iter()
                .map(|&mask| weight * f32::from(mask))
                .collect();
            fixture
                .weighed_step_end(&mut component, &weights, true)
                .unwrap();
            component.save().unwrap()
        };
        let [plain, both] = [OptimizerKind::ADAMW, OptimizerKind::ADAMW_KEPT_AND_REJECTED];
        assert_ne!(state(0.5, plain), state(1.0, plain));
        assert_eq!(
            state(1.0, both),
            state(1.0, plain),
            "nothing is weighted away"
        );
        assert_ne!(state(0.5, both), state(0.5, plain));
    }

    /// The moments of the authors' mask advance only with thresholds, which the weight has not.
    #[test]
    fn own_moments_advance_under_every_preset() {
        for table in ["", "semantics = \"authors\"", "semantics = \"exact\""] {
            let mut component =
                testing::weight::<CurvatureWeight>(&format!("optimizer = \"adam\"\n{table}"))
                    .unwrap();
            let before = component.save().unwrap();
            fixture()
                .weighed_step_end(&mut component, &[1.0; 24], true)
                .unwrap();
            assert_ne!(component.save().unwrap(), before, "{table}");
        }
    }

    #[test]
    fn refuses_wrong_bounds() {
        let say = |table: &str| {
            testing::weight::<CurvatureWeight>(table)
                .err()
                .unwrap()
                .to_string()
        };
        assert_eq!(
            say("fisher_threshold = 0"),
            "`fisher_threshold` is 0 (it must be finite and above 0)"
        );
        assert!(say("fisher_threshold = \"atuo\"").contains("give a number above 0, or \"auto\""));
        assert!(say("hessian_threshold = 1").starts_with("unknown key `hessian_threshold`"));
        assert!(say("signal = \"two\"").contains("`signal` is `two` (use `advantage` or `unit`)"));
    }

    /// The bound leaves the intended fraction and follows the learning rate. The plugins that offer
    /// the weight run `conform` on it, which compares parts, ranks and resumed runs with the whole.
    #[test]
    fn a_bound_finds_itself() {
        let auto = || {
            testing::weight::<CurvatureWeight>("fisher_threshold = \"auto\"\nbatch_shifts = false")
                .unwrap()
        };
        let rated = |rate: f64| {
            let fixture = Fixture::new(5, 6).lengths(&[6, 3, 0, 5, 6]);
            let optimizer = OptimizerInfo {
                learning_rate: rate,
                ..fixture.batch().optimizer
            };
            fixture.optimizer(optimizer)
        };
        let (fixture, mut weight) = (rated(1e-3), auto());
        let first = fixture.weigh(&mut weight).unwrap();
        assert_eq!(
            first.weights,
            weighed("batch_shifts = false", &fixture).weights,
            "nothing is known yet"
        );
        fixture
            .weighed_step_end(&mut weight, &first.weights, false)
            .unwrap();
        let second = fixture.weigh(&mut weight).unwrap();
        let batch = fixture.batch();
        let square =
            |at: usize| (batch.dloss_dlogp.unwrap()[at] * (1.0 - batch.logps[at].exp())).powi(2);
        let sum = |of: &dyn Fn(usize) -> f32| {
            (0..30)
                .filter(|&at| batch.completion_mask[at] == 1)
                .map(of)
                .sum::<f32>()
        };
        let left = sum(&|at| second.weights[at].powi(2) * square(at)) / sum(&square);
        assert!((left / 0.05 - 1.0).abs() < 0.04, "{left}");
        let found = second.records.number("threshold").unwrap();
        assert!(
            auto()
                .load(
                    &testing::weight::<CurvatureWeight>("")
                        .unwrap()
                        .save()
                        .unwrap()
                )
                .is_err()
        );

        let still = rated(0.0);
        let known = weight.save().unwrap();
        still
            .weighed_step_end(&mut weight, &first.weights, false)
            .unwrap();
        assert_eq!(
            weight.save().unwrap(),
            known,
            "a warm-up begins with a rate of 0"
        );

        let (faster, mut other) = (rated(1e-2), auto());
        faster
            .weighed_step_end(&mut other, &first.weights, false)
            .unwrap();
        let times = faster
            .weigh(&mut other)
            .unwrap()
            .records
            .number("threshold")
            .unwrap()
            / found;
        assert!(
            (times / 100.0 - 1.0).abs() < 0.04,
            "m_F is in the square of the rate: {times}"
        );
    }

    /// The first step of a warm-up moves nothing by itself, but its gradient acts in the steps
    /// behind it.
    #[test]
    fn a_step_is_judged_by_the_rate_at_which_its_gradient_acts() {
        let warm = || fixture().step_learning_rate(0.0);
        for (table, judged_by_its_own) in [
            ("", false),
            ("semantics = \"exact\"", false),
            ("semantics = \"authors\"", true),
            ("learning_rate = \"step\"", true),
            ("semantics = \"authors\"\nlearning_rate = \"acting\"", false),
        ] {
            let table = format!("{table}\nfisher_threshold = 1e-9\nbatch_shifts = false");
            let found = weighed(&table, &warm());
            let expected = if judged_by_its_own {
                let still = OptimizerInfo {
                    learning_rate: 0.0,
                    ..fixture().batch().optimizer
                };
                weighed(&table, &fixture().optimizer(still))
            } else {
                weighed(&table, &fixture())
            };
            assert_eq!(
                (&found.weights, &found.records.tokens),
                (&expected.weights, &expected.records.tokens),
                "{table}"
            );
            assert_eq!(found.weights.contains(&1.0), judged_by_its_own, "{table}");
        }
        let mut auto = testing::weight::<CurvatureWeight>("fisher_threshold = \"auto\"").unwrap();
        let before = auto.save().unwrap();
        warm()
            .weighed_step_end(&mut auto, &[1.0; 24], false)
            .unwrap();
        assert_ne!(
            auto.save().unwrap(),
            before,
            "the bound follows such a step"
        );
    }
}
