//! Names of the numbers in `metrics.jsonl`, and which of them are reserved for the host.

use capo_plugin::Point;

/// A mask's share of rejected tokens, beside the names that it records itself.
pub const REJECTION_RATE: &str = "rejection_rate";
/// The share of all tokens of the run so far that masks rejected.
pub const REJECTED_SO_FAR: &str = "rejected_so_far";
/// The share of the gradient that these tokens carried.
pub const REJECTED_GRADIENT: &str = "rejected_gradient_share";

/// The norm of the gradient of what was held back.
pub const REJECTED_GRAD_NORM: &str = "rejected_grad_norm";
/// The norm of the gradient with nothing held back.
pub const GRAD_NORM_UNMASKED: &str = "grad_norm_unmasked";
/// How many completions had something held back, and so a second backward pass.
pub const SECOND_PASS_COMPLETIONS: &str = "second_pass_completions";

/// The share of completions whose every advantage is 0.
pub const ZERO_ADVANTAGE: &str = "frac_advantage_zero";

/// The host's names that stand alone.
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
/// The beginnings of the host's other names.
const FAMILIES: [&str; 13] = [
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
    "warnings/",
    "weight/",
];
/// Names of the numbers that the host records of each mask.
const OF_MASKS: [&str; 2] = [REJECTION_RATE, REJECTED_GRADIENT];
/// The mean of the weights of the tokens that reached it, beside the names that a weight records itself.
pub const MEAN_WEIGHT: &str = "mean";
/// The share of these tokens whose weight is below 1.
pub const BELOW_ONE: &str = "below_one";
/// The share of the gradient that was weighted away.
pub const WEIGHTED_AWAY: &str = "weighted_away_gradient_share";
/// The share of the update's length that a step control left.
pub const APPLIED: &str = "applied";
/// Names of the numbers that the host records of each weight.
const OF_WEIGHTS: [&str; 3] = [MEAN_WEIGHT, BELOW_ONE, WEIGHTED_AWAY];
/// Names of the numbers that the host records of each step control.
const OF_STEP_CONTROLS: [&str; 1] = [APPLIED];
/// Names of the numbers that the host records of each reward.
const OF_REWARDS: [&str; 2] = ["mean", "std"];

/// Full name in the metrics of the number `name` of `component`. Those of the advantage estimator and the objective, one each per run, are
/// plain.
pub fn metric_name(point: Point, component: &str, name: &str) -> String {
    match point {
        Point::Reward => format!("rewards/{component}/{name}"),
        Point::Advantage | Point::Objective => name.to_owned(),
        Point::Mask | Point::Weight | Point::StepControl => format!("{component}/{name}"),
    }
}

/// The names under which mean and largest value of a per-token array `name` appear.
pub fn of_tokens(name: &str) -> [String; 2] {
    ["mean", "max"].map(|of| format!("{name}/{of}"))
}

/// True if a component at `point` that records `name` would meet a number of the host.
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

/// The sentence about a component that records a reserved name.
pub fn reserved(name: &str) -> String {
    format!("recorded `{name}`, which is the host's own number here (give it another name)")
}
