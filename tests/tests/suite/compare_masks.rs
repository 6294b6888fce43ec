//! `host compare-masks`: each mask alone over recorded batches, the numbers beside each other, thresholds for a target, the page.

use std::path::PathBuf;

use insta::assert_snapshot;
use serde_json::Value;
use tests::artifacts::{self, workspace};
use tests::run_dir::tensors;
use tests::{Folder, Outcome};

/// The four batch files of a reference case, as arguments.
fn batches(name: &str) -> String {
    let case = workspace().join("tests/data/replay").join(name);
    (0..4).map(|i| format!(" {}", case.join(format!("batch-{i:04}.safetensors")).display())).collect()
}

fn plugins(examples: &[&str]) -> String {
    let example = |name: &&str| format!(" --plugin {}", artifacts::example(name, "dev").display());
    format!("--plugin libcapo.so{}", examples.iter().map(example).collect::<String>())
}

/// What was said, without the last column of the first table: how long calls took.
fn without_times(outcome: Outcome) -> String {
    let said = outcome.succeeded().stdout;
    let mut in_table = false;
    let line = |line: &str| {
        in_table = (in_table || line.ends_with(" ms")) && !line.is_empty();
        let (kept, _) = if in_table { line.rsplit_once(' ').unwrap() } else { (line, "") };
        kept.trim_end().to_owned() + "\n"
    };
    said.lines().map(line).collect()
}

/// The same, with nothing of this machine's folders.
fn portable(said: &str) -> String {
    said.replace(&format!("{}/", workspace().display()), "")
}

#[test]
fn without_names_every_mask_that_can_run_does() {
    let folder = Folder::new();
    let masks = plugins(&["surprise-cap", "truncated", "top-entropy", "ratio-range", "probability-floor"]);
    let set = "--set mask.example.probability-floor.min_probability=0.05";
    let said = without_times(folder.host(&format!("compare-masks {masks} {set}{}", batches("paper-token-adam"))));
    assert_snapshot!(portable(&said), @"");
}

#[test]
fn a_target_is_searched_for_all_masks_at_once() {
    let folder = Folder::new();
    let (masks, batches) = (plugins(&["surprise-cap", "truncated", "probability-floor"]), batches("paper-token-adam"));
    let set =
        "--set mask.capo.curvature.hessian_threshold=false --set mask.example.probability-floor.min_probability=0.05";
    let compare = format!("compare-masks {masks} {set} --target-rate 10% --out all.json{batches}");
    let said = without_times(folder.host(&compare));
    assert_snapshot!(portable(&said), @"");
    // The value that is told is one that a replay rejects as much with.
    let all = json(&folder, "all.json");
    let found: Vec<&str> = said.lines().filter_map(|line| line.trim().strip_prefix("--set ")).collect();
    assert_eq!(found.len(), 2, "{said}");
    let surprise = found.iter().find(|set| set.contains("surprise-cap")).unwrap();
    let config = folder.write("one.toml", "[[mask]]\nuse = \"example.surprise-cap\"\n");
    let replay = format!("replay {masks} --config {config} --set {surprise} --out out{batches}");
    let _ = folder.host(&replay).succeeded();
    let dropped = |batch: &str| {
        let path = PathBuf::from(batch);
        let keep = &tensors(&folder.path().join("out").join(path.file_name().unwrap()))["keep"];
        let mask = &tensors(&path)["completion_mask"];
        keep.iter().zip(mask).filter(|(keep, mask)| keep != mask).count()
    };
    let count: usize = batches.split_whitespace().map(dropped).sum();
    let told = all["masks"].as_array().unwrap().iter().find(|mask| mask["name"] == "example.surprise-cap").unwrap();
    assert_eq!(told["rejected"], count);
    assert!(count > 0 && count <= 23, "{count} of 231 at 10%");
}

fn json(folder: &Folder, name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.path().join(name)).unwrap()).unwrap()
}

#[test]
fn a_component_may_stand_twice_and_what_is_set_stays() {
    let folder = Folder::new();
    let two = "[[mask]]\nuse = \"capo.curvature\"\n\n[[mask]]\nuse = \"capo.curvature\"\nfisher_threshold = 1e-3\n";
    let config = folder.write("two.toml", two);
    let args = format!("--plugin libcapo.so --config {config} --set mask.0.hessian_threshold=false --target-rate 20%");
    let compare = format!("compare-masks {args}{}", batches("paper-token-sgd"));
    let said = without_times(folder.host(&compare));
    assert_snapshot!(said, @"");
    assert_eq!(without_times(folder.host(&compare)), said, "the same inputs, the same words");
}

#[test]
fn a_mask_alone_rejects_what_it_did_in_the_run_that_recorded_the_batches() {
    let folder = Folder::new();
    let steps = "--set train.max_steps=3 --set eval.num_prompts=0 --set train.save_steps=0";
    let run = folder
        .train("run", &format!("--plugin libcapo.so {steps} --dump-batches dump --set mask.0.fisher_threshold=1e-5"));
    let batches = "dump/batch-000000.safetensors dump/batch-000001.safetensors dump/batch-000002.safetensors";
    let compare = format!("compare-masks --plugin libcapo.so --config run/config.toml --out all.json {batches}");
    let _ = folder.host(&compare).succeeded();
    let all = json(&folder, "all.json");
    let counts = run.metric("mask/rejection_rate").into_iter().zip(batches.split(' ')).map(|(rate, batch)| {
        rate * f64::from(tensors(&folder.path().join(batch))["completion_mask"].iter().sum::<f32>())
    });
    let count = counts.sum::<f64>().round();
    let mask = &all["masks"][0];
    assert!(count > 0.0 && mask["rejected"].as_f64() == Some(count), "{count}: {mask}");
    assert_eq!((&all["gradient"], &all["overlap"]), (&"last_layer".into(), &serde_json::json!([[1.0]])));
    let share = mask["gradient_share_removed"].as_f64().unwrap();
    assert!(share > 0.0 && share <= 1.0, "{share}");
}

#[test]
fn the_page_needs_nothing_else_and_holds_what_was_rejected() {
    let folder = Folder::new();
    let masks = plugins(&["surprise-cap"]);
    let compare = format!("compare-masks {masks} --target-rate 10% --out page.html{}", batches("paper-token-adam"));
    let _ = folder.host(&compare).succeeded();
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(!page.contains("http") && !page.contains("src=") && !page.contains("@import"), "it asks for something");
    for name in ["<th>capo.curvature</th>", "<th>example.surprise-cap</th>", "<th>2 example.surprise-cap</th>"] {
        assert!(page.contains(name), "{name}");
    }
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    let _ = folder.host(&compare.replace("page.html", "all.json")).succeeded();
    let all = json(&folder, "all.json");
    for mask in 0..2 {
        let length = |run: &Value| run[1].as_u64().unwrap();
        let completions = data["completions"].as_array().unwrap().iter();
        let shown: u64 = completions.flat_map(|c| c["rejected"][mask].as_array().unwrap()).map(length).sum();
        // There are fewer completions with a rejection than a page has room for.
        assert_eq!(shown, all["masks"][mask]["rejected"].as_u64().unwrap(), "mask {mask}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "two files, no half ones");
}

#[test]
fn what_is_wrong_is_a_sentence() {
    let folder = Folder::new();
    let batches = batches("paper-token-sgd");
    let refused = |args: &str| portable(&folder.host(&format!("compare-masks {args}{batches}")).refused());
    let examples = plugins(&["top-entropy", "surprise-cap"]);
    assert_snapshot!(refused(""), @"");
    assert_snapshot!(refused("--mask capo.curvature"), @"");
    assert_snapshot!(refused(&format!("{examples} --mask capo.curvatur")), @"");
    assert_snapshot!(refused(&format!("{examples} --mask example.top-entropy")), @"");
    assert_snapshot!(refused(&format!("{examples} --mask example.surprise-cap")), @"");
    assert_snapshot!(refused("--plugin libcapo.so --set mask.capo.curvature.fisher_treshold=1"), @"");
    assert_snapshot!(refused("--plugin libcapo.so --out table.txt"), @"");
    assert_snapshot!(refused("--plugin libcapo.so --out ."), @"");
    assert_snapshot!(refused("--plugin libcapo.so --target-rate 2"), @"");
    assert_snapshot!(refused("--plugin libcapo.so missing.safetensors"), @"");
    let alone = plugins(&["top-entropy"]).replace("--plugin libcapo.so ", "");
    assert_snapshot!(refused(&alone), @"");
    let first = |said: String| said.lines().take(2).collect::<Vec<_>>().join("\n");
    assert_snapshot!(first(folder.host("compare-masks --plugin libcapo.so").refused()), @"");
}
