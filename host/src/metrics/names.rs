//! Names of metrics that are used in several places.

use capo_plugin::Point;

/// A mask's share of rejected tokens. The host records it in addition to the mask's own metrics.
pub const REJECTION_RATE: &str = "rejection_rate";
/// Share of the tokens that all masks rejected.
pub const REJECTED: &str = "mask/rejection_rate";
/// Share of the gradient that the rejected tokens carried.
pub const REJECTED_GRADIENT: &str = "rejected_gradient_share";
/// Share of completions whose advantages are all 0.
pub const ZERO_ADVANTAGE: &str = "frac_advantage_zero";
/// Mean weight of the tokens that reached a weight component. The host records it in addition to the component's own metrics.
pub const MEAN_WEIGHT: &str = "mean";
/// Share of the gradient that a weight component removed.
pub const WEIGHTED_AWAY: &str = "weighted_away_gradient_share";
/// Share of the update's length that remains after a step control.
pub const APPLIED: &str = "applied";

/// Full name of the metric `name` of `component`. The advantage estimator and the objective, one each per run, have names without a
/// prefix.
pub fn metric_name(point: Point, component: &str, name: &str) -> String {
    match point {
        Point::Reward => format!("rewards/{component}/{name}"),
        Point::Advantage | Point::Objective => name.to_owned(),
        Point::Mask | Point::Weight | Point::StepControl => format!("{component}/{name}"),
    }
}

/// The names for the mean and the largest value of a per-token array `name`.
pub fn of_tokens(name: &str) -> [String; 2] {
    ["mean", "max"].map(|of| format!("{name}/{of}"))
}

/// The message for a component that records under a name of the host.
pub fn reserved(name: &str) -> String {
    format!("recorded `{name}`, which is the host's own number here (give it another name)")
}
