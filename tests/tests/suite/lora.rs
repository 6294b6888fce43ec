//! Runs that train an adapter: `model.use_peft`.

use std::fs;

use insta::assert_snapshot;
use serde_json::Value;
use tests::artifacts::workspace;
use tests::{Folder, RunDir, names};

use crate::refused::assert_refused;
use crate::{FOUR_STEPS, FROM_THE_FIRST_STEP, ONE_STEP, split};

const LORA: &str = "--set model.use_peft=true";
const CAPO: &str = "--plugin libcapo.so";

fn adapter(run: &RunDir) -> Vec<f32> {
    run.tensors("adapter_model.safetensors")
        .into_values()
        .flatten()
        .collect()
}

fn apart(a: &RunDir, b: &RunDir) -> f32 {
    adapter(a)
        .iter()
        .zip(adapter(b))
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

#[test]
fn a_short_run_learns_and_prints_what_it_trains() {
    let folder = Folder::new();
    let args = "--set train.max_steps=30 --set train.learning_rate=3e-4 --set eval.num_prompts=128";
    let out = folder.said(&format!("train {CAPO} {LORA} {args} --output-dir run"));
    let line = |start: &str| {
        out.lines()
            .find(|line| line.starts_with(start))
            .unwrap_or_default()
            .to_owned()
    };
    assert_snapshot!(line("model "), @"model      embedded:tiny-arithmetic (125,376 parameters)");
    assert_snapshot!(line("lora "), @"lora       rank 16, alpha 32, dropout 0.05, of q_proj, v_proj; trainable 7,168 of 132,544");
    assert_snapshot!(line("head "), @"head       frozen; capo.curvature predicts the step that it would take if it were trained");
    let run = folder.run_dir("run");
    let accuracy = run.metric("eval_accuracy");
    assert!(accuracy[0] > 0.75, "from 0.51 to {accuracy:?}");
    let strict = format!(
        "{CAPO} {LORA} {FROM_THE_FIRST_STEP} {FOUR_STEPS} --set mask.0.fisher_threshold=1e-9"
    );
    let rejected = folder
        .train("strict", &strict)
        .metric("mask/rejection_rate");
    assert!(
        rejected.iter().all(|&rate| rate > 0.0 && rate < 1.0),
        "the mask has its say: {rejected:?}"
    );
    let no_mask = folder.said(&format!("train {LORA} {ONE_STEP} --output-dir plain"));
    assert!(!no_mask.contains("\nhead "), "nobody looks at the head");
}

#[test]
fn a_checkpoint_is_an_adapter_and_is_used_as_a_model() {
    let folder = Folder::new();
    let run = folder.train(
        "run",
        &format!("{LORA} --set model.lora_target_modules=all-linear {FOUR_STEPS}"),
    );
    let checkpoint = run.last_checkpoint();
    let expected = [
        "adapter_config.json",
        "adapter_model.safetensors",
        "base.json",
        "optimizer.safetensors",
        "tokenizer.json",
    ];
    let files = names(&checkpoint);
    assert!(
        expected.iter().all(|name| files.contains(*name)),
        "{files:?}"
    );
    assert!(
        !files.contains("model.safetensors") && !files.contains("config.json"),
        "the base is not copied"
    );
    let (trained, moments) = (
        run.tensors("adapter_model.safetensors"),
        fs::read(checkpoint.join("optimizer.safetensors")).unwrap(),
    );
    assert!(
        trained
            .keys()
            .all(|name| name.starts_with("base_model.model.model.layers.")
                && name.contains(".lora_"))
    );
    let numbers: usize = trained.values().map(Vec::len).sum();
    assert!(
        moments.len() < 9 * numbers,
        "two moments of what is trained, and of nothing else"
    );

    let model = checkpoint.display();
    let merged = format!("export --model {model} --out merged");
    let said = folder.said(&merged);
    assert_eq!(said, "125,376 parameters, the adapter merged: `merged`\n");
    assert_eq!(
        folder.refused(&merged),
        "`merged` exists already (choose another `--out`)"
    );
    assert!(names(&folder.path().join("merged")).contains("config.json"));
    folder.write(
        "rows.jsonl",
        "{\"prompt\": \"12+34=\", \"completion\": \"46\"}\n",
    );
    let scores = |model: &str| -> Vec<f64> {
        let out = folder.said(&format!("score --model {model} --input rows.jsonl --out -"));
        let line: Value = serde_json::from_str(out.trim()).unwrap();
        line["logps"]
            .as_array()
            .unwrap()
            .iter()
            .map(|logp| logp.as_f64().unwrap())
            .collect()
    };
    let (adapter, merged, base) = (
        scores(&model.to_string()),
        scores("merged"),
        scores("embedded:tiny-arithmetic"),
    );
    assert!(
        adapter
            .iter()
            .zip(&merged)
            .all(|(a, b)| (a - b).abs() < 1e-5),
        "{adapter:?} {merged:?}"
    );
    assert!(
        adapter.iter().zip(&base).any(|(a, b)| (a - b).abs() > 1e-4),
        "{adapter:?} {base:?}"
    );
    let eval = |model: &str| {
        let data = "--set data.dataset_name=embedded:arithmetic";
        folder.said(&format!("eval --model {model} --num-prompts 32 {data}"))
    };
    assert_eq!(eval(&model.to_string()), eval("merged"));
    let prompt = "--temperature 0 --max-completion-length 8 12+34=";
    let generate = |model: &str| folder.said(&format!("generate --model {model} {prompt}"));
    assert_eq!(generate(&model.to_string()), generate("merged"));

    // The adapter is also the start of another run, which trains it further.
    let more = folder.train(
        "more",
        &format!("--set model.model_name_or_path={model} {FROM_THE_FIRST_STEP} {ONE_STEP}"),
    );
    assert!(names(&more.last_checkpoint()).contains("adapter_model.safetensors"));
    let still = folder.train(
        "still",
        &format!("--set model.model_name_or_path={model} --set train.learning_rate=0 {ONE_STEP}"),
    );
    assert_eq!(apart(&run, &still), 0.0);
    assert!(apart(&run, &more) > 0.0);
}

/// A run with everything that a step can have: dropout, weight decay, clipping, two uses of a
/// rollout, a reference.
const ALL: [&str; 4] = [
    "--set train.weight_decay=0.1 --set train.max_grad_norm=0.01 --set train.gradient_checkpointing=true",
    "--plugin libcapo.so --set train.second_moment=kept_and_rejected --set mask.0.fisher_threshold=1e-6",
    "--set train.optimizer=sgd --set train.sgd_momentum=0.9 --set train.learning_rate=0.05 --set train.measure_step=1",
    "--set objective.beta=0.1 --set train.per_device_train_batch_size=24 --set train.num_iterations=2 --set train.save_steps=2",
];

#[test]
fn a_resumed_run_has_the_bits_of_an_uninterrupted_one() {
    for args in ALL {
        let args = format!("{LORA} {args} {FOUR_STEPS} --set model.lora_dropout=0.2");
        let folder = Folder::new();
        assert!(
            adapter(&folder.assert_resumes(&args, [2]))
                .iter()
                .all(|value| value.is_finite())
        );
    }
}

/// The state after a kill: everything after a checkpoint is lost.
#[test]
fn a_run_goes_on_from_an_older_checkpoint() {
    let folder = Folder::new();
    let args = format!("{CAPO} {LORA} {FOUR_STEPS} --set train.save_steps=1");
    let whole = folder.train("whole", &args);
    let killed = folder.train("killed", &args);
    for step in [3, 4] {
        fs::remove_dir_all(killed.path().join(format!("checkpoints/step-{step:06}"))).unwrap();
    }
    folder.resume("killed").assert_same_files(&whole);
}

#[test]
fn a_split_batch_is_the_whole_batch() {
    let folder = Folder::new();
    // Sampling and training differ only by dropout.
    let args =
        format!("{CAPO} {LORA} {FOUR_STEPS} --set rollout.temperature=1 --set model.lora_dropout");
    let (without, args) = (format!("{args}=0.0"), format!("{args}=0.3"));
    let whole = folder.train("whole", &args);
    for size in [16, 8] {
        let split = folder.train(&format!("split{size}"), &format!("{args} {}", split(size)));
        assert_eq!(
            whole.metric("mask/rejection_rate"),
            split.metric("mask/rejection_rate")
        );
        assert!(apart(&whole, &split) < 1e-5, "{:e}", apart(&whole, &split));
    }
    let other = folder.train("other", &without);
    assert!(apart(&whole, &other) > 1e-5, "dropout matters");
    // Completions are drawn without dropout, as the metrics of sampler and trainer show.
    let difference = |run: &RunDir| run.metric("sampling/sampling_logp_difference/mean");
    assert!(difference(&other).is_empty() && difference(&whole).iter().all(|&mean| mean > 0.0));
}

#[test]
fn a_step_is_measured_without_a_head() {
    let folder = Folder::new();
    let run = folder.train(
        "run",
        &format!("{LORA} {FROM_THE_FIRST_STEP} {FOUR_STEPS} --set train.measure_step=1"),
    );
    assert!(
        run.metric("step/kl")
            .iter()
            .chain(&run.metric("step/update_norm"))
            .all(|&value| value > 0.0)
    );
    for name in ["step/last_layer_kl", "step/unused_head_update"] {
        assert!(run.metric(name).is_empty(), "{name} is not a zero");
    }
    let governor = format!(
        "--plugin libgovernor.so {LORA} {FROM_THE_FIRST_STEP} {FOUR_STEPS} --set step_control.0.target=1e-9"
    );
    let governed = folder.train("governed", &governor);
    assert!(
        governed
            .metric("step_control/applied")
            .iter()
            .any(|&scale| scale < 1.0)
    );
}

#[test]
fn refuses_a_control_that_measures_the_head() {
    let folder = Folder::new();
    let control = "--plugin libmisbehave.so --set step_control=[{use=\"misbehave.control\",sin=\"measures\"}]";
    let sentence = folder
        .host(&format!(
            "train {control} {LORA} {FROM_THE_FIRST_STEP} {ONE_STEP}"
        ))
        .failed();
    assert_snapshot!(sentence, @"the run stopped after step 0 (go on with `host train --resume runs/grpo-seed42`): component `misbehave.control`: the head is not trained: `model.use_peft` trains an adapter below it, so a step does not change the head (measure the KL of the whole step)");
}

#[test]
fn refuses_impossible_settings() {
    let folder = Folder::new();
    let run = folder.train("run", &format!("{LORA} {ONE_STEP}"));
    fs::rename(run.last_checkpoint(), folder.path().join("adapter")).unwrap();
    assert_refused("lora", &folder);
}

/// A changed base model ends a resume, and every other use of the adapter.
#[test]
fn refuses_a_changed_base_model() {
    let folder = Folder::new();
    folder.said("export --model embedded:tiny-arithmetic --out base");
    let run = folder.train(
        "run",
        &format!("{LORA} --set model.model_name_or_path=base {FOUR_STEPS} --stop-after 2"),
    );
    let weights = folder.path().join("base/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    let resumed = folder.refused("train --resume run");
    let eval = format!("eval --model {}", run.last_checkpoint().display());
    let evaluated = folder.refused(&eval);
    assert_snapshot!(evaluated, @"the adapter was trained over another `model.safetensors` than `FOLDER/base` has now: SHA-256 HASH expected HASH (put the base model back, or start a run over the new one)");
    assert!(
        resumed.contains("checkpoints/step-000002` cannot be used: ")
            && resumed.ends_with(&evaluated),
        "{resumed}"
    );
    fs::remove_dir_all(folder.path().join("base")).unwrap();
    let gone = folder.refused(&eval);
    assert!(
        gone.starts_with("cannot use the base model of `") && gone.contains(": no model `"),
        "{gone}"
    );
}

/// Training continues an adapter that PEFT made.
#[test]
fn reads_an_adapter_of_peft() {
    let folder = Folder::new();
    let data = workspace().join("host/model/tests/data");
    let config = fs::read_to_string(data.join("lora-golden/llama3/adapter_config.json")).unwrap();
    let base = data.join("families-golden/llama3");
    let config = config.replace(
        "tests/data/families-golden/llama3",
        &base.display().to_string(),
    );
    folder.write("adapter/adapter_config.json", config);
    let weights = fs::read(data.join("lora-golden/llama3/adapter_model.safetensors")).unwrap();
    folder.write("adapter/adapter_model.safetensors", weights);
    folder.write(
        "rows.jsonl",
        "{\"prompt_ids\": [3, 4], \"completion_ids\": [5, 6]}\n",
    );
    let scores =
        |model: &str| folder.said(&format!("score --model {model} --input rows.jsonl --out -"));
    assert_ne!(scores("adapter"), scores(&base.display().to_string()));
    folder.said("export --model adapter --out merged");
}
