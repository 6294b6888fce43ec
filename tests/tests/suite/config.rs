//! Sentences about settings.

use insta::assert_snapshot;
use tests::Folder;

/// The sentence of `host train --config` on a file with this text.
fn refused_file(text: &str) -> String {
    let folder = Folder::new();
    folder.write("run.toml", text);
    folder.refused("train --config run.toml")
}

/// The sentences of the commands in `data/refused.txt`, each in a fresh folder.
#[test]
fn what_is_appended_joins_a_whole_list_that_is_set() {
    let args = "train --dry-run --plugin libmasks.so --set recipe=grpo --mask masks.random --set train.top_entropy_quantile=0.5";
    let said = Folder::new().said(&format!("{args} --set mask=[{{use=\"masks.truncated\"}}]"));
    assert!(said.contains("masks      masks.truncated, masks.entropy-quantile, masks.random\n"), "{said}");
}

#[test]
fn an_evaluation_needs_no_plugin_for_what_only_training_uses() {
    for set in ["train.mask_truncated_completions=true", "mask=[{use=\"masks.truncated\"}]"] {
        Folder::new().said(&format!("eval --num-prompts 4 --set {set}"));
    }
}

#[test]
fn a_run_of_as_many_steps_as_can_be_counted() {
    // As many steps as can be counted are no more than one can wait for.
    let endless = "--set train.max_steps=9223372036854775807 --set rollout.top_k=9223372036854775807";
    Folder::new().said(&format!("train {endless} --stop-after 1 --set eval.num_prompts=0"));
}

#[test]
fn config_files() {
    assert_snapshot!(refused_file("[train\nseed = 1"), @"`run.toml` is not TOML: line 1: unclosed table, expected `]`");
    assert_snapshot!(refused_file("train = 1"), @"`[model]` of `run.toml`: missing field `model_name_or_path` (configs/README.md lists every key)");
    assert_snapshot!(refused_file("[train]\nseed = 1\n"), @"`[model]` of `run.toml`: missing field `model_name_or_path` (configs/README.md lists every key)");
    assert_snapshot!(refused_file("[model]\nmodel_name_or_path = 1\n"), @"`[model]` of `run.toml`: invalid type: integer `1`, expected a string, in `model_name_or_path`");
    let folder = Folder::new();
    folder.write("binary.toml", [0xff, 0xfe]);
    assert_snapshot!(folder.refused("train --config binary.toml"), @"config `binary.toml` cannot be read: stream did not contain valid UTF-8");
}
