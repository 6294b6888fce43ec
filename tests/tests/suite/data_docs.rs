//! Every settings block of docs/data.md, in a folder with the datasets that it names.

use tests::artifacts::workspace;
use tests::{Folder, text_model};

/// Where the samples stand in for what a block names.
const FILES: [(&str, &str); 7] = [
    ("train.jsonl", "train.jsonl"),
    ("test.jsonl", "train.jsonl"),
    ("my-dataset", "saved"),
    ("math.parquet", "math-none.parquet"),
    ("extra.parquet", "math-zstd.parquet"),
    ("dapo.parquet", "verl.parquet"),
    ("hub/datasets--openai--gsm8k", "hub/datasets--made-up--gsm8k"),
];

#[test]
fn every_example_opens() {
    let samples = workspace().join("tests/data/datasets");
    let folder = Folder::new();
    text_model::write(&folder);
    std::fs::create_dir(folder.path().join("hub")).unwrap();
    for (name, sample) in FILES.into_iter().skip(2) {
        std::os::unix::fs::symlink(samples.join(sample), folder.path().join(name)).unwrap();
    }
    for (name, _) in &FILES[..2] {
        folder.write(name, "{\"prompt\": \"What is 1+1?\", \"answer\": 2}\n".repeat(8));
    }
    let cache = folder.path().join("hub");
    let folder = folder.env("HF_HUB_CACHE", cache);
    let text = std::fs::read_to_string(workspace().join("docs/data.md")).unwrap();
    let blocks: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split_once("```").expect("a block ends").0).collect();
    assert!(blocks.len() >= 6, "{} blocks", blocks.len());
    let rest = "[model]\nmodel_name_or_path = \"model\"\nfresh_weights = true\n[rollout]\nnum_generations = 2\nmax_completion_length = 8\n\
        [train]\nper_device_train_batch_size = 2\n[[reward]]\nuse = \"exact_match\"\n";
    for (index, block) in blocks.into_iter().enumerate() {
        folder.write("run.toml", format!("recipe = \"grpo\"\n{rest}{block}"));
        let outcome = folder.host("train --config run.toml --dry-run");
        assert_eq!(outcome.code, Some(0), "block {index}:\n{block}\n{}", outcome.stderr);
    }
}
