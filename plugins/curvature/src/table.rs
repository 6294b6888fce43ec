//! The mask's keys.

use std::marker::PhantomData;

use capo_core::{
    Acceptance, BatchAverage, CurvatureModel, EmptyState, Feature, Granularity, RejectedBatch, Semantics, Support,
    Switch, UntouchedRows, Weights,
};
use capo_plugin::prelude::*;
use serde::de::{Deserializer, Error};

use crate::{CurvatureMask, OptimizerChoice, Thresholds};

/// The mask's keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    /// What is computed where paper and released code differ; the seven switches at the end change it one by one.
    #[serde(default)]
    semantics: Preset,
    /// What is accepted or rejected as a whole.
    #[serde(default, with = "GranularityKey")]
    granularity: Granularity,
    /// Which optimizer the proposed step models.
    #[serde(default)]
    optimizer: OptimizerChoice,
    /// `own`: the mask keeps Adam's moments of the rows it has seen.
    #[serde(default)]
    moments: Moments,
    /// Accept `m_F` below this; `false` switches the test off.
    fisher_threshold: Option<Limit>,
    /// Accept `m_H` strictly between minus and plus this; `false` switches the test off.
    hessian_threshold: Option<Limit>,
    /// Accept `m_H` strictly inside this interval; instead of `hessian_threshold`.
    hessian_range: Option<[f64; 2]>,
    /// Which feature a token's gradient is made of.
    feature: Option<Named<Feature>>,
    /// Which distribution a token's gradient comes from.
    support: Option<Named<Support>>,
    /// How tokens make one gradient.
    weights: Option<Named<Weights>>,
    /// How curvatures are averaged over several completions.
    batch_average: Option<Named<BatchAverage>>,
    /// What a step does to the moments of rows without a gradient.
    untouched_rows: Option<Named<UntouchedRows>>,
    /// What Adam proposes before any row has moments.
    empty_state: Option<Named<EmptyState>>,
    /// What a step is that no token was accepted for.
    rejected_batch: Option<Named<RejectedBatch>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Preset {
    #[default]
    Paper,
    Authors,
}

/// A switch, written as the name of its value.
#[derive(Clone, Copy)]
struct Named<S>(S);

impl<'de, S: Switch> Deserialize<'de> for Named<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let index = S::NAMES.iter().position(|known| *known == name);
        index.map(|index| Self(S::VALUES[index])).ok_or_else(|| D::Error::unknown_variant(&name, S::NAMES))
    }
}

/// How [`Granularity`] is written.
#[derive(Deserialize)]
#[serde(remote = "Granularity", rename_all = "snake_case")]
enum GranularityKey {
    Token,
    Completion,
    Group,
    Batch,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum Moments {
    #[default]
    Own,
}

/// A threshold, or `false`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Limit {
    At(f64),
    Off(bool),
}

impl Limit {
    fn value(self, key: &str) -> Result<Option<f64>, String> {
        match self {
            Self::At(value) => Ok(Some(value)),
            Self::Off(false) => Ok(None),
            Self::Off(true) => Err(format!("`{key}` is true (give a number, or false to switch the test off)")),
        }
    }
}

impl Table {
    /// The preset, with the switches that are given changed.
    fn semantics(&self) -> Semantics {
        fn set<S: Switch>(value: &mut S, given: Option<Named<S>>) {
            *value = given.map_or(*value, |Named(given)| given);
        }
        let mut semantics = match self.semantics {
            Preset::Paper => Semantics::PAPER,
            Preset::Authors => Semantics::AUTHORS,
        };
        set(&mut semantics.feature, self.feature);
        set(&mut semantics.support, self.support);
        set(&mut semantics.weights, self.weights);
        set(&mut semantics.batch_average, self.batch_average);
        set(&mut semantics.untouched_rows, self.untouched_rows);
        set(&mut semantics.empty_state, self.empty_state);
        set(&mut semantics.rejected_batch, self.rejected_batch);
        semantics
    }
}

impl<T: Thresholds> TryFrom<Table> for CurvatureMask<T> {
    type Error = String;

    fn try_from(table: Table) -> Result<Self, String> {
        let (semantics, Moments::Own) = (table.semantics(), table.moments);
        let fisher_threshold = table.fisher_threshold.unwrap_or(Limit::At(T::FISHER)).value("fisher_threshold")?;
        let hessian_range = match (table.hessian_range, table.hessian_threshold) {
            (Some(_), Some(_)) => {
                return Err("`hessian_range` and `hessian_threshold` are both given (keep one)".into());
            }
            (Some(range), None) => Some(range),
            (None, limit) => {
                limit.unwrap_or(Limit::At(T::HESSIAN)).value("hessian_threshold")?.map(|limit| [-limit, limit])
            }
        };
        let acceptance = Acceptance { fisher_threshold, hessian_range };
        let model = CurvatureModel::new(acceptance, table.granularity, semantics).map_err(|error| error.to_string())?;
        Ok(Self { model, optimizer: table.optimizer, thresholds: PhantomData })
    }
}
