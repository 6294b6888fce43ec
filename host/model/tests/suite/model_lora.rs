//! Adapters against PEFT (numbers made by `data/lora-golden/make.py`), and their training passes.

use std::fs;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use host_model::frozen::Reference;
use host_model::{
    Base, Dropout, Gradients, LoraConfig, ModelFiles, Policy, Sequences, Targets, Wants, embedded,
};
use serde_json::{Map, Value, json};

use crate::shared::{
    self, assert_golden, d_logps, data, distance, logits_of_rows, rows, tensors, values,
};

const NAMES: [&str; 4] = ["llama3", "qwen2-yarn", "llama-biased", "qwen3"];

/// An adapter with its base. The base's name is a path relative to this crate's folder.
fn open(directory: &Path) -> anyhow::Result<Policy> {
    Policy::load(
        &embedded::model_files(directory.to_str().unwrap())?,
        &Device::Cpu,
    )
}

fn load(name: &str) -> Policy {
    open(&data("lora-golden").join(name)).unwrap()
}

fn base(name: &str) -> ModelFiles {
    ModelFiles::Directory(data("families-golden").join(name))
}

fn settings(dropout: f64) -> LoraConfig {
    LoraConfig {
        r: 4,
        alpha: 8.0,
        dropout,
        targets: Targets::AllLinear,
        rslora: false,
        rest: Map::new(),
    }
}

/// A base with a fresh adapter.
fn fresh(name: &str, lora: LoraConfig) -> anyhow::Result<Policy> {
    Policy::load(&base(name), &Device::Cpu)?.with_adapter(lora, Base::of(name, &base(name))?, 7)
}

/// A base with an adapter whose second factors are not 0.
fn trained(name: &str, dropout: f64) -> Policy {
    let policy = fresh(name, settings(dropout)).unwrap();
    for (number, (_, var)) in policy.params().iter().enumerate() {
        let wave: Vec<f32> = (0..var.elem_count())
            .map(|i| (0.3 * (i + 5 * number) as f32).sin())
            .collect();
        var.set(&Tensor::from_vec(wave, var.shape(), &Device::Cpu).unwrap())
            .unwrap();
    }
    policy
}

fn logps(policy: &Policy, rows: &Sequences) -> Vec<f32> {
    policy
        .forward_detached(rows, 0.9)
        .unwrap()
        .outputs(&Wants::default())
        .unwrap()
        .logps
}

#[test]
fn logits_logps_and_gradients_match_peft() {
    for name in NAMES {
        let (policy, golden) = (load(name), tensors("lora-golden", name));
        let distance_of_logits = distance(
            &logits_of_rows(&policy),
            &golden["logits"].narrow(1, 3, 7).unwrap(),
        );
        assert!(distance_of_logits < 1e-5, "{name}: {distance_of_logits:e}");
        let forward = policy.forward(&rows(6), 0.9).unwrap();
        let logps = forward.outputs(&Wants::default()).unwrap().logps;
        assert!(
            distance(
                &Tensor::from_vec(logps, (2, 5), &Device::Cpu).unwrap(),
                &golden["logps"]
            ) < 1e-5,
            "{name}"
        );
        let gradients = forward.backward(&d_logps()).unwrap();
        let trained: Vec<&str> = policy.params().iter().map(|(weight, _)| weight).collect();
        assert_eq!(
            gradients
                .iter()
                .map(|(weight, _)| weight)
                .collect::<Vec<_>>(),
            trained,
            "{name}: and of nothing else"
        );
        assert_eq!(
            golden.keys().filter(|key| key.contains("lora_")).count(),
            trained.len(),
            "{name}"
        );
        println!("{name}: logits {distance_of_logits:.1e}");
        assert_golden(name, &gradients, &golden);
    }
}

/// `make.py --check` reads the files that this test writes with PEFT and transformers.
#[test]
fn saves_all_bits_and_merges_as_peft_does() {
    for name in NAMES {
        let policy = load(name);
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join("lora")
            .join(name);
        policy.save(&directory).unwrap();
        let again = open(&directory).unwrap();
        for ((weight, before), (same, after)) in policy.params().iter().zip(again.params().iter()) {
            assert_eq!((weight, values(before)), (same, values(after)));
        }
        assert_eq!(
            values(&logits_of_rows(&policy)),
            values(&logits_of_rows(&again)),
            "{name}"
        );
        let config = |directory: &Path| -> Map<String, Value> {
            shared::json(&directory.join("adapter_config.json"))
        };
        let (mut before, after) = (config(&data("lora-golden").join(name)), config(&directory));
        before.insert(
            "base_model_name_or_path".to_owned(),
            json!(data("families-golden").join(name)),
        );
        assert_eq!(
            before, after,
            "{name}: what PEFT wrote is written again, the base by its whole path"
        );
        assert!(!directory.join("model.safetensors").exists());

        let merged = directory.with_file_name(format!("{name}-merged"));
        load(name).merged().unwrap().save(&merged).unwrap();
        let merged = Policy::load(&ModelFiles::Directory(merged), &Device::Cpu).unwrap();
        for (weight, var) in merged.params().iter() {
            let distance = distance(
                var,
                &tensors("lora-golden", name)[&format!("merged.{weight}")],
            );
            assert!(distance < 1e-6, "{name}: {weight}: {distance:e}");
        }
        assert!(
            distance(&logits_of_rows(&merged), &logits_of_rows(&policy)) < 1e-5,
            "{name}"
        );
    }
}

#[test]
fn refuses_to_merge_numbers_that_are_not_finite() {
    let policy = trained("llama3", 0.0);
    for (_, var) in policy.params().iter() {
        var.set(&var.affine(1e30, 0.0).unwrap()).unwrap();
    }
    let error = policy.merged().err().unwrap().to_string();
    assert_eq!(
        error,
        "the adapter makes numbers of `model.layers.0.mlp.down_proj.weight` infinite or NaN (use another checkpoint)"
    );
}

#[test]
fn a_fresh_adapter_has_no_effect_and_follows_its_seed() {
    let policy = fresh("llama3", settings(0.0)).unwrap();
    let plain = Policy::load(&base("llama3"), &Device::Cpu).unwrap();
    assert_eq!(
        values(&logits_of_rows(&policy)),
        values(&logits_of_rows(&plain))
    );
    let again = fresh("llama3", settings(0.0)).unwrap();
    for ((name, var), (_, same)) in policy.params().iter().zip(again.params().iter()) {
        assert_eq!(values(var), values(same));
        let (zero, inputs) = (
            values(var).iter().all(|value| *value == 0.0),
            var.dims()[1] as f32,
        );
        assert_eq!(zero, name.ends_with("lora_B.weight"), "{name}");
        assert!(
            values(var)
                .iter()
                .all(|value| value.abs() <= 1.0 / inputs.sqrt()),
            "{name}"
        );
    }
    let defaults = fresh(
        "llama3",
        LoraConfig {
            targets: Targets::OfFamily,
            ..settings(0.0)
        },
    )
    .unwrap();
    let modules: Vec<&str> = defaults
        .params()
        .iter()
        .filter_map(|(name, _)| name.strip_suffix(".lora_A.weight"))
        .collect();
    let expected = [
        "0.self_attn.q_proj",
        "0.self_attn.v_proj",
        "1.self_attn.q_proj",
        "1.self_attn.v_proj",
    ];
    assert_eq!(
        modules,
        expected.map(|module| format!("model.layers.{module}"))
    );
}

fn worst(a: &Gradients, b: &Gradients) -> f32 {
    a.iter()
        .map(|(name, gradient)| distance(gradient, b.get(name).unwrap()))
        .fold(0.0, f32::max)
}

/// With dropout, all passes of a step compute the same function of the factors, and the gradient is
/// its derivative.
#[test]
fn all_passes_of_a_step_have_the_same_dropout() {
    let policy = trained("llama3", 0.3);
    let plain = logps(&policy, &rows(6));
    let step = policy.in_training(Dropout::of_step(1, 5));
    let all = logps(&step, &rows(6));
    assert_ne!(all, plain, "a step leaves something out");
    assert_eq!(logps(&policy, &rows(6)), plain, "and nothing else does");
    assert_ne!(
        all,
        logps(&policy.in_training(Dropout::of_step(1, 6)), &rows(6))
    );
    assert_ne!(
        all,
        logps(&policy.in_training(Dropout::of_step(2, 5)), &rows(6))
    );
    assert_ne!(
        all,
        logps(&policy.in_training(Dropout::of_rollout(1, 5)), &rows(6))
    );
    let parts = [0..1, 1..2]
        .map(|part| logps(&step, &rows(6).slice(part)))
        .concat();
    let apart = all
        .iter()
        .zip(&parts)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart < 1e-5, "{apart:e}");
    assert_eq!(
        logps(&step, &rows(6).select(&[1])),
        logps(&step, &rows(6).slice(1..2))
    );
    let mut twice = rows(6).select(&[1, 1]);
    twice.numbers = vec![0, 1];
    let twice = logps(&step, &twice);
    assert_ne!(
        twice[..5],
        twice[5..],
        "equal rows leave out different numbers, so they share no prompt"
    );

    let forward = step.forward(&rows(6), 0.9).unwrap();
    assert_eq!(forward.outputs(&Wants::default()).unwrap().logps, all);
    let whole = forward.backward(&d_logps()).unwrap();
    let again = policy
        .in_training(Dropout::of_step(1, 5))
        .with_gradient_checkpointing(true);
    let again = again
        .forward(&rows(6), 0.9)
        .unwrap()
        .backward(&d_logps())
        .unwrap();
    assert_eq!(
        worst(&whole, &again),
        0.0,
        "layers that are computed again leave out the same"
    );
    let mut sum = step
        .forward(&rows(6).slice(0..1), 0.9)
        .unwrap()
        .backward(&d_logps()[..5])
        .unwrap();
    sum.accumulate(
        step.forward(&rows(6).slice(1..2), 0.9)
            .unwrap()
            .backward(&d_logps()[5..])
            .unwrap(),
    )
    .unwrap();
    assert!(worst(&sum, &whole) < 1e-5);
    let second = [[0.0; 5].as_slice(), &d_logps()[5..]].concat();
    let nonzero = forward.backward_of_nonzero(&second).unwrap().unwrap();
    assert!(worst(&nonzero, &forward.backward(&second).unwrap()) < 1e-5);

    for name in [
        "model.layers.0.mlp.down_proj.lora_A.weight",
        "model.layers.1.self_attn.q_proj.lora_B.weight",
    ] {
        let var = policy.params().get(name).unwrap();
        let (before, gradient) = (values(var), values(whole.get(name).unwrap()));
        let loss = |change: f32| {
            let mut moved = before.clone();
            moved[3] += change;
            var.set(&Tensor::from_vec(moved, var.shape(), &Device::Cpu).unwrap())
                .unwrap();
            logps(&step, &rows(6))
                .iter()
                .zip(d_logps())
                .map(|(logp, weight)| f64::from(logp * weight))
                .sum::<f64>()
        };
        let slope = (loss(5e-3) - loss(-5e-3)) / 1e-2;
        loss(0.0);
        assert!(
            (slope - f64::from(gradient[3])).abs() < 1e-2,
            "{name}: {slope} {}",
            gradient[3]
        );
    }
}

#[test]
fn dropout_drops_its_rate() {
    let policy = trained("llama3", 0.25);
    // The mean over many steps equals the pass without dropout, if the layers above are almost
    // linear.
    for (_, var) in policy.params().iter() {
        var.set(&(var.as_detached_tensor() * 0.02).unwrap())
            .unwrap();
    }
    let plain = logps(&policy, &rows(6));
    let mut mean = vec![0.0f64; plain.len()];
    for step in 0..400 {
        let one = logps(&policy.in_training(Dropout::of_step(3, step)), &rows(6));
        mean.iter_mut()
            .zip(one)
            .for_each(|(mean, logp)| *mean += f64::from(logp) / 400.0);
    }
    let base = logps(
        &Policy::load(&base("llama3"), &Device::Cpu).unwrap(),
        &rows(6),
    );
    let off = |other: &[f32]| {
        mean.iter()
            .zip(other)
            .map(|(a, b)| (a - f64::from(*b)).powi(2))
            .sum::<f64>()
            .sqrt()
    };
    assert!(
        off(&plain) < 0.1 * off(&base),
        "{} {}",
        off(&plain),
        off(&base)
    );
}

#[test]
fn a_reference_shares_the_base_and_keeps_its_factors() {
    let policy = trained("llama3", 0.0);
    let reference = policy.reference().unwrap();
    let before = logps(&reference, &rows(6));
    assert_eq!(before, logps(&policy, &rows(6)));
    let (_, var) = policy.params().iter().next().unwrap();
    var.set(&(var.as_detached_tensor() * 2.0).unwrap()).unwrap();
    assert_eq!(logps(&reference, &rows(6)), before);
    assert_ne!(logps(&policy, &rows(6)), before);
    let (ours, theirs) = (policy.weights(), reference.weights());
    assert!(
        ours.iter()
            .zip(theirs.iter())
            .all(|((_, a), (_, b))| a.id() == b.id()),
        "no second copy"
    );
}

#[test]
fn a_reference_may_be_an_adapter() {
    let files = embedded::model_files(data("lora-golden/llama3").to_str().unwrap()).unwrap();
    let reference = Reference::load(&files, 11, DType::F32, &Device::Cpu).unwrap();
    let theirs = reference
        .forward(&rows(6), 0.9)
        .unwrap()
        .outputs(&Wants::default())
        .unwrap()
        .logps;
    assert_eq!(theirs, logps(&load("llama3"), &rows(6)));
}

#[test]
fn adapters_in_bf16_are_near_those_in_f32() {
    let policy = trained("qwen3", 0.2).in_training(Dropout::of_step(1, 1));
    let half = trained("qwen3", 0.2)
        .with_dtype(DType::BF16)
        .in_training(Dropout::of_step(1, 1));
    let apart = logps(&policy, &rows(6))
        .iter()
        .zip(logps(&half, &rows(6)))
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart < 0.5, "{apart}");
    half.forward(&rows(6), 0.9)
        .unwrap()
        .backward(&d_logps())
        .unwrap();
}

#[test]
fn refuses_unsupported_settings_of_peft() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut Map<String, Value>)| {
        let golden = data("lora-golden/llama3");
        let mut json: Map<String, Value> = shared::json(&golden.join("adapter_config.json"));
        change(&mut json);
        fs::write(
            folder.path().join("adapter_config.json"),
            serde_json::to_vec(&json).unwrap(),
        )
        .unwrap();
        let weights = "adapter_model.safetensors";
        fs::copy(golden.join(weights), folder.path().join(weights)).unwrap();
        let error = open(folder.path())
            .err()
            .map(|error| format!("{error:#}").replace(folder.path().to_str().unwrap(), "DIR"));
        error.unwrap_or_else(|| "taken".to_owned())
    };
    let set = |key: &'static str, value: Value| {
        move |json: &mut Map<String, Value>| drop(json.insert(key.to_owned(), value.clone()))
    };
    assert_eq!(refused(&|_| ()), "taken");
    assert_eq!(refused(&set("peft_version", json!("0.5.0"))), "taken");
    let config = "cannot use `DIR/adapter_config.json`: ";
    let unsupported = "which an adapter cannot have here (use an adapter without it)";
    for (key, value, expected) in [
        ("use_dora", json!(true), format!("`use_dora` is `true`, {unsupported}")),
        ("modules_to_save", json!(["lm_head"]), format!("`modules_to_save` is `[\"lm_head\"]`, {unsupported}")),
        ("rank_pattern", json!({"q_proj": 2}), format!("`rank_pattern` is `{{\"q_proj\":2}}`, {unsupported}")),
        ("a_new_thing", json!(1), format!("`a_new_thing` is `1`, {unsupported}")),
        ("bias", json!("all"), "`bias` is `all`, but biases stay as they are (only `none` is supported; use another adapter)".into()),
        ("init_lora_weights", json!("pissa"), "`init_lora_weights` is `pissa`, which changes the base model too (convert it to a plain adapter with PEFT, or use another one)".into()),
        ("peft_type", json!("IA3"), "`peft_type` is `IA3`, only `LORA` is supported (use a LoRA adapter)".into()),
        ("r", json!(0), "`r` is `0`, expected 1 or more".into()),
        ("use_rslora", json!(1), "`use_rslora` is `1`, expected `true` or `false`".into()),
        ("lora_dropout", json!(1.0), "`lora_dropout` is 1, expected 0 or more and less than 1".into()),
    ] {
        assert_eq!(refused(&set(key, value)), format!("{config}{expected}"));
    }
    let weights = "cannot use `DIR/adapter_model.safetensors`: ";
    for (key, value, expected) in [
        (
            "r",
            json!(2),
            "tensor `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` has shape [3, 12], expected [2, 12] (weights, settings and base model must be those of one adapter)",
        ),
        (
            "target_modules",
            json!(["q_proj"]),
            "unexpected tensor `base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight` (weights, settings and base model must be those of one adapter)",
        ),
        (
            "target_modules",
            json!("all-linear"),
            "tensor `base_model.model.model.layers.0.mlp.down_proj.lora_A.weight` is missing (fetch the file again)",
        ),
    ] {
        assert_eq!(refused(&set(key, value)), format!("{weights}{expected}"));
    }
    let error = refused(&set("base_model_name_or_path", json!("nowhere")));
    assert!(
        error.starts_with(
            "cannot use the base model of `DIR/adapter_config.json`: no model `nowhere`"
        ),
        "{error}"
    );
    let error = refused(&set(
        "base_model_name_or_path",
        json!("tests/data/lora-golden/llama3"),
    ));
    assert!(
        error.ends_with("is an adapter itself (merge it with `host export`)"),
        "{error}"
    );
    let itself = set("base_model_name_or_path", json!(folder.path()));
    assert_eq!(
        refused(&itself),
        "cannot use the base model of `DIR/adapter_config.json`: `DIR` is the adapter's own folder, which has no `config.json` (write the model that it belongs to as `base_model_name_or_path`)"
    );
    for file in ["config.json", "model.safetensors"] {
        fs::copy(
            data("families-golden/llama3").join(file),
            folder.path().join(file),
        )
        .unwrap();
    }
    assert_eq!(refused(&itself), "taken");
}

#[test]
fn refuses_a_rank_that_does_not_fit_into_memory() {
    let huge = LoraConfig {
        r: 1 << 40,
        ..settings(0.0)
    };
    assert!(
        fresh("llama3", huge)
            .err()
            .unwrap()
            .to_string()
            .starts_with("an adapter of rank 1099511627776 takes ")
    );
}
