//! The checks, the most serious first. `[warnings]` has their limits; docs/stability.md explains
//! each.

use host_model::optim::OptimizerName;
use host_model::optim::adamw::SecondMoment;
use serde::{Serialize, Serializer};

use super::advice::{self, Advice, Way, advise, id};
use super::setup::Setup;
use super::window::{HeldOut, REWARDS, Window, mean};
use crate::metrics::names::{
    APPLIED, FOUND_RATE, MEAN_WEIGHT, REJECTED_GRADIENT, REJECTION_RATE, WEIGHTED_AWAY,
    ZERO_ADVANTAGE,
};

/// The finding of a check after a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub severity: Severity,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// What was found, with its numbers.
    pub what: String,
    /// Ways out. Text in backticks works on this run.
    #[serde(serialize_with = "joined")]
    pub advice: Vec<Advice>,
    /// The documentation page with details.
    pub page: &'static str,
}

/// What a finding means for its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run learned nothing, or lost what it had learned.
    Error,
    /// The run learns less than it could, or may fail.
    Warning,
    /// Something has no effect.
    Info,
}

impl Finding {
    /// Name of the finding in a run's metrics, in the line of the step after which it was reported.
    pub fn metric(&self) -> String {
        let component = self
            .component
            .iter()
            .map(|component| format!("/{component}"));
        format!("warnings/{}", self.check) + &component.collect::<String>()
    }

    pub fn line(&self) -> String {
        let advice = self.advice();
        let gap = if advice.is_empty() { "" } else { "; " };
        format!("{} ({advice}{gap}{})", self.what, self.page)
    }

    /// The ways out in words.
    pub fn advice(&self) -> String {
        words(&self.advice)
    }
}

fn words(advice: &[Advice]) -> String {
    advice
        .iter()
        .map(|advice| advice.text.as_str())
        .collect::<Vec<_>>()
        .join(", or ")
}

fn joined<S: Serializer>(advice: &[Advice], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&words(advice))
}

/// A check of the newest steps of a run.
pub(super) struct Check {
    pub(super) name: &'static str,
    severity: Severity,
    page: &'static str,
    find: fn(&Window, &Setup) -> Vec<Sign>,
}

/// A positive result of a check.
struct Sign {
    component: Option<String>,
    what: String,
    advice: Vec<Advice>,
}

const STABILITY: &str = "docs/stability.md";
const FIRST_RUN: &str = "docs/first-real-run.md";
const MASKS: &str = "docs/masks.md";
const FLAT_REWARD: &str = "docs/flat-reward.md";

pub(super) const CHECKS: [Check; 13] = [
    Check {
        name: "reward_fell",
        severity: Severity::Error,
        page: STABILITY,
        find: reward_fell,
    },
    Check {
        name: "mask_undone",
        severity: Severity::Error,
        page: STABILITY,
        find: mask_undone,
    },
    Check {
        name: "held_out_fell",
        severity: Severity::Error,
        page: STABILITY,
        find: held_out_fell,
    },
    Check {
        name: "all_rejected",
        severity: Severity::Error,
        page: MASKS,
        find: all_rejected,
    },
    Check {
        name: "entropy_gone",
        severity: Severity::Error,
        page: FIRST_RUN,
        find: entropy_gone,
    },
    Check {
        name: "cut_off",
        severity: Severity::Warning,
        page: FLAT_REWARD,
        find: cut_off,
    },
    Check {
        name: "no_signal",
        severity: Severity::Error,
        page: FLAT_REWARD,
        find: no_signal,
    },
    Check {
        name: "kl_jump",
        severity: Severity::Warning,
        page: STABILITY,
        find: kl_jump,
    },
    Check {
        name: "mask_rejects_much",
        severity: Severity::Warning,
        page: FIRST_RUN,
        find: mask_rejects_much,
    },
    Check {
        name: "weights_small",
        severity: Severity::Warning,
        page: FIRST_RUN,
        find: weights_small,
    },
    Check {
        name: "steps_held_back",
        severity: Severity::Warning,
        page: STABILITY,
        find: steps_held_back,
    },
    Check {
        name: "mask_idle",
        severity: Severity::Info,
        page: MASKS,
        find: mask_idle,
    },
    Check {
        name: "control_idle",
        severity: Severity::Info,
        page: STABILITY,
        find: control_idle,
    },
];

/// Number of checks that apply after a fall in reward. The signs of the other checks mean nothing
/// then.
const AFTER_A_FALL: usize = 2;

/// Findings that apply to the newest steps, the most serious first.
pub(super) fn find(window: &Window, setup: &Setup) -> Vec<Finding> {
    let asked = if fall(window, setup).is_some() {
        &CHECKS[..AFTER_A_FALL]
    } else {
        &CHECKS[AFTER_A_FALL..]
    };
    let mut findings = Vec::new();
    for check in asked {
        for sign in (check.find)(window, setup) {
            findings.push(Finding {
                check: check.name,
                severity: check.severity,
                component: sign.component,
                what: sign.what,
                advice: sign.advice,
                page: check.page,
            });
        }
    }
    findings
}

/// A sign about the run as a whole.
fn of_run<const N: usize>(what: String, advice: [Option<Advice>; N]) -> Vec<Sign> {
    vec![Sign {
        component: None,
        what,
        advice: known(advice),
    }]
}

/// The pieces of advice that the run's settings allow to give.
fn known<const N: usize>(advice: [Option<Advice>; N]) -> Vec<Advice> {
    advice.into_iter().flatten().collect()
}

/// A sign for each component for which `sign` returns one.
fn of_each(
    components: Vec<String>,
    sign: impl Fn(&str) -> Option<(String, Vec<Advice>)>,
) -> Vec<Sign> {
    let mut signs = Vec::new();
    for component in components {
        if let Some((what, advice)) = sign(&component) {
            signs.push(Sign {
                component: Some(component),
                what,
                advice,
            });
        }
    }
    signs
}

/// True if a mask or weight adapts its threshold to the run, by `target_rejection_rate` or a bound
/// of `"auto"`. It then records the threshold.
fn finds_its_threshold(window: &Window, component: &str) -> bool {
    window.now(&format!("{component}/threshold")).is_some()
}

/// True if a step control finds the learning rate by itself. It then records the rate.
fn finds_its_rate(window: &Window, control: &str) -> bool {
    window.now(&format!("{control}/{FOUND_RATE}")).is_some()
}

/// KL divergence of a step, in nats per token, below which an increase is not a jump. Healthy runs
/// have begun with half of it.
const SMALL_KL: f64 = 1e-2;
/// Smallest number of measured steps before a step's size is judged.
const MEASURED: usize = 10;
/// Number of steps in a row in which every token was rejected.
const WHOLE: usize = 3;
/// Number of steps in a row in which a mask rejected much.
const REJECTIONS: usize = 5;
/// Number of steps in a mean.
const MEANS: usize = 10;
/// Number of steps in the mean of a weight.
const WEIGHTS: usize = 20;
/// Number of steps in a row that a step control shortened much.
const CONTROLS: usize = 50;
/// Smallest share of the squared gradient that makes a difference to Adam.
const MOST_OF_THE_GRADIENT: f64 = 0.5;
/// Number of standard errors within which two mean rewards count as equal.
const ERRORS: f64 = 4.0;
/// Masks that may reject much: the user chose the share, or another warning covers it.
const MEANT: [&str; 4] = [
    "masks.entropy-quantile",
    "masks.probability-quantile",
    "masks.random",
    "masks.truncated",
];

/// The fall of the mean reward or of the held-out answers by more than `warnings.reward_fall`, in
/// words.
fn fall(window: &Window, setup: &Setup) -> Option<String> {
    let limit = Some(setup.settings.warnings.reward_fall).filter(|limit| *limit > 0.0)?;
    if let (Some(best), Some(now)) = (window.best, window.level())
        && best.mean > 0.0
        && is_fall(best.mean, now.mean, limit, best.error.hypot(now.error))
    {
        return Some(format!(
            "the mean reward of {REWARDS} steps fell from {:.3}, after step {}, to {:.3}",
            best.mean, best.step, now.mean
        ));
    }
    held_out_fall(window, setup, limit)
}

/// True if the fall from `best` to `now` is more than the share `limit` of the best, and more than
/// chance.
fn is_fall(best: f64, now: f64, limit: f64, error: f64) -> bool {
    best - now > limit * best.abs() && best - now > ERRORS * error
}

/// The fall of the held-out accuracy by more than the share `limit`, in words; without an accuracy,
/// that of the held-out reward.
fn held_out_fall(window: &Window, setup: &Setup, limit: f64) -> Option<String> {
    let [best, now] = window.held_out?;
    let prompts = setup
        .settings
        .eval
        .as_ref()
        .map(|eval| eval.num_prompts as f64)
        .filter(|prompts| *prompts > 0.0)?;
    let deviations = match window.held_out_metric {
        HeldOut::Accuracy => [best, now].map(|share| (share.value * (1.0 - share.value)).sqrt()),
        // Greedy answers to held-out prompts vary no more than sampled answers to several prompts.
        HeldOut::Reward => [window.reward_deviation; 2],
    };
    let error = deviations[0].hypot(deviations[1]) / prompts.sqrt();
    if !is_fall(best.value, now.value, limit, error) {
        return None;
    }
    let when = if best.step == 0 {
        "before training".to_owned()
    } else {
        format!("after step {}", best.step)
    };
    Some(match window.held_out_metric {
        HeldOut::Accuracy => format!(
            "the held-out accuracy fell from {:.1}%, {when}, to {:.1}%",
            100.0 * best.value,
            100.0 * now.value
        ),
        HeldOut::Reward => format!(
            "the held-out reward fell from {:.3}, {when}, to {:.3}",
            best.value, now.value
        ),
    })
}

/// A fall of the held-out answers that is smaller than [`reward_fell`] reports.
fn held_out_fell(window: &Window, setup: &Setup) -> Vec<Sign> {
    let limit = Some(setup.settings.warnings.held_out_fall).filter(|limit| *limit > 0.0);
    let what = limit.and_then(|limit| held_out_fall(window, setup, limit));
    what.map_or_else(Vec::new, |what| {
        of_run(what, [advice::lower_rate(setup), advice::govern(setup)])
    })
}

fn reward_fell(window: &Window, setup: &Setup) -> Vec<Sign> {
    fall(window, setup).map_or_else(Vec::new, |what| {
        of_run(what, [advice::lower_rate(setup), advice::govern(setup)])
    })
}

fn mask_undone(window: &Window, setup: &Setup) -> Vec<Sign> {
    let forgets = setup.settings.train.as_ref().is_none_or(|train| {
        train.optimizer != OptimizerName::Sgd
            && train.second_moment != SecondMoment::KeptAndRejected
    });
    let share = window.mean(&format!("mask/{REJECTED_GRADIENT}"), MEANS);
    let Some(share) = share.filter(|share| forgets && *share > MOST_OF_THE_GRADIENT) else {
        return Vec::new();
    };
    let what = format!(
        "masks took {:.0}% of the squared gradient; Adam's second moment shrank with it, so that \
         the steps stayed as long",
        100.0 * share
    );
    of_run(what, [advise(Way::BothMoments, [])])
}

fn all_rejected(window: &Window, setup: &Setup) -> Vec<Sign> {
    let rejected = window.last(&format!("mask/{REJECTION_RATE}"), WHOLE);
    if rejected.is_none_or(|rates| rates.iter().any(|rate| *rate < 1.0)) {
        return Vec::new();
    }
    let mut most = None;
    let mut largest = 0.0;
    for mask in window.components(REJECTION_RATE) {
        let rate = window.now(&format!("{mask}/{REJECTION_RATE}"));
        let rate = rate.unwrap_or(0.0);
        if rate >= largest {
            most = Some(mask);
            largest = rate;
        }
    }
    let by = most
        .as_ref()
        .map_or_else(String::new, |most| format!(", most by `{most}`"));
    let what = format!(
        "every token was rejected in the last {WHOLE} steps{by}, so that nothing is learned"
    );
    of_run(
        what,
        [most.and_then(|most| advice::less_rejection(setup, &most))],
    )
}

fn entropy_gone(window: &Window, setup: &Setup) -> Vec<Sign> {
    let entropy = window.mean("entropy", MEANS);
    let alike = window.mean(ZERO_ADVANTAGE, MEANS);
    let (Some(entropy), Some(alike)) = (entropy, alike) else {
        return Vec::new();
    };
    // A confident policy whose answers still differ continues to learn.
    if entropy >= setup.settings.warnings.entropy || alike < 0.5 {
        return Vec::new();
    }
    let what = format!(
        "the policy is sure of every token: entropy {entropy:.1e} nats in the last {MEANS} steps, \
         and {:.0}% of completions teach nothing",
        100.0 * alike
    );
    of_run(what, [advice::explore(setup), advice::lower_rate(setup)])
}

fn cut_off(window: &Window, setup: &Setup) -> Vec<Sign> {
    let share = window.mean("completions/clipped_ratio", MEANS);
    let limit = setup.settings.warnings.clipped_ratio;
    let Some(share) = share.filter(|share| limit > 0.0 && *share > limit) else {
        return Vec::new();
    };
    let what = format!(
        "the length limit cut off {:.0}% of the completions of the last {MEANS} steps, which end \
         without an answer",
        100.0 * share
    );
    of_run(
        what,
        [
            advice::longer(setup),
            advice::drop_truncated(setup).filter(|_| share < 0.95),
        ],
    )
}

fn no_signal(window: &Window, setup: &Setup) -> Vec<Sign> {
    let steps = setup.settings.warnings.no_signal_steps;
    let shares = window.last(ZERO_ADVANTAGE, steps);
    let reward = window.mean("reward", steps);
    let (Some(shares), Some(reward), Some(first)) = (shares, reward, window.first) else {
        return Vec::new();
    };
    if steps == 0 || shares.iter().any(|share| *share < 1.0) {
        return Vec::new();
    }
    let what = format!(
        "the completions of each prompt earned alike in the last {steps} steps, {reward:.3} on \
         average ({first:.3} in the first step), so that rewards taught nothing"
    );
    let slower = advice::lower_rate(setup).filter(|_| reward < first);
    of_run(
        what,
        [slower, advice::answers(setup), advice::resample(setup)],
    )
}

fn kl_jump(window: &Window, setup: &Setup) -> Vec<Sign> {
    // The KL divergence of a step grows with the square of its learning rate, which a schedule
    // changes.
    let measured = window.pairs("step/kl", "learning_rate");
    let measured: Vec<(f64, f64)> = measured
        .into_iter()
        .filter(|(_, rate)| *rate > 0.0)
        .collect();
    let (Some((kl, rate)), true) = (measured.last(), window.now("step/kl").is_some()) else {
        return Vec::new();
    };
    let mut before: Vec<f64> = measured[..measured.len() - 1]
        .iter()
        .map(|(kl, rate)| kl / rate.powi(2))
        .collect();
    if before.len() < MEASURED || *kl < SMALL_KL || setup.settings.warnings.kl_ratio == 0.0 {
        return Vec::new();
    }
    before.sort_unstable_by(f64::total_cmp);
    let ratio = kl / rate.powi(2) / before[before.len() / 2];
    if ratio <= setup.settings.warnings.kl_ratio {
        return Vec::new();
    }
    let what = format!(
        "this step moved the policy by {kl:.1e} nats per token, {ratio:.0} times the median of the \
         steps before at this rate; the reward may fall after it"
    );
    of_run(what, [advice::lower_rate(setup), advice::govern(setup)])
}

fn mask_rejects_much(window: &Window, setup: &Setup) -> Vec<Sign> {
    let limit = setup.settings.warnings.rejection_rate;
    of_each(window.components(REJECTION_RATE), |mask| {
        let rates = window.last(&format!("{mask}/{REJECTION_RATE}"), REJECTIONS)?;
        let meant = MEANT.contains(&id(mask)) || finds_its_threshold(window, mask);
        if limit == 0.0 || meant || rates.iter().any(|rate| *rate <= limit) {
            return None;
        }
        let what = format!(
            "`{mask}` rejected {:.0}% of the tokens of the last {REJECTIONS} steps",
            100.0 * mean(&rates)
        );
        Some((
            what,
            known([
                advice::loosen(setup, "mask", mask),
                advice::lower_rate(setup),
            ]),
        ))
    })
}

fn weights_small(window: &Window, setup: &Setup) -> Vec<Sign> {
    of_each(window.components(WEIGHTED_AWAY), |weight| {
        let mean = window.mean(&format!("{weight}/{MEAN_WEIGHT}"), WEIGHTS)?;
        let what = format!(
            "`{weight}` let tokens count {mean:.2} on average in the last {WEIGHTS} steps, so that \
             little is learned"
        );
        let is_small =
            mean < setup.settings.warnings.weight_mean && !finds_its_threshold(window, weight);
        is_small.then(|| (what, known([advice::weight_bound(setup, weight)])))
    })
}

fn steps_held_back(window: &Window, setup: &Setup) -> Vec<Sign> {
    of_each(window.components(APPLIED), |control| {
        let applied = window.last(&format!("{control}/{APPLIED}"), CONTROLS)?;
        // A control that finds the rate is meant to be set to one that is too high.
        if finds_its_rate(window, control)
            || applied
                .iter()
                .any(|share| *share >= setup.settings.warnings.applied)
        {
            return None;
        }
        let left = format!(
            "`{control}` left {:.1}% of the length of the last {CONTROLS} steps",
            100.0 * mean(&applied)
        );
        let loosen = advice::loosen(setup, "step_control", control);
        // Other controls may decide by something that the rate does not change.
        Some(if id(control).starts_with("governor.") {
            let what = format!("{left}: the rate is far above what its target allows");
            (what, known([advice::lower_rate(setup), loosen]))
        } else {
            let what =
                format!("{left}, so that little is learned: that control holds the run back");
            (what, known([loosen, advise(Way::LeaveOut, [])]))
        })
    })
}

fn mask_idle(window: &Window, setup: &Setup) -> Vec<Sign> {
    let masks = idle(
        window,
        REJECTION_RATE,
        setup.settings.warnings.idle_mask_steps,
    );
    of_each(masks, |mask| {
        let what = format!(
            "`{mask}` has rejected no token in {} steps: the run is as without it",
            setup.settings.warnings.idle_mask_steps
        );
        Some((
            what,
            known([
                advice::tighten(setup, "mask", mask),
                advise(Way::LeaveOut, []),
            ]),
        ))
    })
}

fn control_idle(window: &Window, setup: &Setup) -> Vec<Sign> {
    let controls = idle(window, APPLIED, setup.settings.warnings.idle_control_steps);
    of_each(controls, |control| {
        let what = format!(
            "`{control}` has shortened no step in {}: the run is as without it",
            setup.settings.warnings.idle_control_steps
        );
        Some(match finds_its_rate(window, control) {
            // Such a control shortens steps later in a run.
            true => (what, known([advice::raise_rate(setup)])),
            false => (
                what,
                known([
                    advice::tighten(setup, "step_control", control),
                    advise(Way::LeaveOut, []),
                ]),
            ),
        })
    })
}

/// The components that have had no effect in `steps` steps, by their metric `ID/last`; 0 steps
/// finds none.
fn idle(window: &Window, last: &str, steps: usize) -> Vec<String> {
    let mut components = Vec::new();
    for (component, chances) in window.idle(last) {
        if steps > 0 && chances >= steps as u64 {
            components.push(component);
        }
    }
    components
}
