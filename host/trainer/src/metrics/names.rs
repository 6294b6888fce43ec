//! Names of metrics that are used in several places.

/// A mask's share of rejected tokens. The host records it in addition to the mask's own metrics.
pub const REJECTION_RATE: &str = "rejection_rate";
/// Share of the tokens that all masks rejected.
pub const REJECTED: &str = "mask/rejection_rate";
/// Share of the gradient that the rejected tokens carried.
pub const REJECTED_GRADIENT: &str = "rejected_gradient_share";
/// Share of completions whose advantages are all 0.
pub const ZERO_ADVANTAGE: &str = "frac_advantage_zero";
/// Mean weight of the tokens that reached a weight component. The host records it in addition to
/// the component's own metrics.
pub const MEAN_WEIGHT: &str = "mean";
/// Share of the gradient that a weight component removed.
pub const WEIGHTED_AWAY: &str = "weighted_away_gradient_share";
/// Learning rate that a step control has found: the highest one of a step. It changes during a run.
pub const FOUND_RATE: &str = "found_rate";
/// Share of the update's length that remains after a step control.
pub const APPLIED: &str = "applied";
