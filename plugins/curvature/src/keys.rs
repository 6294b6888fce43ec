//! Meanings of the keys of the mask and the weight.

use capo_core::{
    CurvatureAverage, EmptyState, Feature, MomentUpdate, ObjectiveShift, OutsideAction,
    PolicyShift, Probabilities, RejectedBatch, StateDtype, Switch, Temperature, TokenGradient,
    UntouchedRows, Weights, ZeroAdvantage,
};
use capo_plugin::{KeyDocs, keys};

use crate::{CurvatureMask, CurvatureWeight, Thresholds};

/// Default of a switch that is absent: `semantics` sets its value.
const BY_SEMANTICS: Option<&str> = None;

/// Descriptions of a component's own keys, and of the keys that mask and weight share.
macro_rules! documented {
    (signal: $signal:literal, own: { $($own:tt)* }) => {
        keys! {
            $($own)*
            granularity = "token" => "unit of acceptance: `token`, `completion`, `group`, `batch`",
            signal = $signal => "the advantage at which a token's step is predicted: its own, `advantage`, or `unit`, 1",
            learning_rate = BY_SEMANTICS => "the rate at which a step is predicted: the largest at which its gradient `acting` in Adam's first moment moves the weights, or that of the `step` alone; as `semantics` says when absent",
            assign = "own" => "for comparisons: who gets the decisions: the tokens they were found for, `own`; `random` ones; the `least_probable`",
            optimizer = "host" => "whose step is proposed: the trainer's own, `host`, or `sgd`, `adam`, `adamw`",
            adam_beta1 = None::<f64> => "Adam's decay of the first moment in the model; the trainer's when absent",
            adam_beta2 = None::<f64> => "Adam's decay of the second moment in the model; the trainer's when absent",
            adam_epsilon = None::<f64> => "Adam's epsilon in the model; the trainer's when absent",
            moments = "own" => "where Adam's moments come from: the mask's `own` of the rows it has seen; the trainer's, `host`",
            batch_shifts = true => "report the shifts of one step on the whole batch",
            threads = None::<usize> => "most threads that work at a time; as many as the machine runs at once when absent",
            semantics = "paper" => "the switches below: as in the `paper`, as its `authors` released it, or `exact`",
            feature = BY_SEMANTICS => &named::<Feature>("the feature behind a token's gradient"),
            probabilities = BY_SEMANTICS => &named::<Probabilities>("the softmax over the sampler's top tokens, or over all"),
            temperature = BY_SEMANTICS => &named::<Temperature>("what logits are divided by"),
            outside_action = BY_SEMANTICS => &named::<OutsideAction>("a sampled token outside of the top ones"),
            token_gradient = BY_SEMANTICS => &named::<TokenGradient>("what scales a token's gradient"),
            subset_weights = BY_SEMANTICS => &named::<Weights>("how tokens weigh in the gradient of a subset"),
            curvature_average = BY_SEMANTICS => &named::<CurvatureAverage>("how tokens weigh in the curvature of a subset"),
            moment_input = BY_SEMANTICS => &named::<Weights>("how tokens weigh in the gradient that own moments take in"),
            moment_update = BY_SEMANTICS => &named::<MomentUpdate>("when own moments advance"),
            untouched_rows = BY_SEMANTICS => &named::<UntouchedRows>("moments of a row without a gradient"),
            empty_state = BY_SEMANTICS => &named::<EmptyState>("what Adam's first step starts from"),
            rejected_batch = BY_SEMANTICS => &named::<RejectedBatch>("whether a batch rejected whole counts as a step"),
            state_dtype = BY_SEMANTICS => &named::<StateDtype>("how own moments are stored"),
            policy_shift = BY_SEMANTICS => &named::<PolicyShift>("what m_F is"),
            objective_shift = BY_SEMANTICS => &named::<ObjectiveShift>("what m_H is"),
            zero_advantage = BY_SEMANTICS => &named::<ZeroAdvantage>("tokens without a gradient"),
        }
    };
}

impl<T: Thresholds> CurvatureMask<T> {
    /// Description of the mask, for `register!`.
    pub const ABOUT: &str = "drops tokens whose predicted step moves objective or policy too far";

    /// Meanings of the mask's keys, for `register!`.
    pub const KEYS: KeyDocs = documented!(signal: "advantage", own: {
        fisher_threshold = T::FISHER => "accept m_F below this; `false` switches the test off"; 1e-10..1e2,
        hessian_threshold = T::HESSIAN => "accept m_H below this, and above what `hessian_interval` says; `false` switches the test off",
        hessian_interval = "symmetric" => "accept m_H above minus `hessian_threshold`; or from 0 on: `one_sided`",
        hessian_range = None::<[f64; 2]> => "accept m_H strictly inside `[low, high]`; instead of `hessian_threshold`",
        target_rejection_rate = None::<f64> => "share of tokens to reject, in the place of thresholds: both follow the run, in their default proportion",
    });
}

impl CurvatureWeight {
    /// Description of the weight, for `register!`.
    pub const ABOUT: &str = "lets tokens whose predicted step moves the policy too far count less";

    /// Meanings of the weight's keys, for `register!`.
    pub const KEYS: KeyDocs = documented!(signal: "unit", own: {
        fisher_threshold = Self::FISHER => "m_F up to which a token counts in full; above, it counts the square root of this over m_F; `auto`: the bound follows the run"; 1e-10..1e2,
    });
}

/// `about` with the names of the switch's values.
fn named<S: Switch>(about: &str) -> String {
    format!(
        "{about}: `{}`; as `semantics` says when absent",
        S::NAMES.join("`, `")
    )
}
