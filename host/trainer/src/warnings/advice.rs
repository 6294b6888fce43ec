//! The advice of checks. A test gives every piece of advice to a run, and applies it.

use toml::Value;

use super::setup::Setup;
use crate::config::TrainConfig;

/// Lists the ways out, each with its words. A run's settings fill in the braces.
macro_rules! ways {
    ($($way:ident: $words:literal,)*) => {
        /// A way out of what a check found.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Way {
            $(#[doc = $words] $way,)*
        }

        impl Way {
            /// Every way out, with its words.
            pub const ALL: &[(Self, &'static str)] = &[$((Self::$way, $words)),*];
        }
    };
}

// Text in backticks is something to add to the run's command, or a command of its own.
ways! {
    LowerRate: "try `--set train.learning_rate={}`, a third",
    RaiseRate: "raise the rate, which is the highest that it can find: \
        `--set train.learning_rate={}`",
    Govern: "limit each step: `--plugin libgovernor.so{} --step-control governor.kl`",
    BothMoments: "have the optimizer remember: `--set train.second_moment=kept_and_rejected`",
    Bound: "{} its bound: `--set {}={}`",
    Rate: "have it find its bounds: `--set {}.target_rejection_rate=0.02`",
    Auto: "have the bound follow the run, since the default was found on whole models and an \
        adapter's m_F are larger: `--set {}=auto`",
    Keys: "{} `{}`, whose keys `host plugins --verbose --plugin {}` lists",
    LeaveOut: "leave it out",
    Longer: "allow more tokens: `--set rollout.max_completion_length={}`",
    Drop: "drop what was cut off: `--plugin libmasks.so{} --mask masks.truncated`",
    Answers: "try easier or harder prompts, or more answers to each: \
        `--set rollout.num_generations={}{}`",
    Resample: "replace such prompts: `--set rollout.filter_groups=true`",
    Explore: "stop here where the answers are right, else begin again with an entropy bonus: \
        `--set train.entropy_coef={}`",
}

/// Advice to take a way out.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    pub way: Way,
    pub text: String,
}

/// Advice to take `way`, with `parts` in place of its braces.
pub(super) fn advise<const N: usize>(way: Way, parts: [&str; N]) -> Option<Advice> {
    let (_, words) = Way::ALL[way as usize];
    let mut text = words.to_owned();
    for part in parts {
        text = text.replacen("{}", part, 1);
    }
    Some(Advice { way, text })
}

/// Mask of completions that were cut off.
const TRUNCATED: &str = "masks.truncated";

pub(super) fn lower_rate(setup: &Setup) -> Option<Advice> {
    advise(Way::LowerRate, [&short(setup.learning_rate()? / 3.0)])
}

pub(super) fn raise_rate(setup: &Setup) -> Option<Advice> {
    advise(Way::RaiseRate, [&short(3.0 * setup.learning_rate()?)])
}

/// A governor for a run that has no step control.
pub(super) fn govern(setup: &Setup) -> Option<Advice> {
    let is_free = setup.learning_rate().is_some() && setup.settings.step_control.is_empty();
    advise(Way::Govern, [&with_recipe(setup)]).filter(|_| is_free)
}

/// The option that names the run's recipe. Its command needs the option once a plugin brings other
/// recipes.
fn with_recipe(setup: &Setup) -> String {
    setup
        .settings
        .recipe
        .as_ref()
        .map_or_else(String::new, |recipe| format!(" --set recipe={recipe}"))
}

/// Makes the component `name` of `[[section]]` do less: its bound becomes ten times as wide.
pub(super) fn loosen(setup: &Setup, section: &str, name: &str) -> Option<Advice> {
    turn(setup, section, name, &LOOSEN)
}

/// Makes the component `name` of `[[section]]` do more: its bound becomes a tenth.
pub(super) fn tighten(setup: &Setup, section: &str, name: &str) -> Option<Advice> {
    turn(setup, section, name, &TIGHTEN)
}

/// A change of a component's bound.
struct Turn {
    /// The word for a bound.
    bound: &'static str,
    /// The word for a component whose bound is unknown.
    component: &'static str,
    /// Factor of the bound.
    factor: f64,
}

const LOOSEN: Turn = Turn {
    bound: "raise",
    component: "loosen",
    factor: 10.0,
};

const TIGHTEN: Turn = Turn {
    bound: "lower",
    component: "tighten",
    factor: 0.1,
};

fn turn(setup: &Setup, section: &str, name: &str, turn: &Turn) -> Option<Advice> {
    let id = id(name);
    // The key of the component's bound, and the default if the settings do not have the key.
    let (key, default) = match id.split_once('.') {
        Some((_, "curvature-weight")) => ("fisher_threshold", Some(1e-6)),
        Some((_, "curvature")) => ("fisher_threshold", None),
        Some(("governor", _)) => ("target", None),
        _ => ("", None),
    };
    let path = format!("{section}.{name}");
    if let Some(bound) = setup.key(section, name, key).map_or(default, number) {
        let key = format!("{path}.{key}");
        return advise(Way::Bound, [turn.bound, &key, &short(turn.factor * bound)]);
    }
    let bounds = [
        "fisher_threshold",
        "hessian_threshold",
        "hessian_range",
        "hessian_interval",
    ];
    let has_defaults = setup.component(section, name).is_some()
        && bounds
            .iter()
            .all(|key| setup.key(section, name, key).is_none());
    if has_defaults && id.ends_with(".curvature") {
        return advise(Way::Rate, [&path]);
    }
    advise(Way::Keys, [turn.component, name, &setup.library(id)])
}

/// A bound for a weight that does too much.
pub(super) fn weight_bound(setup: &Setup, name: &str) -> Option<Advice> {
    let is_adapter = setup
        .settings
        .model
        .as_ref()
        .is_some_and(|model| model.use_peft == Some(true));
    if is_adapter && id(name).ends_with(".curvature-weight") {
        return advise(Way::Auto, [&format!("weight.{name}.fisher_threshold")]);
    }
    loosen(setup, "weight", name)
}

/// Makes a mask that rejected every token do less.
pub(super) fn less_rejection(setup: &Setup, mask: &str) -> Option<Advice> {
    if id(mask) == TRUNCATED {
        longer(setup)
    } else {
        loosen(setup, "mask", mask)
    }
}

/// Completions twice as long, or as long as the model's positions allow.
pub(super) fn longer(setup: &Setup) -> Option<Advice> {
    let now = setup.settings.rollout.as_ref()?.max_completion_length as f64;
    let prompt = setup
        .settings
        .data
        .as_ref()
        .map_or(0.0, |data| data.max_prompt_length as f64);
    let room = setup.positions.map_or(f64::MAX, |all| all - prompt);
    let longest = room.min(2.0 * now);
    advise(Way::Longer, [&longest.to_string()]).filter(|_| longest > now)
}

/// A mask that drops completions that were cut off, for a run without this mask.
pub(super) fn drop_truncated(setup: &Setup) -> Option<Advice> {
    let drops = setup.settings.mask.iter().any(|mask| mask.id == TRUNCATED);
    advise(Way::Drop, [&with_recipe(setup)]).filter(|_| !drops)
}

/// Twice as many answers to each prompt. Doubles the batch if groups would not divide it.
pub(super) fn answers(setup: &Setup) -> Option<Advice> {
    let rollout = setup.settings.rollout.as_ref()?;
    let answers = rollout.num_generations.saturating_mul(2);
    let mut more = String::new();
    if let Some(train) = &setup.settings.train
        && !completions_of_step(train).is_multiple_of(answers)
    {
        for (key, size) in [
            (
                "gradient_accumulation_steps",
                train.gradient_accumulation_steps,
            ),
            ("steps_per_generation", train.steps_per_generation),
            ("generation_batch_size", train.generation_batch_size),
        ] {
            if size > 0 {
                more += &format!(" --set train.{key}={}", size.saturating_mul(2));
            }
        }
    }
    advise(Way::Answers, [&answers.to_string(), &more])
}

fn completions_of_step(train: &TrainConfig) -> usize {
    train
        .per_device_train_batch_size
        .saturating_mul(train.gradient_accumulation_steps)
}

/// Other prompts in place of those whose answers all earn the same.
pub(super) fn resample(setup: &Setup) -> Option<Advice> {
    let rollout = setup.settings.rollout.as_ref()?;
    let train = setup.settings.train.as_ref();
    let is_scored = train.is_some_and(|train| train.score_at_sampling);
    if rollout.filter_groups || rollout.num_generations <= 1 || is_scored {
        return None;
    }
    advise(Way::Resample, [])
}

/// An entropy bonus, or three times the present one.
pub(super) fn explore(setup: &Setup) -> Option<Advice> {
    let now = match &setup.settings.train {
        Some(train) if train.entropy_coef > 0.0 => 3.0 * train.entropy_coef,
        _ => 0.01,
    };
    advise(Way::Explore, [&short(now)])
}

fn number(value: &Value) -> Option<f64> {
    value
        .as_float()
        .or_else(|| value.as_integer().map(|whole| whole as f64))
}

/// Id of the component whose name in reports is `name`.
pub(super) fn id(name: &str) -> &str {
    name.split('#').next().unwrap_or(name)
}

/// The number with two digits, or with one if the second is 0.
fn short(number: f64) -> String {
    format!("{number:.1e}").replace(".0e", "e")
}
