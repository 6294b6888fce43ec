//! The keys of the mask and the weight.

use std::cmp::Ordering;
use std::marker::PhantomData;

use capo_core::{
    Acceptance, CurvatureAverage, CurvatureModel, Feature, Granularity, MomentUpdate, Semantics,
    StateDtype, Switch,
};
use capo_plugin::prelude::*;
use capo_plugin::{KeyValue, Numeric, Value, Wanted};

use crate::assign::Assign;
use crate::optimizer::{Moments, Optimizer, OptimizerChoice};
use crate::predictor::{Predictor, Rate, Signal};

/// The default thresholds of a method, selected by the component's id.
pub trait Thresholds: Send {
    /// `δ_F`: largest accepted policy shift `m_F`.
    const FISHER: f64;
    /// `δ_H`: largest accepted objective shift `m_H` in either direction.
    const HESSIAN: f64;
}

/// Keys that the mask and the weight share.
#[keys]
pub(crate) struct ModelKeys {
    /// Unit of acceptance.
    #[key(default = Unit::Token)]
    granularity: Unit,
    /// The rate at which a step is predicted: the largest at which its gradient acts in Adam's
    /// first moment, or that of the step alone; as `semantics` says when absent.
    #[key]
    learning_rate: Option<Rate>,
    #[key(default = Assign::Own)]
    assign: Assign,
    /// The optimizer whose step is proposed: the trainer's own, `host`, or another one.
    #[key(default = OptimizerChoice::Host)]
    optimizer: OptimizerChoice,
    /// Adam's decay of the first moment in the model; the trainer's when absent.
    #[key]
    adam_beta1: Option<f64>,
    /// Adam's decay of the second moment in the model; the trainer's when absent.
    #[key]
    adam_beta2: Option<f64>,
    /// Adam's epsilon in the model; the trainer's when absent.
    #[key]
    adam_epsilon: Option<f64>,
    #[key(default = Moments::Own)]
    moments: Moments,
    /// Report the shifts of one step on the whole batch.
    #[key(default = true)]
    batch_shifts: bool,
    /// Largest number of threads that work at a time; as many as the machine runs at once when
    /// absent.
    #[key(at_least = 1)]
    threads: Option<usize>,
    /// The model's formulas: as in the paper, as its authors released it, or exact.
    #[key(default = Preset::Paper)]
    semantics: Preset,
    /// The feature behind a token's gradient; as `semantics` says when absent.
    #[key]
    feature: Option<Named<Feature>>,
    /// How tokens weigh in the curvature of a subset; as `semantics` says when absent.
    #[key]
    curvature_average: Option<Named<CurvatureAverage>>,
    /// How own moments are stored; as `semantics` says when absent.
    #[key]
    state_dtype: Option<Named<StateDtype>>,
}

impl ModelKeys {
    /// The preset with the given switches applied.
    fn semantics(&self) -> Semantics {
        let preset = match self.semantics {
            Preset::Paper => Semantics::PAPER,
            Preset::Authors => Semantics::AUTHORS,
            Preset::Exact => Semantics::EXACT,
        };
        let average = self.curvature_average;
        Semantics {
            feature: self.feature.map_or(preset.feature, |named| named.0),
            curvature_average: average.map_or(preset.curvature_average, |named| named.0),
            state_dtype: self.state_dtype.map_or(preset.state_dtype, |named| named.0),
            ..preset
        }
    }

    /// The predictor that these keys describe.
    fn predictor(
        &self,
        signal: Signal,
        acceptance: Acceptance,
        semantics: Semantics,
    ) -> Result<Predictor, PluginError> {
        let model = CurvatureModel::new(acceptance, self.granularity.into(), semantics)
            .map_err(|error| PluginError::config(error.to_string()))?;
        let rate_of_preset = match self.semantics {
            Preset::Authors => Rate::Step,
            Preset::Paper | Preset::Exact => Rate::Acting,
        };
        Ok(Predictor {
            model: match self.threads {
                Some(threads) => model.with_threads(threads),
                None => model,
            },
            optimizer: Optimizer {
                choice: self.optimizer,
                beta1: self.adam_beta1,
                beta2: self.adam_beta2,
                eps: self.adam_epsilon,
                moments: self.moments,
            },
            signal,
            rate: self.learning_rate.unwrap_or(rate_of_preset),
            assign: self.assign,
            batch_shifts: self.batch_shifts,
        })
    }
}

/// The mask's keys.
#[keys]
pub(crate) struct MaskKeys<T: Thresholds> {
    /// Accept m_F below this; `false` switches the test off.
    #[key(
        default = Limit::At(T::FISHER),
        above = 0,
        search = 1e-10..=1e2,
        not_with = "target_rejection_rate"
    )]
    fisher_threshold: Limit,
    /// Accept m_H below this, and above what `hessian_interval` says; `false` switches the test
    /// off.
    #[key(default = Limit::At(T::HESSIAN), above = 0, not_with = "target_rejection_rate")]
    hessian_threshold: Limit,
    #[key(default = Interval::Symmetric)]
    hessian_interval: Interval,
    /// Accept m_H strictly inside `[low, high]`; instead of `hessian_threshold`.
    #[key(not_with = ["hessian_threshold", "target_rejection_rate"])]
    hessian_range: Option<[f64; 2]>,
    /// Share of tokens to reject, in the place of thresholds: both follow the run, in their default
    /// proportion.
    #[key(above = 0, below = 1)]
    pub(crate) target_rejection_rate: Option<f64>,
    #[key(default = Signal::Advantage)]
    signal: Signal,
    #[key(flatten)]
    model: ModelKeys,
    thresholds: PhantomData<T>,
}

impl<T: Thresholds> MaskKeys<T> {
    pub(crate) fn predictor(&self) -> Result<Predictor, PluginError> {
        let acceptance = self.acceptance()?;
        self.model
            .predictor(self.signal, acceptance, self.model.semantics())
    }

    /// The accepted shifts.
    fn acceptance(&self) -> Result<Acceptance, PluginError> {
        let fisher_threshold = self.fisher_threshold.value();
        let hessian_threshold = self.hessian_threshold.value();
        let is_one_sided = self.hessian_interval == Interval::OneSided;
        if self.target_rejection_rate.is_some() {
            if is_one_sided {
                return Err(PluginError::config(
                    "`target_rejection_rate` and `hessian_interval` are both given (keep one)",
                ));
            }
            if fisher_threshold.is_none() && hessian_threshold.is_none() {
                return Err(PluginError::config(
                    "`target_rejection_rate` is given, but both tests are switched off (leave one \
                     on)",
                ));
            }
        }
        let hessian_range = match self.hessian_range {
            Some(range) => Some(self.checked_range(range)?),
            None => hessian_threshold.map(|limit| {
                let low = if is_one_sided { 0.0 } else { -limit };
                [low, limit]
            }),
        };
        Ok(Acceptance {
            fisher_threshold,
            hessian_range,
            low_end_kept: is_one_sided,
        })
    }

    /// Refuses a range that is empty, or that comes with a key about the threshold.
    fn checked_range(&self, range: [f64; 2]) -> Result<[f64; 2], PluginError> {
        let [low, high] = range;
        if self.hessian_threshold.value().is_none() {
            return Err(PluginError::config(
                "`hessian_range` and `hessian_threshold` are both given (keep one)",
            ));
        }
        if self.hessian_interval == Interval::OneSided {
            return Err(PluginError::config(
                "`hessian_range` and `hessian_interval` are both given (the range has both ends: \
                 leave out the interval)",
            ));
        }
        if low.partial_cmp(&high).is_none_or(Ordering::is_ge) {
            return Err(PluginError::config(format!(
                "`hessian_range` is [{low}, {high}] (its low end must be below its high end; \
                 `hessian_threshold = false` in its place switches the test off)"
            )));
        }
        Ok(range)
    }
}

/// Default of the weight's `fisher_threshold`, nats.
pub(crate) const WEIGHT_FISHER: f64 = 1e-6;

/// The weight's keys.
#[keys]
pub(crate) struct WeightKeys {
    /// m_F up to which a token counts in full; above, it counts the square root of this over m_F;
    /// with `"auto"` the bound follows the run.
    #[key(default = Bound::At(WEIGHT_FISHER), above = 0, search = 1e-10..=1e2)]
    pub(crate) fisher_threshold: Bound,
    #[key(default = Signal::Unit)]
    signal: Signal,
    #[key(flatten)]
    model: ModelKeys,
}

impl WeightKeys {
    /// The weight's predictor. It has no thresholds, so its own moments advance without them.
    pub(crate) fn predictor(&self) -> Result<Predictor, PluginError> {
        let semantics = Semantics {
            moment_update: MomentUpdate::EveryRun,
            ..self.model.semantics()
        };
        self.model
            .predictor(self.signal, Acceptance::default(), semantics)
    }
}

/// A set of formulas.
#[derive(Choice, Clone, Copy)]
enum Preset {
    Paper,
    Authors,
    Exact,
}

/// The interval that `hessian_threshold`, as x, bounds: `-x < m_H < x`, or `0 <= m_H < x`.
#[derive(Choice, Clone, Copy, PartialEq)]
enum Interval {
    Symmetric,
    OneSided,
}

/// [`Granularity`] as the value of a key.
#[derive(Choice, Clone, Copy)]
enum Unit {
    Token,
    Completion,
    Group,
    Batch,
}

impl From<Unit> for Granularity {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Token => Self::Token,
            Unit::Completion => Self::Completion,
            Unit::Group => Self::Group,
            Unit::Batch => Self::Batch,
        }
    }
}

/// A switch of `capo-core`, written as the name of its value.
#[derive(Clone, Copy)]
struct Named<S>(S);

impl<S: Switch + PartialEq> KeyValue for Named<S> {
    fn wanted() -> Wanted {
        Wanted::one_of(S::NAMES)
    }

    fn read(value: &Value) -> Result<Self, String> {
        let index = S::NAMES.iter().position(|name| value == name);
        index
            .map(|index| Self(S::VALUES[index]))
            .ok_or_else(|| Self::wanted().request())
    }

    fn json(&self) -> String {
        let index = S::VALUES.iter().position(|value| *value == self.0);
        index.map_or_else(String::new, |index| format!("\"{}\"", S::NAMES[index]))
    }
}

/// A threshold, or `false` for none.
#[derive(Clone, Copy)]
enum Limit {
    At(f64),
    Off,
}

impl Limit {
    fn value(self) -> Option<f64> {
        match self {
            Self::At(value) => Some(value),
            Self::Off => None,
        }
    }
}

impl KeyValue for Limit {
    fn wanted() -> Wanted {
        Wanted::any(
            "a number, or false to switch the test off",
            "numbers or false",
        )
    }

    fn read(value: &Value) -> Result<Self, String> {
        match value.as_f64() {
            Some(number) => Ok(Self::At(number)),
            None if value == false => Ok(Self::Off),
            None => Err(Self::wanted().request()),
        }
    }

    fn json(&self) -> String {
        self.value()
            .map_or_else(|| false.json(), |value| value.json())
    }

    fn numbers(&self, see: &mut dyn FnMut(f64)) {
        self.value().into_iter().for_each(see);
    }
}

impl Numeric for Limit {}

/// A bound, or `"auto"` for one that follows the run.
#[derive(Clone, Copy)]
pub(crate) enum Bound {
    At(f64),
    Auto,
}

impl KeyValue for Bound {
    fn wanted() -> Wanted {
        Wanted::any("a number above 0, or \"auto\"", "numbers or \"auto\"")
    }

    fn read(value: &Value) -> Result<Self, String> {
        match value.as_f64() {
            Some(number) => Ok(Self::At(number)),
            None if value == "auto" => Ok(Self::Auto),
            None => Err(Self::wanted().request()),
        }
    }

    fn json(&self) -> String {
        match self {
            Self::At(number) => number.json(),
            Self::Auto => "\"auto\"".to_owned(),
        }
    }

    fn numbers(&self, see: &mut dyn FnMut(f64)) {
        if let Self::At(number) = self {
            see(*number);
        }
    }
}

impl Numeric for Bound {}
