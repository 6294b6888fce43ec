//! The built-in advantages and objectives: their numbers agree with TRL's, and their gradients with
//! differences of the reduced loss.

use std::collections::{BTreeMap, BTreeSet};

use capo_loader::ComponentConfig;
use capo_loader::decision::Decision;
use capo_loader::registry::Registry;
use capo_loader::watchdog::Watchdog;
use capo_plugin::testing::Records;
use capo_plugin::{
    AgedContext, CompletionContext, ContextData, Denominator, Dims, ObjectiveHandle, OptimizerKind,
    Point, PromptContext, Reduction,
};
use host_model::{Sequences, TokenOutputs};
use host_trainer::stages::backward::{Reduced, reduce};
use host_trainer::stages::batch::{BatchWithLogps, SampledBatch, StepInfo};
use host_trainer::stages::{advantage, objective};
use serde::Deserialize;
use toml::Table;

use crate::shared::{data, first_step, json};

#[derive(Deserialize)]
struct Golden {
    limit: usize,
    group: usize,
    advantages: Rewarded,
    losses: Vec<Scored>,
}

/// A rollout and the advantages of its completions.
#[derive(Deserialize)]
struct Rewarded {
    rewards: Vec<f32>,
    rewards_per_func: Vec<Vec<f32>>,
    lengths: Vec<usize>,
    old_logps: Vec<f32>,
    ref_logps: Vec<f32>,
    cases: Vec<Case>,
}

/// A batch and its losses.
#[derive(Deserialize)]
struct Scored {
    name: String,
    lengths: Vec<usize>,
    advantages: Vec<f32>,
    logps: Vec<f32>,
    old_logps: Vec<f32>,
    ref_logps: Vec<f32>,
    cases: Vec<Case>,
}

/// An objective with its keys, and the numbers of TRL that it must reproduce.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Case {
    r#use: String,
    keys: Table,
    /// `[B]`
    advantages: Vec<f64>,
    /// `[B, T]`, if the tokens of a completion have different advantages.
    token_advantages: Vec<f64>,
    loss: f64,
    gradient: Vec<f64>,
    metrics: BTreeMap<String, f64>,
}

fn golden() -> Golden {
    json(&data("objectives-golden/golden.json"))
}

fn info(reduction: Reduction, limit: usize) -> StepInfo {
    first_step(OptimizerKind::ADAMW, reduction, Denominator::KEPT, limit)
}

/// Completions of these lengths after prompts of one token.
pub fn batch(lengths: &[usize], group: usize, rewards: Vec<f32>) -> SampledBatch {
    let rows = lengths.len();
    let longest = *lengths.iter().max().unwrap();
    let longest_ids = vec![7; longest];
    let completions: Vec<&[u32]> = lengths
        .iter()
        .map(|&length| &longest_ids[..length])
        .collect();
    let sequences = Sequences {
        ids: vec![7; rows * (longest + 1)],
        starts: vec![0; rows],
        prompt_len: 1,
        completion_len: longest,
        lengths: lengths.to_vec(),
        numbers: Sequences::numbered(rows),
    };
    SampledBatch::new(sequences, &completions, vec![0; rows], rewards, group, 0)
}

/// `batch` under three policies, `[B, T]` each.
fn with_logps(
    mut batch: SampledBatch,
    logps: &[f32],
    old_logps: &[f32],
    ref_logps: &[f32],
) -> BatchWithLogps {
    batch.arrays.old_logps = Some(old_logps.to_vec().into());
    let entropy = Some(vec![0.0; logps.len()]);
    let outputs = TokenOutputs {
        logps: logps.to_vec(),
        entropy,
        hidden: None,
        last_layer: None,
    };
    let mut batch = BatchWithLogps::new(batch, outputs).unwrap();
    batch.sampled.arrays.ref_logps = Some(ref_logps.to_vec().into());
    batch
}

impl Case {
    fn config(&self, point: &str) -> ComponentConfig {
        ComponentConfig {
            id: format!("{}.{point}", self.r#use),
            table: self.keys.clone(),
        }
    }

    fn objective(&self) -> ObjectiveHandle {
        Registry::open(&[])
            .unwrap()
            .create(&self.config("objective"), &Watchdog::off())
            .unwrap()
    }
}

impl Scored {
    fn dims(&self) -> Dims {
        batch(
            &self.lengths,
            self.lengths.len(),
            vec![0.0; self.lengths.len()],
        )
        .dims()
    }

    /// The loss of an objective, from the log-probabilities of the policy and of the policy that
    /// sampled.
    fn reduced(
        &self,
        component: &mut ObjectiveHandle,
        limit: usize,
        [logps, old_logps]: [&[f32]; 2],
    ) -> (Reduced, Records) {
        let mut batch = batch(
            &self.lengths,
            self.lengths.len(),
            vec![0.0; self.lengths.len()],
        );
        let tokens = batch.dims().tokens as usize;
        let advantages = self
            .advantages
            .iter()
            .flat_map(|&advantage| vec![advantage; tokens])
            .collect();
        let info = info(component.reduction(), limit);
        // The sampler keeps its distance from the policy that sampled.
        let sampler: Vec<f32> = (0..)
            .zip(old_logps)
            .map(|(i, logp)| logp - 0.4 * (i as f32).sin())
            .collect();
        batch.arrays.context = Some(AgedContext {
            data: context(&self.lengths, self.lengths.len(), &sampler),
            age: 0,
        });
        let batch = with_logps(batch, logps, old_logps, &self.ref_logps);
        let mut records = Records::default();
        let batch = objective::evaluate(component, &mut records, batch, advantages, &info).unwrap();
        let decision = Decision::of(batch.sampled().completion_mask().to_vec());
        (reduce(&batch, &info, &decision, None).unwrap(), records)
    }
}

/// True if `a` and `b` differ by at most `relative` times the larger one, or times `scale`.
fn agree(a: f64, b: f64, relative: f64, scale: f64) -> bool {
    (a - b).abs() <= relative * a.abs().max(b.abs()).max(scale)
}

#[test]
fn losses_gradients_and_metrics_agree_with_trl() {
    let golden = golden();
    for scored in &golden.losses {
        for case in &scored.cases {
            let at = format!(
                "{}: {}.objective with {:?}",
                scored.name, case.r#use, case.keys
            );
            let (reduced, records) = scored.reduced(
                &mut case.objective(),
                golden.limit,
                [&scored.logps, &scored.old_logps],
            );
            assert!(
                agree(reduced.loss, case.loss, 1e-5, 0.1),
                "{at}: loss {} against {}",
                reduced.loss,
                case.loss
            );
            let largest = case
                .gradient
                .iter()
                .fold(0.0_f64, |most, slope| most.max(slope.abs()));
            for (i, (slope, expected)) in reduced.d_logps.iter().zip(&case.gradient).enumerate() {
                let slope = f64::from(*slope);
                assert!(
                    agree(slope, *expected, 1e-5, 0.05 * largest),
                    "{at}: token {i}: {slope} against {expected}"
                );
            }
            for (name, expected) in &case.metrics {
                let recorded = records
                    .number(name)
                    .unwrap_or_else(|| panic!("{at}: no metric `{name}`"));
                assert!(
                    agree(recorded, *expected, 1e-5, 0.1),
                    "{at}: {name} {recorded} against {expected}"
                );
            }
        }
    }
}

#[test]
fn ratios_are_one_on_policy() {
    let golden = golden();
    for scored in golden
        .losses
        .iter()
        .filter(|scored| scored.logps == scored.old_logps)
    {
        for id in ["grpo", "dr_grpo", "bnpo", "dapo", "gspo", "rloo", "sapo"] {
            let plain = of("reinforce", &[("reduction", name_of(id).into())]);
            let [(reduced, _), (gradient, _)] = [of(id, &[]), plain].map(|case| {
                scored.reduced(
                    &mut case.objective(),
                    golden.limit,
                    [&scored.logps, &scored.old_logps],
                )
            });
            for (slope, expected) in reduced.d_logps.iter().zip(&gradient.d_logps) {
                assert!(
                    agree(f64::from(*slope), f64::from(*expected), 2e-7, 0.0),
                    "{id}: {slope} against {expected}"
                );
            }
        }
    }
}

/// The reduction of an objective, by its name in a table.
fn name_of(id: &str) -> &'static str {
    match id {
        "dr_grpo" => "fixed_length",
        "bnpo" | "dapo" => "token_mean",
        "rloo" => "completion_sum",
        _ => "completion_mean",
    }
}

#[test]
fn advantages_agree_with_trl_and_verl() {
    let golden = golden();
    let given = &golden.advantages;
    let registry = Registry::open(&[]).unwrap();
    for case in &given.cases {
        let mut component = registry
            .create(&case.config("advantage"), &Watchdog::off())
            .unwrap();
        let mut batch = batch(&given.lengths, golden.group, given.rewards.clone());
        let mut context = context(&given.lengths, golden.group, &given.old_logps);
        given
            .rewards_per_func
            .iter()
            .zip(["a", "b"])
            .for_each(|(rewards, name)| context.add_reward(name, rewards));
        batch.arrays.context = Some(AgedContext {
            data: context,
            age: 0,
        });
        let batch = with_logps(batch, &given.old_logps, &given.old_logps, &given.ref_logps);
        let info = info(Reduction::COMPLETION_MEAN, golden.limit);
        let advantages =
            advantage::estimate(&mut component, &mut Records::default(), &batch, &info).unwrap();
        for (i, is) in advantages.iter().enumerate() {
            let b = i / batch.sampled.dims().tokens as usize;
            let expected = case
                .advantages
                .get(b)
                .or(case.token_advantages.get(i))
                .unwrap();
            let (is, expected) = (
                f64::from(*is),
                expected * f64::from(batch.sampled.completion_mask()[i]),
            );
            let at = format!(
                "{}.advantage with {:?}, completion {b}",
                case.r#use, case.keys
            );
            assert!(
                agree(is, expected, 1e-5, 0.1),
                "{at}: {is} against {expected}"
            );
        }
    }
}

/// A rollout's context without rewards, with the sampler's log-probabilities, `[B, T]`.
fn context(lengths: &[usize], group: usize, sampler_logps: &[f32]) -> ContextData {
    let tokens = sampler_logps.len() / lengths.len();
    let prompts = (0..lengths.len() / group).map(|number| PromptContext {
        ids: &[],
        number: number as u64,
        line: None,
    });
    let spans = vec![[0, 0]; tokens];
    let each = lengths
        .iter()
        .zip(sampler_logps.chunks(tokens))
        .map(|(&length, logps)| CompletionContext {
            text: "",
            spans: &spans[..length],
            sampler_logps: &logps[..length],
        });
    ContextData::new(tokens, prompts, each)
}

fn of(id: &str, pairs: &[(&str, toml::Value)]) -> Case {
    let keys = pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), value.clone()))
        .collect();
    Case {
        r#use: id.into(),
        keys,
        ..Case::default()
    }
}

/// Tables that use every key of every built-in objective at least once.
fn tables() -> Vec<Case> {
    let clipped = ["grpo", "dr_grpo", "bnpo", "dapo", "gspo", "luspo", "rloo"];
    let mut cases = Vec::new();
    for id in clipped {
        cases.push(of(id, &[]));
        cases.push(of(
            id,
            &[
                ("epsilon", 0.05.into()),
                ("epsilon_high", 0.3.into()),
                ("delta", 1.1.into()),
            ],
        ));
    }
    for id in ["cispo", "sapo", "vespo", "reinforce"] {
        cases.push(of(id, &[]));
    }
    for level in ["token", "sequence", "sequence_product"] {
        for id in clipped.into_iter().chain(["cispo", "sapo"]) {
            cases.push(of(id, &[("importance_sampling_level", level.into())]));
        }
    }
    for reduction in [
        "completion_mean",
        "fixed_length",
        "token_mean",
        "completion_sum",
    ] {
        for id in clipped
            .into_iter()
            .chain(["cispo", "sapo", "vespo", "reinforce"])
        {
            cases.push(of(id, &[("reduction", reduction.into())]));
        }
    }
    for estimator in ["k1", "k2", "k3"] {
        let kl = [("beta", 0.4.into()), ("kl_estimator", estimator.into())];
        cases.push(of("reinforce", &kl));
        for id in clipped.into_iter().chain(["cispo", "sapo", "vespo"]) {
            cases.push(of(id, &kl));
            cases.push(of(
                id,
                &[kl.as_slice(), &[("use_bias_correction_kl", true.into())]].concat(),
            ));
        }
    }
    cases.push(of("cispo", &[("epsilon_high", 1.05.into())]));
    cases.push(of(
        "sapo",
        &[
            ("sapo_temperature_pos", 3.0.into()),
            ("sapo_temperature_neg", 0.5.into()),
        ],
    ));
    let shape = [
        ("vespo_k_pos", 1.0),
        ("vespo_lambda_pos", 0.5),
        ("vespo_k_neg", 0.5),
        ("vespo_lambda_neg", 4.0),
    ];
    cases.push(of("vespo", &shape.map(|(key, value)| (key, value.into()))));
    for mode in [
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
    ] {
        let limits = [
            ("clip_max", 1.2.into()),
            ("clip_min", 0.8.into()),
            ("mode", mode.into()),
        ];
        let names = limits.map(|(key, value)| (format!("vllm_importance_sampling_{key}"), value));
        cases.push(Case {
            keys: names.into_iter().collect(),
            ..of("vespo", &[])
        });
    }
    cases
}

/// The objectives whose surrogates treat ratios as constants.
const HELD: [&str; 2] = ["cispo", "vespo"];

#[test]
fn gradients_agree_with_differences_of_the_reduced_loss() {
    let golden = golden();
    let mut used = BTreeSet::new();
    for case in tables() {
        let at_kinks: usize = golden
            .losses
            .iter()
            .map(|scored| check_slopes(scored, &case, golden.limit))
            .sum();
        assert!(
            at_kinks <= 6,
            "{}.objective with {:?}: {at_kinks} tokens lie at kinks",
            case.r#use,
            case.keys
        );
        used.extend(
            case.keys
                .keys()
                .map(|key| format!("{}.objective {key}", case.r#use)),
        );
    }
    let registry = Registry::open(&[]).unwrap();
    for offer in registry
        .offers()
        .into_iter()
        .filter(|offer| offer.point == Point::Objective)
    {
        for doc in &offer.keys {
            let key = format!("{} {}", offer.id, doc.name);
            assert!(used.contains(&key), "no table here uses {key}");
        }
    }
}

/// How far a log-probability is moved, in nats. It is less than the narrowest limit on a ratio.
const NUDGE: f32 = 1.0 / 4096.0;
/// How far a difference may be off because losses are rounded, as a share of the largest gradient.
const TOLERANCE: f64 = 5e-3;

/// Compares every token's gradient with the differences of the loss to either side. They are far
/// apart only at a kink. Returns the number of kinks.
fn check_slopes(scored: &Scored, case: &Case, limit: usize) -> usize {
    let mut losses = Losses::new(scored, case, limit);
    let (whole, _) = scored.reduced(&mut losses.whole, limit, [&scored.logps, &scored.old_logps]);
    let largest = whole
        .d_logps
        .iter()
        .fold(0.0_f32, |most, slope| most.max(slope.abs()));
    let dims = scored.dims();
    let mut kinks = 0;
    for b in 0..scored.lengths.len() {
        for i in dims.row(b).take(scored.lengths[b]) {
            let (below, above) = losses.differences(i);
            let (slope, scale) = (f64::from(whole.d_logps[i]), f64::from(largest).max(1e-3));
            kinks += usize::from(!agree(below, above, 0.02, scale));
            let between =
                below.min(above) - TOLERANCE * scale..=below.max(above) + TOLERANCE * scale;
            let at = format!(
                "{}: {}.objective with {:?}, token {i}",
                scored.name, case.r#use, case.keys
            );
            assert!(
                between.contains(&slope),
                "{at}: {slope}, measured {below} and {above}"
            );
        }
    }
    kinks
}

/// Reduced losses of one batch.
struct Losses<'a> {
    scored: &'a Scored,
    limit: usize,
    whole: ObjectiveHandle,
    /// The objective without its penalty, if its surrogate treats ratios as constants.
    held: Option<ObjectiveHandle>,
}

impl<'a> Losses<'a> {
    fn new(scored: &'a Scored, case: &Case, limit: usize) -> Self {
        let alone = Case {
            keys: without_penalty(&case.keys),
            ..of(&case.r#use, &[])
        };
        let held = HELD
            .contains(&case.r#use.as_str())
            .then(|| alone.objective());
        Self {
            scored,
            limit,
            whole: case.objective(),
            held,
        }
    }

    /// The loss if token `i` is more probable by `nudge` nats.
    fn at(&mut self, i: usize, nudge: f32) -> f64 {
        let scored = self.scored;
        let limit = self.limit;
        let mut logps = scored.logps.clone();
        let mut old_logps = scored.old_logps.clone();
        logps[i] += nudge;
        let loss = |of: &mut ObjectiveHandle, old_logps: &[f32]| {
            scored.reduced(of, limit, [&logps, old_logps]).0.loss
        };
        let whole = loss(&mut self.whole, &old_logps);
        let Some(held) = &mut self.held else {
            return whole;
        };
        // The ratio moves in the penalty, but not in the surrogate.
        let moved = loss(held, &old_logps);
        old_logps[i] += nudge;
        whole - moved + loss(held, &old_logps)
    }

    /// Change of the loss per nat of a token's log-probability, below and above its value.
    fn differences(&mut self, i: usize) -> (f64, f64) {
        let [below, here, above] =
            [-NUDGE, 0.0, NUDGE].map(|nudge| (self.at(i, nudge), self.scored.logps[i] + nudge));
        let slope =
            |(low, from): (f64, f32), (high, to): (f64, f32)| (high - low) / f64::from(to - from);
        (slope(below, here), slope(here, above))
    }
}

fn without_penalty(keys: &Table) -> Table {
    let penalty = ["beta", "kl_estimator", "use_bias_correction_kl"];
    keys.iter()
        .filter(|(key, _)| !penalty.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}
