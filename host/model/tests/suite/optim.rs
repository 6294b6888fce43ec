//! AdamW and learning-rate schedules against torch and transformers (numbers made by
//! `data/qwen2-golden/make.py`).

use candle_core::{Device, Tensor};
use host_model::device::Dtype;
use host_model::optim::adamw::{AdamWConfig, SecondMoment};
use host_model::optim::sgd::SgdConfig;
use host_model::optim::{Optimizer, OptimizerConfig};
use host_model::schedule::{Schedule, ScheduleKind};
use host_model::{Base, Gradients, LoraConfig, ModelFiles, Policy, Sequences, Targets};
use serde_json::{Value, json};

use crate::shared::{
    self, changed_copy, d_logps, data, qwen2, qwen2_numbers, values, wave_difference,
};

pub const CONFIG: AdamWConfig = AdamWConfig {
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0.1,
    second_moment: SecondMoment::Kept,
    moments: Dtype::F32,
};
pub const MAX_GRAD_NORM: f64 = 0.5;

/// The made-up gradients of `make.py`.
fn gradients(policy: &Policy, step: usize) -> Gradients {
    let gradient = |(number, (name, var)): (usize, (&str, &candle_core::Var))| {
        let value = |i: usize| {
            0.01 * (step + 1) as f64 * (0.1 * i as f64 + step as f64 + number as f64).sin()
        };
        let values: Vec<f32> = (0..var.elem_count()).map(|i| value(i) as f32).collect();
        (
            name.to_owned(),
            Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap(),
        )
    };
    policy.params().iter().enumerate().map(gradient).collect()
}

#[test]
fn five_steps_match_torch() {
    let (golden, policy) = (&qwen2_numbers()["adamw"], qwen2("tied"));
    let mut optimizer = Optimizer::new(policy.params(), OptimizerConfig::AdamW(CONFIG)).unwrap();
    let schedule = Schedule {
        kind: ScheduleKind::Linear,
        peak: 1e-2,
        warmup_steps: 2,
        max_steps: 5,
    };
    for step in 0..5 {
        let rate = schedule.learning_rate(step);
        let outcome = optimizer
            .step(
                policy.params(),
                &gradients(&policy, step as usize),
                None,
                rate,
                MAX_GRAD_NORM,
            )
            .unwrap();
        let norm = golden["norms"][step as usize].as_f64().unwrap();
        assert!(
            outcome.taken && (outcome.grad_norm / norm - 1.0).abs() < 1e-6,
            "{outcome:?}, expected norm {norm}"
        );
    }
    assert_eq!(optimizer.steps_taken(), 5);
    let mut worst = [0.0f64; 3];
    for (name, var) in policy.params().iter() {
        let (exp_avg, exp_avg_sq) = optimizer.moments(name).unwrap();
        let tensors = [
            ("weights", var.as_tensor()),
            ("exp_avg", exp_avg),
            ("exp_avg_sq", exp_avg_sq),
        ];
        for (worst, (kind, tensor)) in worst.iter_mut().zip(tensors) {
            let difference = wave_difference(tensor, &golden[kind][name]);
            *worst = worst.max(difference);
            assert!(difference < 1e-6, "{kind} of {name}: {difference:e}");
        }
    }
    println!("largest relative differences of weights, exp_avg, exp_avg_sq: {worst:?}");
    let bias = values(
        policy
            .params()
            .get("model.layers.1.self_attn.q_proj.bias")
            .unwrap(),
    );
    for (actual, expected) in bias.iter().zip(golden["q_proj_bias"].as_array().unwrap()) {
        assert!((f64::from(*actual) - expected.as_f64().unwrap()).abs() < 1e-6);
    }
}

/// A model of `data/families-golden` with this `pad_token_id` in its `config.json`, with or without
/// an adapter like that of `make.py`.
fn padded(case: &Value) -> Policy {
    let name = case["model"].as_str().unwrap();
    let folder = changed_copy(
        &data("families-golden").join(name),
        &json!({"pad_token_id": case["pad_token_id"]}),
    );
    let files = ModelFiles::Directory(folder.path().to_owned());
    let policy = Policy::load(&files, &Device::Cpu).unwrap();
    if case["adapter"] == false {
        return policy;
    }
    let targets = Targets::Named(["q_proj", "v_proj"].map(str::to_owned).to_vec());
    let lora = LoraConfig {
        r: 2,
        alpha: 4.0,
        dropout: 0.0,
        targets,
        rslora: false,
        rest: serde_json::Map::new(),
    };
    let policy = policy
        .with_adapter(lora, Base::of(name, &files).unwrap(), 7)
        .unwrap();
    for (number, (_, var)) in policy.params().iter().enumerate() {
        let wave: Vec<f32> = (0..var.elem_count())
            .map(|i| (0.3 * i as f32 + number as f32).sin())
            .collect();
        var.set(&Tensor::from_vec(wave, var.shape(), &Device::Cpu).unwrap())
            .unwrap();
    }
    policy
}

#[test]
fn steps_like_torch_when_turns_end_in_the_padding_token() {
    let cases: Vec<Value> = shared::json(&data("families-golden/padding.json"));
    let rows = Sequences {
        ids: [
            [1, 1, 1, 7, 21, 1, 3, 12, 1, 5, 11],
            [1, 11, 2, 1, 17, 19, 1, 8, 1, 15, 6],
        ]
        .concat(),
        starts: vec![3, 1],
        prompt_len: 6,
        completion_len: 5,
        lengths: vec![5; 2],
        numbers: Sequences::numbered(2),
    };
    for case in &cases {
        let at = format!(
            "{} with `pad_token_id` {}",
            case["model"], case["pad_token_id"]
        );
        let policy = padded(case);
        let gradients = policy
            .forward(&rows, 0.9)
            .unwrap()
            .backward(&d_logps())
            .unwrap();
        let mut optimizer =
            Optimizer::new(policy.params(), OptimizerConfig::AdamW(CONFIG)).unwrap();
        let outcome = optimizer
            .step(policy.params(), &gradients, None, 1e-2, MAX_GRAD_NORM)
            .unwrap();
        let norm = case["grad_norm"].as_f64().unwrap();
        assert!(
            (outcome.grad_norm / norm - 1.0).abs() < 1e-5,
            "{at}: norm {}, expected {norm}",
            outcome.grad_norm
        );
        assert_eq!(
            policy.params().iter().count(),
            case["weights"].as_object().unwrap().len(),
            "{at}"
        );
        for (name, var) in policy.params().iter() {
            let difference = wave_difference(var, &case["weights"][name]);
            assert!(difference < 1e-5, "{at}: {name}: {difference:e}");
        }
    }
}

#[test]
fn alignment_is_the_cosine_with_the_last_step() {
    let adamw = OptimizerConfig::AdamW(AdamWConfig {
        weight_decay: 0.0,
        ..CONFIG
    });
    let sgd = |momentum| {
        OptimizerConfig::Sgd(SgdConfig {
            momentum,
            ..SgdConfig::default()
        })
    };
    for (config, remembers) in [(adamw, true), (sgd(0.9), true), (sgd(0.0), false)] {
        let policy = qwen2("tied");
        let weights = || {
            policy
                .params()
                .iter()
                .flat_map(|(_, var)| values(var))
                .map(f64::from)
                .collect::<Vec<_>>()
        };
        let mut optimizer = Optimizer::new(policy.params(), config).unwrap();
        assert_eq!(
            optimizer.alignment(&gradients(&policy, 0)).unwrap(),
            None,
            "there is no step before the first"
        );
        for step in 0..3 {
            let before = weights();
            // A long step, so that rounding of the weights does not hide it.
            optimizer
                .step(policy.params(), &gradients(&policy, step), None, 10.0, 0.0)
                .unwrap();
            let next = gradients(&policy, step + 1);
            let downhill: Vec<f64> = next
                .iter()
                .flat_map(|(_, grad)| values(grad))
                .map(|g| -f64::from(g))
                .collect();
            let taken: Vec<f64> = weights()
                .iter()
                .zip(before)
                .map(|(after, before)| after - before)
                .collect();
            let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let norms = (product(&taken, &taken) * product(&downhill, &downhill)).sqrt();
            let told = optimizer.alignment(&next).unwrap();
            assert_eq!(told.is_some(), remembers);
            let expected = product(&taken, &downhill) / norms;
            assert!(
                told.is_none_or(|told| (told - expected).abs() < 1e-5),
                "{told:?}, expected {expected}"
            );
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    let policy = qwen2("tied");
    let config = AdamWConfig {
        second_moment: SecondMoment::KeptAndRejected,
        ..CONFIG
    };
    let mut optimizer = Optimizer::new(policy.params(), OptimizerConfig::AdamW(config)).unwrap();
    let weights = || {
        policy
            .params()
            .iter()
            .map(|(_, var)| values(var))
            .collect::<Vec<_>>()
    };
    let scaled = |step: usize, factor: f64| -> Gradients {
        let scaled = |(name, grad): (&str, &Tensor)| {
            (
                name.to_owned(),
                if name.contains("v_proj.bias") {
                    (grad * factor).unwrap()
                } else {
                    grad.clone()
                },
            )
        };
        gradients(&policy, step).iter().map(scaled).collect()
    };
    for (kept, rejected) in [
        (f64::NAN, None),
        (f64::INFINITY, None),
        (1.0, Some(f64::NAN)),
    ] {
        let before = weights();
        let rejected = rejected.map(|factor| scaled(1, factor));
        let outcome = optimizer
            .step(
                policy.params(),
                &scaled(0, kept),
                rejected.as_ref(),
                0.1,
                1.0,
            )
            .unwrap();
        let finite = [outcome.grad_norm, outcome.rejected_grad_norm].map(f64::is_finite);
        assert_eq!(
            (outcome.taken, finite),
            (false, [rejected.is_some(), rejected.is_none()])
        );
        assert_eq!((weights(), optimizer.steps_taken()), (before, 0));
    }
}

#[test]
fn clips_neither_at_0_nor_below_the_limit() {
    let run = |max_grad_norm: f64| {
        let policy = qwen2("tied");
        let mut optimizer =
            Optimizer::new(policy.params(), OptimizerConfig::AdamW(CONFIG)).unwrap();
        optimizer
            .step(
                policy.params(),
                &gradients(&policy, 0),
                None,
                0.1,
                max_grad_norm,
            )
            .unwrap();
        values(optimizer.moments("model.norm.weight").unwrap().0)
    };
    assert_eq!(run(0.0), run(1e6));
    assert_ne!(run(0.0), run(0.01));
}

#[test]
fn a_restored_optimizer_continues_bit_for_bit() {
    let sgd = SgdConfig {
        momentum: 0.9,
        weight_decay: 0.1,
        ..SgdConfig::default()
    };
    for config in [OptimizerConfig::AdamW(CONFIG), OptimizerConfig::Sgd(sgd)] {
        let run = |interrupted: bool| {
            let policy = qwen2("tied");
            let new = || Optimizer::new(policy.params(), config).unwrap();
            let mut optimizer = new();
            for step in 0..4 {
                if interrupted && step == 2 {
                    let mut fresh = new();
                    fresh.load_state(&optimizer.state().unwrap()).unwrap();
                    // A step of the old optimizer, at a learning rate of 0, must not change the new
                    // optimizer.
                    let before = moments(&fresh);
                    optimizer
                        .step(policy.params(), &gradients(&policy, 9), None, 0.0, 0.0)
                        .unwrap();
                    assert_eq!(moments(&fresh), before);
                    assert_ne!(moments(&optimizer), before);
                    optimizer = fresh;
                }
                optimizer
                    .step(
                        policy.params(),
                        &gradients(&policy, step),
                        None,
                        0.01,
                        MAX_GRAD_NORM,
                    )
                    .unwrap();
            }
            assert_eq!(
                optimizer.state().unwrap()["steps_taken"]
                    .to_vec1::<i64>()
                    .unwrap(),
                [4]
            );
            policy
                .params()
                .iter()
                .map(|(_, var)| values(var))
                .collect::<Vec<_>>()
        };
        assert_eq!(run(false), run(true));
    }
}

/// The optimizer's moments of the last norm.
fn moments(optimizer: &Optimizer) -> Vec<Vec<f32>> {
    let state = optimizer.state().unwrap();
    state
        .iter()
        .filter(|(name, _)| name.ends_with("/model.norm.weight"))
        .map(|(_, kept)| values(kept))
        .collect()
}

#[test]
fn refuses_the_state_of_another_optimizer() {
    let policy = qwen2("tied");
    let mut optimizer = Optimizer::new(policy.params(), OptimizerConfig::AdamW(CONFIG)).unwrap();
    let mut state = optimizer.state().unwrap();
    let moment = state.remove("exp_avg/model.norm.weight").unwrap();
    let error = optimizer.load_state(&state).unwrap_err().to_string();
    assert!(error.contains("tensors, expected"), "{error}");
    assert!(
        error.ends_with("(use a checkpoint of this model and this optimizer)"),
        "{error}"
    );
    state.insert("exp_avg/other".to_owned(), moment.clone());
    let error = optimizer.load_state(&state).unwrap_err().to_string();
    assert!(
        error.contains("has no `exp_avg/model.norm.weight`"),
        "{error}"
    );
    state.remove("exp_avg/other");
    state.insert(
        "exp_avg/model.norm.weight".to_owned(),
        moment.narrow(0, 0, 3).unwrap(),
    );
    let error = optimizer.load_state(&state).unwrap_err().to_string();
    assert!(
        error.contains("is F32 of shape [3], expected F32 of shape [32]"),
        "{error}"
    );
}

#[test]
fn schedules_match_transformers() {
    let golden = qwen2_numbers();
    for (key, rates) in golden["schedules"].as_object().unwrap() {
        let (kind, ratio) = key.split_once('/').unwrap();
        let kind: ScheduleKind = serde_json::from_value(kind.into()).unwrap();
        let schedule = Schedule::new(kind, 3e-4, ratio.parse().unwrap(), 10).unwrap();
        for (step, rate) in rates.as_array().unwrap().iter().enumerate() {
            let (actual, expected) = (schedule.learning_rate(step as u64), rate.as_f64().unwrap());
            assert!(
                (actual - expected).abs() < 1e-18,
                "{key}, step {step}: {actual:e}, expected {expected:e}"
            );
        }
    }
    let of = |ratio: f64| Schedule::new(ScheduleKind::Linear, 1e-3, ratio, 1000);
    assert!(
        of(1.5).is_err()
            && (0..=1000).all(|steps| of(steps as f64 / 1e3).unwrap().warmup_steps == steps)
    );
}

#[test]
fn acting_rate_is_the_largest_rate_that_the_moment_remembers() {
    let of = |kind, ratio| Schedule::new(kind, 1.0, ratio, 100).unwrap();
    let (warm, falling) = (of(ScheduleKind::Cosine, 0.2), of(ScheduleKind::Linear, 0.0));
    // The warm-up rises by 0.05 per step. A decay rate of 0.9 remembers ten steps, 0.95 twenty.
    assert_eq!(
        [0, 5, 11, 15, 19].map(|step| warm.acting_rate(step, 0.9)),
        [0.45, 0.7, 1.0, 1.0, 1.0]
    );
    assert_eq!([0, 1].map(|step| warm.acting_rate(step, 0.95)), [0.95, 1.0]);
    for step in [0, 1, 19, 60, 98, 99] {
        assert_eq!(
            falling.acting_rate(step, 0.9),
            falling.learning_rate(step),
            "a rate that falls is the largest now"
        );
        assert_eq!(
            warm.acting_rate(step, 0.0),
            warm.learning_rate(step),
            "without a moment there is no memory"
        );
        assert_eq!(of(ScheduleKind::Constant, 0.0).acting_rate(step, 0.9), 1.0);
        assert_eq!(
            warm.acting_rate(step, 1.0 - 1e-15),
            if step < 20 {
                1.0
            } else {
                warm.learning_rate(step)
            }
        );
    }
    // Within the memory, a gradient moves the weights by at most the acting rate, because its
    // shares of the first moment add up to less than 1.
    for (beta1, step) in [(0.9_f64, 0), (0.9, 7), (0.5, 3), (0.95, 12)] {
        let memory = (1.0 / (1.0 - beta1)).round() as i32;
        let share = |later: i32| (1.0 - beta1) * beta1.powi(later);
        let moved: f64 = (0..memory)
            .map(|later| share(later) * warm.learning_rate(step + later as u64))
            .sum();
        let acting = warm.acting_rate(step, beta1);
        assert!(
            moved <= acting && moved > 0.2 * acting,
            "{beta1}, {step}: {moved} of {acting}"
        );
    }
}
