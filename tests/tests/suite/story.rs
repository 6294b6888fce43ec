//! From problem files to a page about runs: the whole way of a user, with a tiny model of each
//! family.

use serde_json::{Value, json};
use tests::artifacts::workspace;
use tests::{Folder, text_model};

use crate::data::sample;
use crate::interruption::{kill, start, wait_for};

/// Changes to the model's configuration that turn it into a model of another family.
fn families() -> [(&'static str, Value); 4] {
    let linear = json!({"rope_type": "linear", "factor": 2.0});
    [
        ("qwen2", json!({})),
        (
            "qwen3",
            json!({"architectures": ["Qwen3ForCausalLM"], "head_dim": 4}),
        ),
        (
            "llama",
            json!({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": false, "num_hidden_layers": 2,
                "attention_bias": true, "mlp_bias": true}),
        ),
        (
            "mistral",
            json!({"architectures": ["MistralForCausalLM"], "tie_word_embeddings": false, "sliding_window": null,
                "head_dim": 6, "rope_parameters": linear}),
        ),
    ]
}

fn folder(family: &str, changes: &Value) -> Folder {
    let folder = Folder::new();
    text_model::write(&folder);
    let mut config = folder.json("model/config.json");
    config["model_type"] = json!(family);
    config
        .as_object_mut()
        .unwrap()
        .extend(changes.as_object().unwrap().clone());
    folder.write("model/config.json", config.to_string());
    folder.write("gsm8k.jsonl", sample("gsm8k"));
    let math = workspace().join("tests/data/datasets/math-zstd.parquet");
    folder.write("math.parquet", std::fs::read(math).unwrap());
    folder.write("run.toml", include_str!("../../data/story.toml"));
    folder
}

#[test]
fn a_model_of_each_family_is_trained_killed_resumed_evaluated_and_shown() {
    for (family, changes) in families() {
        let folder = folder(family, &changes);
        let args = "--config run.toml --plugin libcapo.so";
        let whole = folder.train("whole", args);
        let killed = folder.run_dir("killed");
        let mut child = start(&folder, &format!("train --output-dir killed {args}"));
        wait_for(&mut child, &killed, 3);
        kill(child);
        folder.resume("killed").assert_same_files(&whole);
        assert!(
            whole.metric("grad_norm").iter().any(|norm| *norm > 0.0),
            "{family}: nothing to learn"
        );
        let last = whole.metrics().pop().unwrap();
        for name in [
            "rewards/math/mean",
            "rewards/regex/mean",
            "eval/TEST/pass@1",
            "eval/gsm8k/maj@2",
            "eval/math/pass@1",
        ] {
            assert!(last.contains_key(name), "{family}: no `{name}`");
        }
        let model = "--model whole/checkpoints/step-000012 --set model.fresh_weights=false";
        let said = folder.said(&format!(
            "eval --config run.toml --plugin libcapo.so {model} --output answers.jsonl"
        ));
        assert!(
            said.contains("gsm8k") && said.contains("TEST"),
            "{family}: {said}"
        );
        folder.said("report whole killed --out report.html");
        let page = folder.text("report.html");
        assert!(
            page.contains("capo.curvature") && page.contains("Reward: math"),
            "{family}"
        );
        folder.said("export --model whole --out exported");
        assert_eq!(folder.json("exported/config.json")["model_type"], family);
    }
}
