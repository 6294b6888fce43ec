//! The settings of the paper's runs, opened against a folder that has the model's sizes and no
//! weights.

use tests::artifacts::workspace;
use tests::{Folder, names};

const RUNS: [(&str, &str); 7] = [
    ("grpo-standard", ""),
    ("grpo", ""),
    ("capo", "--plugin libcapo.so"),
    ("dr_grpo", ""),
    ("drcapo", "--plugin libdrcapo.so"),
    ("reinforce", ""),
    ("reincapo", "--plugin libreincapo.so"),
];

/// Qwen2.5-Math-7B's `config.json`.
const SIZES: &str = r#"{"model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 4096, "rope_theta": 10000, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 1}"#;

#[test]
fn every_run_opens_without_the_weights() {
    let folder = Folder::new();
    let golden = workspace().join("host/data/tests/data/chat-golden");
    folder.write("model/config.json", SIZES);
    folder.write(
        "model/tokenizer.json",
        std::fs::read(golden.join("tokenizer.json")).unwrap(),
    );
    folder.write(
        "model/tokenizer_config.json",
        std::fs::read(golden.join("chatml/tokenizer_config.json")).unwrap(),
    );
    folder.write(
        "math.jsonl",
        r#"{"problem": "What is $1+1$?", "solution": "It is \\boxed{2}.", "level": "Level 1"}"#,
    );
    let files = names(&workspace().join("configs/paper"))
        .into_iter()
        .filter(|name| name.ends_with(".toml"))
        .count();
    assert_eq!(files, RUNS.len());
    for (name, plugin) in RUNS {
        let config = workspace().join(format!("configs/paper/{name}.toml"));
        let overrides = "--set model.model_name_or_path=model --set data.dataset_name=math.jsonl";
        let outcome = folder
            .host(&format!(
                "train --config {} {plugin} {overrides} --dry-run",
                config.display()
            ))
            .succeeded();
        let says = |what: &str| {
            assert!(
                outcome.stdout.contains(what),
                "{name}: no `{what}` in\n{}",
                outcome.stdout
            )
        };
        says("model (7,615,616,512 parameters, counted: it has no weights)");
        says("memory     about ");
        says(if name == "grpo-standard" {
            "100 steps of 1152 completions"
        } else {
            "100 steps of 96 completions"
        });
        if !plugin.is_empty() {
            says(&format!("masks      {name}.curvature"));
        }
    }
}

/// The first line of a file says in what it differs from the file beside it.
#[test]
fn runs_differ_only_in_their_method() {
    let read = |name: &str| -> toml::Table {
        let text = tests::text(&workspace().join(format!("configs/paper/{name}.toml")));
        toml::from_str(&text).unwrap()
    };
    let shared = |name: &str| {
        let mut table = read(name);
        ["advantage", "objective", "mask"]
            .iter()
            .for_each(|key| drop(table.remove(*key)));
        table
    };
    for (name, _) in &RUNS[2..] {
        assert_eq!(shared(name), shared("grpo"), "{name}");
    }
    let mut standard = shared("grpo-standard");
    let train = standard["train"].as_table_mut().unwrap();
    assert_eq!(
        train.insert("learning_rate".into(), 1.5e-5.into()),
        Some(3e-6.into())
    );
    assert_eq!(
        train.insert("gradient_accumulation_steps".into(), 4.into()),
        Some(48.into())
    );
    assert!(
        standard["rollout"]
            .as_table_mut()
            .unwrap()
            .remove("max_num_seqs")
            .is_some()
    );
    assert_eq!(standard, shared("grpo"));
}
