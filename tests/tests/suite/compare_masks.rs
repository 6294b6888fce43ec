//! `host compare-masks`: each mask by itself on recorded batches, a table of their numbers, and
//! thresholds that meet a target.

use insta::assert_snapshot;
use tests::artifacts::{example, load_examples, workspace};
use tests::{Folder, Outcome};

use crate::refused::assert_refused;
use crate::replay::{
    batch_arguments as batches, dumped, rejected_by, tokens_and_dropped, with_case,
};

fn plugins() -> String {
    format!("--plugin libcapo.so{}", load_examples(&["surprise-cap"]))
}

/// The output without the last column of the first table, which holds the times of calls.
fn without_times(outcome: Outcome) -> String {
    let said = outcome.succeeded().stdout;
    let mut in_table = false;
    let line = |line: &str| {
        in_table = (in_table || line.ends_with(" ms")) && !line.is_empty();
        let (kept, _) = if in_table {
            line.rsplit_once(' ').unwrap()
        } else {
            (line, "")
        };
        kept.trim_end().to_owned() + "\n"
    };
    said.lines().map(line).collect()
}

/// The output with this machine's folders replaced.
fn portable(said: &str) -> String {
    said.replace(&format!("{}/", workspace().display()), "")
}

#[test]
fn compares_every_usable_mask_by_default() {
    let folder = Folder::new();
    let masks = format!("{} --plugin libmasks.so", plugins());
    let said = without_times(folder.host(&format!(
        "compare-masks {masks}{}",
        batches("paper-token-adam")
    )));
    let (compared, left_out) = said.split_once("\nleft out ").unwrap();
    assert_snapshot!(compared);
    let left_out = portable(left_out);
    let of = |mask: &str| left_out.lines().find(|line| line.contains(mask)).unwrap();
    assert_snapshot!(of("surprise-cap"), @r#"`example.surprise-cap`: `[[mask]]` with `use = "example.surprise-cap"`: key `max_nats` is missing"#);
    assert_snapshot!(of("entropy"), @"left out `masks.entropy-quantile`: batch file `tests/data/replay/paper-token-adam/batch-0000.safetensors`: component `masks.entropy-quantile` asks for `entropy`, which it does not hold (record batches in a run with this component)");
}

#[test]
fn searches_a_target_for_all_masks_at_once() {
    let folder = Folder::new();
    let masks = format!("{} --plugin libmisbehave.so", plugins());
    let (batches, set) = (
        batches("paper-token-adam"),
        "--set mask.capo.curvature.hessian_threshold=false",
    );
    let set = format!("{set} --set mask.misbehave.mask.sin=none");
    let compare = format!("compare-masks {masks} {set} --target-rate 10% --out all.json{batches}");
    let said = without_times(folder.host(&compare));
    assert_snapshot!(portable(&said));
    // A replay with the printed threshold rejects the printed share.
    let all = folder.json("all.json");
    let found: Vec<&str> = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("--set "))
        .collect();
    assert_eq!(found.len(), 2, "{said}");
    let surprise = found
        .iter()
        .find(|set| set.contains("surprise-cap"))
        .unwrap();
    let config = folder.write("one.toml", "[[mask]]\nuse = \"example.surprise-cap\"\n");
    let replay = format!("replay {masks} --config {config} --set {surprise} --out out{batches}");
    folder.said(&replay);
    let (_, count) = tokens_and_dropped(&folder, &batches, "out");
    let told = all["masks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|mask| mask["name"] == "example.surprise-cap")
        .unwrap();
    assert_eq!(told["rejected"].as_f64(), Some(count));
    assert!(count > 0.0 && count <= 23.0, "{count} of 231 at 10%");
}

#[test]
fn compares_a_component_twice_with_its_settings() {
    let folder = Folder::new();
    let two = "[[mask]]\nuse = \"capo.curvature\"\n\n[[mask]]\nuse = \"capo.curvature\"\nfisher_threshold = 1e-3\n";
    let config = folder.write("two.toml", two);
    let args = format!(
        "--plugin libcapo.so --config {config} --set mask.0.hessian_threshold=false --target-rate 20%"
    );
    let compare = format!("compare-masks {args}{}", batches("paper-token-sgd"));
    let said = without_times(folder.host(&compare));
    assert_snapshot!(said);
    assert_eq!(
        without_times(folder.host(&compare)),
        said,
        "the same inputs, the same words"
    );
}

#[test]
fn a_single_mask_rejects_the_same_tokens_as_in_its_run() {
    let folder = Folder::new();
    let steps = "--set train.max_steps=3 --set eval.num_prompts=0 --set train.save_steps=0";
    let run = folder.train(
        "run",
        &format!(
            "--plugin libcapo.so {steps} --dump-batches dump --set mask.0.fisher_threshold=1e-5"
        ),
    );
    let batches = dumped(3);
    let compare = format!(
        "compare-masks --plugin libcapo.so --config run/config.toml --out all.json{batches}"
    );
    folder.said(&compare);
    let all = folder.json("all.json");
    let count = rejected_by(&folder, &run, &batches);
    let mask = &all["masks"][0];
    assert!(
        count > 0.0 && mask["rejected"].as_f64() == Some(count),
        "{count}: {mask}"
    );
    assert_eq!(
        (&all["gradient"], &all["overlap"]),
        (&"last_layer".into(), &serde_json::json!([[1.0]]))
    );
    let share = mask["gradient_share_removed"].as_f64().unwrap();
    assert!(share > 0.0 && share <= 1.0, "{share}");
}

#[test]
fn refuses_bad_input() {
    let folder = with_case();
    std::os::unix::fs::symlink(
        example("surprise-cap", "dev"),
        folder.path().join("libsurprise.so"),
    )
    .unwrap();
    assert_refused("compare_masks", &folder);
}

#[test]
fn says_that_ratios_are_one_on_policy() {
    let folder = Folder::new();
    // Sampler and trainer compute the same distribution.
    let steps = "--set train.max_steps=1 --set eval.num_prompts=0 --set train.save_steps=0 --set rollout.temperature=1.0 \
        --set recipe=grpo --plugin libmasks.so --mask masks.icepop --dump-batches dump";
    folder.train("run", steps);
    let masks = "--mask masks.dppo-kl --mask masks.ratio-range --mask masks.trm --mask masks.probability-floor";
    let compare = format!(
        "compare-masks --plugin libmasks.so {masks} --target-rate 5% dump/batch-000000.safetensors"
    );
    let said = folder.said(&compare);
    for mask in ["masks.dppo-kl", "masks.ratio-range", "masks.trm"] {
        let row = said.lines().find(|line| line.contains(mask)).unwrap();
        assert!(
            row.contains("nothing*") && row.contains(" 0  0.00%"),
            "{row}"
        );
        let remark = format!(
            "* `{mask}`: it has nothing to act on: current and earlier log-probabilities differ by rounding, "
        );
        assert!(
            said.contains(&remark) && !said.contains(&format!("--set mask.{mask}")),
            "{said}"
        );
    }
    assert!(
        said.contains("--set mask.masks.probability-floor.min_probability="),
        "{said}"
    );
}
