//! Settings, and error messages about them.

use tests::Folder;

use crate::refused::assert_refused;

#[test]
fn appends_to_a_list_that_is_set_as_a_whole() {
    let args = "train --dry-run --plugin libmasks.so --set recipe=grpo --mask masks.random --set train.top_entropy_quantile=0.5";
    let said = Folder::new().said(&format!("{args} --set mask=[{{use=\"masks.truncated\"}}]"));
    assert!(
        said.contains("masks      masks.truncated, masks.entropy-quantile, masks.random\n"),
        "{said}"
    );
}

#[test]
fn evaluates_without_plugins_that_only_training_uses() {
    for set in [
        "train.mask_truncated_completions=true",
        "mask=[{use=\"masks.truncated\"}]",
    ] {
        Folder::new().said(&format!("eval --num-prompts 4 --set {set}"));
    }
}

#[test]
fn accepts_the_largest_number_of_steps() {
    // A huge number of steps is accepted: the run would only take long.
    let endless =
        "--set train.max_steps=9223372036854775807 --set rollout.top_k=9223372036854775807";
    Folder::new().said(&format!(
        "train {endless} --stop-after 1 --set eval.num_prompts=0"
    ));
}

#[test]
fn refuses_bad_config_files() {
    let folder = Folder::new();
    folder.write("torn.toml", "[train\nseed = 1");
    folder.write("value.toml", "train = 1");
    folder.write("part.toml", "[train]\nseed = 1\n");
    folder.write("number.toml", "[model]\nmodel_name_or_path = 1\n");
    folder.write("binary.toml", [0xff, 0xfe]);
    assert_refused("config_files", &folder);
}
