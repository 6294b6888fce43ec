//! What checks advise. A test applies every way out to a run that was advised to take it.

use super::setup::Setup;

/// Lists the ways out, each with its words. Braces stand for what a run's settings fill in.
macro_rules! ways {
    ($($way:ident: $words:literal,)*) => {
        /// A way out of what a check found.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Way {
            $(#[doc = $words] $way,)*
        }

        impl Way {
            /// Every way out.
            pub const ALL: &[Self] = &[$(Self::$way),*];

            fn words(self) -> &'static str {
                match self {
                    $(Self::$way => $words,)*
                }
            }
        }
    };
}

// What is in backticks is an addition to the run's command, or a command.
ways! {
    LowerRate: "try `--set train.learning_rate={}`, a third",
    RaiseRate: "raise the rate, which is the highest that it can find: `--set train.learning_rate={}`",
    Govern: "limit each step: `--plugin libgovernor.so{} --step-control governor.kl{}`",
    BothMoments: "have the optimizer remember: `--set train.second_moment=kept_and_rejected`",
    Bound: "{} its bound: `--set {}={}`",
    Rate: "have it find its bounds: `--set {}.target_rejection_rate=0.02`",
    Auto: "have the bound follow the run, since the default was found on whole models and an adapter's m_F are larger: `--set {}=auto`",
    Keys: "{} `{}`, whose keys `host plugins --verbose --plugin {}` lists",
    LeaveOut: "leave it out: `--set {}=[]`",
    Longer: "allow more tokens: `--set rollout.max_completion_length={}`",
    Drop: "drop what was cut off: `--plugin libmasks.so{} --mask masks.truncated`",
    Answers: "try easier or harder prompts, or more answers to each: `--set rollout.num_generations={}{}`",
    Resample: "replace such prompts: `--set rollout.filter_groups=true`",
    Explore: "stop here where the answers are right, else begin again with an entropy bonus: `--set train.entropy_coef={}`",
}

/// Advice to take a way out.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    pub way: Way,
    pub text: String,
}

impl Advice {
    fn new<const N: usize>(way: Way, parts: [&str; N]) -> Self {
        let text = parts.iter().fold(way.words().to_owned(), |text, part| text.replacen("{}", part, 1));
        Self { way, text }
    }
}

/// Bound of a curvature weight that names none, nats.
const WEIGHT_BOUND: f64 = 1e-6;
/// KL divergence of a step that a governor allows where it cannot find one, nats per token.
const KL: &str = "1e-4";
/// Mask of completions that were cut off.
const TRUNCATED: &str = "masks.truncated";

/// Ways to shorter steps.
pub(super) fn shorter_steps(setup: &Setup) -> Vec<Advice> {
    lower_rate(setup).into_iter().chain(govern(setup)).collect()
}

pub(super) fn lower_rate(setup: &Setup) -> Option<Advice> {
    setup.learning_rate().map(|rate| Advice::new(Way::LowerRate, [&short(rate / 3.0)]))
}

pub(super) fn raise_rate(setup: &Setup) -> Option<Advice> {
    setup.learning_rate().map(|rate| Advice::new(Way::RaiseRate, [&short(3.0 * rate)]))
}

/// A governor for a run that has no step control.
fn govern(setup: &Setup) -> Option<Advice> {
    setup.learning_rate()?;
    let forgets = setup.is("train.optimizer", "sgd") && setup.number("train.sgd_momentum").is_none_or(|m| m == 0.0);
    let target = if forgets { format!(" --set step_control.governor.kl.target={KL}") } else { String::new() };
    setup.names("step_control").is_empty().then(|| Advice::new(Way::Govern, [&with_recipe(setup), &target]))
}

/// The run's recipe for its command, to which a plugin brings others.
fn with_recipe(setup: &Setup) -> String {
    setup.text("recipe").map_or_else(String::new, |recipe| format!(" --set recipe={recipe}"))
}

pub(super) fn both_moments() -> Advice {
    Advice::new(Way::BothMoments, [])
}

/// Has the component `name` of `[[section]]` do less by a bound ten times as wide, or more by a tenth of it.
pub(super) fn loosen(setup: &Setup, section: &str, name: &str) -> Advice {
    turn(setup, section, name, ["raise", "loosen"], 10.0)
}

pub(super) fn tighten(setup: &Setup, section: &str, name: &str) -> Advice {
    turn(setup, section, name, ["lower", "tighten"], 0.1)
}

fn turn(setup: &Setup, section: &str, name: &str, [bound_word, word]: [&str; 2], factor: f64) -> Advice {
    let id = id(name);
    let (key, default) = match id.split_once('.') {
        Some((_, "curvature")) => ("fisher_threshold", None),
        Some((_, "curvature-weight")) => ("fisher_threshold", Some(WEIGHT_BOUND)),
        Some(("governor", _)) => ("target", None),
        _ => ("", None),
    };
    let given = |key: &str| setup.key(section, name, key);
    let path = format!("{section}.{name}");
    let is_known = setup.names(section).iter().any(|known| known == name);
    if let Some(bound) = given(key).map_or(default, |bound| bound.parse().ok()) {
        return Advice::new(Way::Bound, [bound_word, &format!("{path}.{key}"), &short(factor * bound)]);
    }
    let bounds = ["fisher_threshold", "hessian_threshold", "hessian_range", "hessian_interval"];
    if id.ends_with(".curvature") && is_known && !bounds.iter().any(|key| given(key).is_some()) {
        return Advice::new(Way::Rate, [&path]);
    }
    Advice::new(Way::Keys, [word, name, &setup.library(id)])
}

/// A bound for a weight that does too much.
pub(super) fn weight_bound(setup: &Setup, name: &str) -> Advice {
    if setup.is("model.use_peft", "true") && id(name).ends_with(".curvature-weight") {
        return Advice::new(Way::Auto, [&format!("weight.{name}.fisher_threshold")]);
    }
    loosen(setup, "weight", name)
}

/// Leaves out the only component of `[[section]]`.
pub(super) fn leave_out(setup: &Setup, section: &str) -> Option<Advice> {
    let alone = matches!(&setup.names(section)[..], [name] if !setup.multiplies_the_loss(name));
    alone.then(|| Advice::new(Way::LeaveOut, [section]))
}

/// Has a mask that rejected every token do less.
pub(super) fn less_rejection(setup: &Setup, mask: &str) -> Option<Advice> {
    if id(mask) == TRUNCATED { longer(setup) } else { Some(loosen(setup, "mask", mask)) }
}

/// Ways out where completions are cut off.
pub(super) fn whole_completions(setup: &Setup) -> Vec<Advice> {
    let drops = setup.names("mask").iter().any(|mask| id(mask) == TRUNCATED);
    let drop = (!drops).then(|| Advice::new(Way::Drop, [&with_recipe(setup)]));
    longer(setup).into_iter().chain(drop).collect()
}

/// Completions twice as long, as far as the model has positions.
fn longer(setup: &Setup) -> Option<Advice> {
    let now = setup.whole("rollout.max_completion_length")?;
    let prompt = setup.whole("data.max_prompt_length").unwrap_or(0);
    let longest = setup.positions.map_or(2 * now, |positions| (2 * now).min(positions.saturating_sub(prompt)));
    (longest > now).then(|| Advice::new(Way::Longer, [&longest.to_string()]))
}

/// Twice as many answers to each prompt; to twice as many completions in a step, where they would not be whole groups.
pub(super) fn answers(setup: &Setup) -> Option<Advice> {
    let answers = 2 * setup.whole("rollout.num_generations")?;
    let sizes = ["per_device_train_batch_size", "gradient_accumulation_steps"];
    let step: u64 = sizes.iter().filter_map(|key| setup.whole(&format!("train.{key}"))).product();
    let doubled = ["gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"];
    let double = |key: &&str| {
        let size = setup.whole(&format!("train.{key}")).filter(|size| *size > 0)?;
        Some(format!(" --set train.{key}={}", 2 * size))
    };
    let more: String =
        if step.is_multiple_of(answers) { String::new() } else { doubled.iter().filter_map(double).collect() };
    Some(Advice::new(Way::Answers, [&answers.to_string(), &more]))
}

/// Ways to a signal where the answers to each prompt earn alike.
pub(super) fn signal(setup: &Setup) -> Vec<Advice> {
    let on = ["rollout.filter_groups", "train.score_at_sampling"].iter().any(|key| setup.is(key, "true"));
    let resample = (!on && setup.learning_rate().is_some()).then(|| Advice::new(Way::Resample, []));
    answers(setup).into_iter().chain(resample).collect()
}

pub(super) fn explore(setup: &Setup) -> Advice {
    let now = setup.number("train.entropy_coef").filter(|coefficient| *coefficient > 0.0);
    Advice::new(Way::Explore, [&short(now.map_or(0.01, |coefficient| 3.0 * coefficient))])
}

/// Id of the component that reports call `name`.
pub(super) fn id(name: &str) -> &str {
    name.split('#').next().unwrap_or(name)
}

fn short(number: f64) -> String {
    format!("{number:.1e}")
}
