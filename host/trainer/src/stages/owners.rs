//! Names of metrics and who records them. Each name has one owner, so that numbers of different
//! owners are never averaged.

use std::collections::BTreeMap;

use capo_plugin::Point;

/// Who records a metric: the host, or the component of this name in reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    Host,
    Component(String),
}

/// The owner of each metric of a run so far.
#[derive(Debug, Default)]
pub struct Owners(BTreeMap<String, Owner>);

impl Owners {
    /// Makes `owner` the owner of `metric`. If the metric has another owner, returns that one.
    pub fn claim(&mut self, metric: &str, owner: Owner) -> Result<(), Owner> {
        let known = self
            .0
            .entry(metric.to_owned())
            .or_insert_with(|| owner.clone());
        if *known == owner {
            Ok(())
        } else {
            Err(known.clone())
        }
    }
}

/// Full name of the metric `name` of `component`. The advantage estimator and the objective, one
/// each per run, have names without a prefix.
pub fn metric_name(point: Point, component: &str, name: &str) -> String {
    match point {
        Point::Reward => format!("rewards/{component}/{name}"),
        Point::Advantage | Point::Objective => name.to_owned(),
        Point::Environment => format!("environment/{component}/{name}"),
        Point::Mask | Point::Weight | Point::StepControl => format!("{component}/{name}"),
    }
}

/// The names of the mean and the largest value of the per-token array `name`.
pub fn of_tokens(name: &str) -> [String; 2] {
    ["mean", "max"].map(|of| format!("{name}/{of}"))
}

/// The message for a component that records under a name that the host uses.
pub fn reserved(name: &str) -> String {
    format!("recorded `{name}`, which is the host's own number here (give it another name)")
}
