//! Names of the metrics in `metrics.jsonl`, and the names that are reserved for the host.

use capo_plugin::Point;

/// A mask's share of rejected tokens. The host records it in addition to the mask's own metrics.
pub const REJECTION_RATE: &str = "rejection_rate";
/// Share of the tokens that all masks rejected.
pub const REJECTED: &str = "mask/rejection_rate";
/// Share of rejected tokens among all tokens of the run so far.
pub const REJECTED_SO_FAR: &str = "rejected_so_far";
/// Share of the gradient that the rejected tokens carried.
pub const REJECTED_GRADIENT: &str = "rejected_gradient_share";

/// Norm of the gradient of the rejected tokens.
pub const REJECTED_GRAD_NORM: &str = "rejected_grad_norm";
/// Norm of the gradient without rejection.
pub const GRAD_NORM_UNMASKED: &str = "grad_norm_unmasked";
/// Number of completions with rejected tokens, which need a second backward pass.
pub const SECOND_PASS_COMPLETIONS: &str = "second_pass_completions";

/// Share of completions whose advantages are all 0.
pub const ZERO_ADVANTAGE: &str = "frac_advantage_zero";

/// The host's complete names.
const HOST: [&str; 19] = [
    "entropy",
    "eval_accuracy",
    "eval_reward",
    "frac_reward_zero_std",
    ZERO_ADVANTAGE,
    "grad_norm",
    GRAD_NORM_UNMASKED,
    "learning_rate",
    "loss",
    "num_completions",
    "num_tokens",
    "policy_loss",
    REJECTED_GRAD_NORM,
    "reward",
    "reward_std",
    SECOND_PASS_COMPLETIONS,
    "step",
    "step_skipped",
    "step_time",
];
/// Prefixes of the host's other names.
const FAMILIES: [&str; 14] = [
    "completions/",
    "eval/",
    "eval_rewards/",
    "dynamic_sampling/",
    "mask/",
    "rewards/",
    "rollout_corr/",
    "sampling/",
    "step/",
    "step_control/",
    "timing_s/",
    "tokens/",
    "warnings/",
    "weight/",
];
/// Names of the metrics that the host records for each mask.
const OF_MASKS: [&str; 2] = [REJECTION_RATE, REJECTED_GRADIENT];
/// Mean weight of the tokens that reached a weight component. The host records it in addition to the component's own metrics.
pub const MEAN_WEIGHT: &str = "mean";
/// Share with a weight below 1, among the tokens that reached a weight component.
pub const BELOW_ONE: &str = "below_one";
/// Share of the gradient that a weight component removed.
pub const WEIGHTED_AWAY: &str = "weighted_away_gradient_share";
/// Share of the update's length that remains after a step control.
pub const APPLIED: &str = "applied";
/// Names of the metrics that the host records for each weight.
const OF_WEIGHTS: [&str; 3] = [MEAN_WEIGHT, BELOW_ONE, WEIGHTED_AWAY];
/// Names of the metrics that the host records for each step control.
const OF_STEP_CONTROLS: [&str; 1] = [APPLIED];
/// Names of the metrics that the host records for each reward.
const OF_REWARDS: [&str; 2] = ["mean", "std"];

/// Names of the metrics that show at a glance what a mask, a weight or a step control does: rejected tokens or the mean weight, the
/// threshold, the mean predicted shift, what was applied of a step, and its KL divergence.
const MAIN: [&str; 7] = [REJECTION_RATE, MEAN_WEIGHT, "threshold", "m_f/mean", APPLIED, "kl", "kl/mean"];

/// True if `name` is a main metric, or none of the masks, weights and step controls `components`.
pub fn is_main(name: &str, components: &[String]) -> bool {
    let mut own = components.iter().filter_map(|component| name.strip_prefix(component)?.strip_prefix('/'));
    own.all(|name| MAIN.contains(&name))
}

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

/// True if the metric `name` of a component at `point` has the name of a host metric.
pub fn is_reserved(point: Point, name: &str) -> bool {
    match point {
        Point::Reward => OF_REWARDS.contains(&name),
        Point::Advantage | Point::Objective => {
            let of_another = |(_, last): (&str, &str)| {
                [&OF_MASKS[..], &OF_WEIGHTS[1..], &OF_STEP_CONTROLS].iter().any(|names| names.contains(&last))
            };
            name.rsplit_once('/').is_some_and(of_another)
                || HOST.contains(&name)
                || FAMILIES.iter().any(|family| name.starts_with(family))
        }
        Point::Mask => OF_MASKS.contains(&name),
        Point::Weight => OF_WEIGHTS.contains(&name),
        Point::StepControl => OF_STEP_CONTROLS.contains(&name),
    }
}

/// The message for a component that records a reserved name.
pub fn reserved(name: &str) -> String {
    format!("recorded `{name}`, which is the host's own number here (give it another name)")
}
