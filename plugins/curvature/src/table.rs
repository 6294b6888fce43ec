//! The keys of the mask and the weight.

use std::cmp::Ordering;

use capo_core::{
    Acceptance, CurvatureAverage, CurvatureModel, EmptyState, Feature, Granularity, MomentUpdate,
    ObjectiveShift, OutsideAction, PolicyShift, Probabilities, RejectedBatch, Semantics,
    StateDtype, Switch, Temperature, TokenGradient, UntouchedRows, Weights, ZeroAdvantage,
};
use capo_plugin::check_target;
use capo_plugin::prelude::*;
use serde::de::{Deserializer, Error};

use crate::assign::Assign;
use crate::optimizer::{Moments, Optimizer, OptimizerChoice};
use crate::predictor::{Predictor, Rate, Signal};

/// Defines a table: the keys that mask and weight share, with the `own` keys in between. `keys.rs`
/// has their meanings.
macro_rules! table {
    ($(#[$about:meta])* $name:ident, signal: $signal:literal, own: { $($own:tt)* }) => {
        $(#[$about])*
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            #[serde(default)]
            semantics: Preset,
            #[serde(default, with = "GranularityKey")]
            granularity: Granularity,
            #[serde(default = $signal)]
            signal: Signal,
            learning_rate: Option<Rate>,
            #[serde(default)]
            assign: Assign,
            #[serde(default)]
            optimizer: OptimizerChoice,
            adam_beta1: Option<f64>,
            adam_beta2: Option<f64>,
            adam_epsilon: Option<f64>,
            #[serde(default)]
            moments: Moments,
            threads: Option<usize>,
            #[serde(default = "yes")]
            batch_shifts: bool,
            $($own)*
            feature: Option<Named<Feature>>,
            probabilities: Option<Named<Probabilities>>,
            temperature: Option<Named<Temperature>>,
            outside_action: Option<Named<OutsideAction>>,
            token_gradient: Option<Named<TokenGradient>>,
            subset_weights: Option<Named<Weights>>,
            curvature_average: Option<Named<CurvatureAverage>>,
            moment_input: Option<Named<Weights>>,
            moment_update: Option<Named<MomentUpdate>>,
            untouched_rows: Option<Named<UntouchedRows>>,
            empty_state: Option<Named<EmptyState>>,
            rejected_batch: Option<Named<RejectedBatch>>,
            state_dtype: Option<Named<StateDtype>>,
            policy_shift: Option<Named<PolicyShift>>,
            objective_shift: Option<Named<ObjectiveShift>>,
            zero_advantage: Option<Named<ZeroAdvantage>>,
        }

        impl $name {
            /// The preset with the given switches applied.
            fn semantics(&self) -> Semantics {
                fn set<S: Switch>(value: &mut S, given: Option<Named<S>>) {
                    *value = given.map_or(*value, |Named(given)| given);
                }
                let mut semantics = match self.semantics {
                    Preset::Paper => Semantics::PAPER,
                    Preset::Authors => Semantics::AUTHORS,
                    Preset::Exact => Semantics::EXACT,
                };
                set(&mut semantics.feature, self.feature);
                set(&mut semantics.probabilities, self.probabilities);
                set(&mut semantics.temperature, self.temperature);
                set(&mut semantics.outside_action, self.outside_action);
                set(&mut semantics.token_gradient, self.token_gradient);
                set(&mut semantics.subset_weights, self.subset_weights);
                set(&mut semantics.curvature_average, self.curvature_average);
                set(&mut semantics.moment_input, self.moment_input);
                set(&mut semantics.moment_update, self.moment_update);
                set(&mut semantics.untouched_rows, self.untouched_rows);
                set(&mut semantics.empty_state, self.empty_state);
                set(&mut semantics.rejected_batch, self.rejected_batch);
                set(&mut semantics.state_dtype, self.state_dtype);
                set(&mut semantics.policy_shift, self.policy_shift);
                set(&mut semantics.objective_shift, self.objective_shift);
                set(&mut semantics.zero_advantage, self.zero_advantage);
                semantics
            }

            /// The model that these keys describe, with `acceptance`.
            pub(crate) fn predictor(&self, acceptance: Acceptance) -> Result<Predictor, String> {
                let optimizer = Optimizer {
                    choice: self.optimizer,
                    beta1: self.adam_beta1,
                    beta2: self.adam_beta2,
                    eps: self.adam_epsilon,
                    moments: self.moments,
                };
                let by_preset = if self.semantics == Preset::Authors { Rate::Step } else { Rate::Acting };
                let rate = self.learning_rate.unwrap_or(by_preset);
                let mut model = CurvatureModel::new(acceptance, self.granularity, self.semantics())
                    .map_err(|error| error.to_string())?;
                match self.threads {
                    Some(0) => {
                        return Err(
                            "`threads` is 0, expected at least 1 (leave it out for as many as the machine has)".into()
                        );
                    }
                    Some(threads) => model = model.with_threads(threads),
                    None => {}
                }
                Ok(Predictor { model, optimizer, signal: self.signal, rate, assign: self.assign, batch_shifts: self.batch_shifts })
            }
        }
    };
}

table! {
    /// The mask's keys.
    MaskTable, signal: "advantage", own: {
        fisher_threshold: Option<Limit>,
        hessian_threshold: Option<Limit>,
        #[serde(default)]
        hessian_interval: Interval,
        hessian_range: Option<[f64; 2]>,
        pub(crate) target_rejection_rate: Option<f64>,
    }
}

table! {
    /// The weight's keys.
    WeightTable, signal: "unit", own: {
        pub(crate) fisher_threshold: Option<Bound>,
    }
}

impl WeightTable {
    /// The weight's model. It has no thresholds, so its own moments advance without them, unless
    /// the table gives the key.
    pub(crate) fn model(mut self) -> Result<Predictor, String> {
        self.moment_update
            .get_or_insert(Named(MomentUpdate::EveryRun));
        self.predictor(Acceptance::default())
    }
}

fn advantage() -> Signal {
    Signal::Advantage
}

fn unit() -> Signal {
    Signal::Unit
}

fn yes() -> bool {
    true
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Preset {
    #[default]
    Paper,
    Authors,
    Exact,
}

/// Interval that `hessian_threshold` bounds, as x.
#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Interval {
    /// `-x < m_H < x`.
    #[default]
    Symmetric,
    /// `0 <= m_H < x`.
    OneSided,
}

/// A switch, written as the name of its value.
#[derive(Clone, Copy)]
struct Named<S>(S);

impl<'de, S: Switch> Deserialize<'de> for Named<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let index = S::NAMES.iter().position(|known| *known == name);
        index
            .map(|index| Self(S::VALUES[index]))
            .ok_or_else(|| D::Error::unknown_variant(&name, S::NAMES))
    }
}

/// Names of [`Granularity`] in a table.
#[derive(Deserialize)]
#[serde(remote = "Granularity", rename_all = "snake_case")]
enum GranularityKey {
    Token,
    Completion,
    Group,
    Batch,
}

/// A threshold, or `false`.
#[derive(Deserialize, Clone, Copy)]
#[serde(
    untagged,
    expecting = "this is no threshold (give a number, or false to switch the test off)"
)]
enum Limit {
    At(f64),
    Off(bool),
}

/// A bound; the only word that is one is `auto`.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "`fisher_threshold` is no bound (give a number above 0, or \"auto\")"
)]
pub(crate) enum Bound {
    At(f64),
    Word(String),
}

impl Limit {
    /// The threshold `key`, which is above 0; `None` where the test is off.
    fn value(self, key: &str) -> Result<Option<f64>, String> {
        match self {
            Self::At(value) if value > 0.0 => Ok(Some(value)),
            Self::At(value) => Err(format!(
                "`{key}` is {value} (it must be above 0; false switches the test off)"
            )),
            Self::Off(false) => Ok(None),
            Self::Off(true) => Err(format!(
                "`{key}` is true (give a number, or false to switch the test off)"
            )),
        }
    }
}

impl MaskTable {
    /// The accepted shifts. `fisher` and `hessian` are the defaults of the two thresholds.
    pub(crate) fn acceptance(&self, fisher: f64, hessian: f64) -> Result<Acceptance, String> {
        self.check_target()?;
        let fisher_threshold = self
            .fisher_threshold
            .unwrap_or(Limit::At(fisher))
            .value("fisher_threshold")?;
        let one_sided = self.hessian_interval == Interval::OneSided;
        match (self.hessian_range, self.hessian_threshold) {
            (Some(_), Some(_)) => Err("`hessian_range` and `hessian_threshold` are both given (keep one)".into()),
            (Some(_), None) if one_sided => Err(
                "`hessian_range` and `hessian_interval` are both given (the range has both ends: leave out the interval)"
                    .into(),
            ),
            (Some([low, high]), None) if low.partial_cmp(&high).is_none_or(Ordering::is_ge) => Err(format!(
                "`hessian_range` is [{low}, {high}] (its low end must be below its high end; `hessian_threshold = false` in its place switches the test off)"
            )),
            (Some(range), None) => Ok(Acceptance { fisher_threshold, hessian_range: Some(range), low_end_kept: false }),
            (None, limit) => {
                let limit = limit.unwrap_or(Limit::At(hessian)).value("hessian_threshold")?;
                let range = |limit: f64| [if one_sided { 0.0 } else { -limit }, limit];
                Ok(Acceptance { fisher_threshold, hessian_range: limit.map(range), low_end_kept: one_sided })
            }
        }
    }
    /// Refuses a target that is not a fraction, or that comes with thresholds or an interval.
    /// Switching one test off is allowed.
    fn check_target(&self) -> Result<(), String> {
        let given = |limit: Option<Limit>| matches!(limit, Some(Limit::At(_)));
        let off = |limit: Option<Limit>| matches!(limit, Some(Limit::Off(false)));
        let others = [
            ("fisher_threshold", given(self.fisher_threshold)),
            ("hessian_threshold", given(self.hessian_threshold)),
            ("hessian_range", self.hessian_range.is_some()),
            (
                "hessian_interval",
                self.hessian_interval == Interval::OneSided,
            ),
        ];
        let other = others
            .into_iter()
            .find(|(_, given)| *given)
            .map(|(key, _)| key);
        if self.target_rejection_rate.is_some()
            && off(self.fisher_threshold)
            && off(self.hessian_threshold)
        {
            return Err(
                "`target_rejection_rate` is given, but both tests are switched off (leave one on)"
                    .into(),
            );
        }
        check_target(self.target_rejection_rate, other).map_err(|error| error.message().to_owned())
    }
}
