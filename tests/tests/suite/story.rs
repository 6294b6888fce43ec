//! From problem files to a page about runs: what somebody with a model and an evening does, with a tiny model of each family.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use serde_json::{Value, json};
use tests::artifacts::workspace;
use tests::{Folder, text_model};

use crate::interruption::wait_for;

const RUN: &str = r#"
recipe = "capo"

[model]
model_name_or_path = "model"
fresh_weights = true

[data]
format = "chat"
system_prompt = "Answer."
max_prompt_length = 400

[[data.datasets]]
path = "gsm8k.jsonl"
preset = "gsm8k"
weight = 1.0

[[data.datasets]]
path = "math.parquet"
preset = "math"
weight = 2.0

[rollout]
num_generations = 4
max_completion_length = 6

[train]
per_device_train_batch_size = 8
max_steps = 12
save_steps = 2
learning_rate = 1e-3

[eval]
eval_steps = 6
reward = "math"

[[eval.benchmark]]
name = "gsm8k"
file = "gsm8k.jsonl"
preset = "gsm8k"
samples = 2
temperature = 1.0

[[eval.benchmark]]
name = "math"
file = "math.parquet"
preset = "math"

[logging]
log_completions = true
log_tokens = true

[[reward]]
use = "math"
anchored = false

# What a model of random weights can earn.
[[reward]]
use = "regex"
pattern = "[!-O]"
weight = 0.5
"#;

/// Changes to the settings of the model that make it one of another family.
fn families() -> [(&'static str, Value); 4] {
    [
        ("qwen2", json!({})),
        ("qwen3", json!({"head_dim": 8, "architectures": ["Qwen3ForCausalLM"]})),
        ("llama", json!({"architectures": ["LlamaForCausalLM"]})),
        ("mistral", json!({"sliding_window": null, "architectures": ["MistralForCausalLM"]})),
    ]
}

fn folder(family: &str, changes: &Value) -> Folder {
    let folder = Folder::new();
    text_model::write(&folder);
    let path = folder.path().join("model/config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["model_type"] = json!(family);
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    folder.write("model/config.json", config.to_string());
    let samples = workspace().join("tests/data/datasets");
    let expected: Value = serde_json::from_slice(&std::fs::read(samples.join("expected.json")).unwrap()).unwrap();
    let rows: String = expected["gsm8k"].as_array().unwrap().iter().map(|row| format!("{row}\n")).collect();
    folder.write("gsm8k.jsonl", rows);
    folder.write("math.parquet", std::fs::read(samples.join("math-zstd.parquet")).unwrap());
    folder.write("run.toml", RUN);
    folder
}

#[test]
fn a_model_of_each_family_is_trained_killed_resumed_evaluated_and_shown() {
    for (family, changes) in families() {
        let folder = folder(family, &changes);
        let args = "--config run.toml --plugin libcapo.so";
        let whole = folder.train("whole", args);
        let killed = folder.run_dir("killed");
        let mut child =
            folder.command(&format!("train --output-dir killed {args}")).stdout(Stdio::null()).spawn().unwrap();
        wait_for(&mut child, &killed, 3);
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9), "{family}: killed, not finished");
        folder.resume("killed").assert_same_files(&whole);
        assert!(whole.metric("grad_norm").iter().any(|norm| *norm > 0.0), "{family}: nothing to learn");
        let last = whole.metrics().pop().unwrap();
        for name in
            ["rewards/math/mean", "rewards/regex/mean", "eval/TEST/pass@1", "eval/gsm8k/maj@2", "eval/math/pass@1"]
        {
            assert!(last.contains_key(name), "{family}: no `{name}`");
        }
        let model = "--model whole/checkpoints/step-000012 --set model.fresh_weights=false";
        let said = folder
            .host(&format!("eval --config run.toml --plugin libcapo.so {model} --output answers.jsonl"))
            .succeeded()
            .stdout;
        assert!(said.contains("gsm8k") && said.contains("TEST"), "{family}: {said}");
        let _ = folder.host("report whole killed --out report.html").succeeded();
        let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
        assert!(page.contains("capo.curvature") && page.contains("Reward: math"), "{family}");
        let _ = folder.host("export --model whole --out exported").succeeded();
        let exported: Value =
            serde_json::from_slice(&std::fs::read(folder.path().join("exported/config.json")).unwrap()).unwrap();
        assert_eq!(exported["model_type"], family);
    }
}
