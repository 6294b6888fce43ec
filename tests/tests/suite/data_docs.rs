//! Every settings block of docs/data.md, and the configs of other pages, in a folder with the datasets that they name.

use serde_json::Value;
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
    let blocks = blocks("docs/data.md");
    assert!(blocks.len() >= 6, "{} blocks", blocks.len());
    let rest = "[model]\nmodel_name_or_path = \"model\"\nfresh_weights = true\n[rollout]\nnum_generations = 2\nmax_completion_length = 8\n\
        [train]\nper_device_train_batch_size = 2\n[[reward]]\nuse = \"exact_match\"\n";
    for (index, block) in blocks.into_iter().enumerate() {
        folder.write("run.toml", format!("recipe = \"grpo\"\n{rest}{block}"));
        let outcome = folder.host("train --config run.toml --dry-run");
        assert_eq!(outcome.code, Some(0), "block {index}:\n{block}\n{}", outcome.stderr);
    }
}

/// Settings in place of those that a block names and that are not here: the model, and the dataset where it is on the
/// Hub.
const MODEL: &str = "--set model={model_name_or_path=\"model\",fresh_weights=true} --set data.max_prompt_length=600";

/// The settings blocks of a page.
fn blocks(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(workspace().join(page)).unwrap();
    let block = |rest: &str| rest.split_once("```").expect("a block ends").0.to_owned();
    text.split("```toml\n").skip(1).map(block).collect()
}

/// The model, and rows with the columns of GSM8K.
fn with_rows() -> (Folder, Vec<String>) {
    let folder = Folder::new();
    text_model::write(&folder);
    let path = workspace().join("tests/data/datasets/expected.json");
    let expected: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    (folder, expected["gsm8k"].as_array().unwrap().iter().map(|row| format!("{row}\n")).collect())
}

#[test]
fn the_configs_of_other_pages_open() {
    let (folder, rows) = with_rows();
    folder.write("train.jsonl", rows.concat());
    folder.write("test.jsonl", rows.concat());
    let math = workspace().join("tests/data/datasets/math-none.parquet");
    folder.write("math.parquet", std::fs::read(math).unwrap());
    let cases = [
        ("README.md", "--plugin libcapo.so --set eval.num_prompts=2 --set rollout.max_completion_length=8"),
        ("docs/from-trl.md", "--set data.dataset_name=math.parquet --set rollout.max_completion_length=8"),
    ];
    for (page, args) in cases {
        folder.write("run.toml", &blocks(page)[0]);
        let outcome = folder.host(&format!("train --config run.toml {MODEL} {args} --dry-run"));
        assert_eq!(outcome.code, Some(0), "{page}:\n{}", outcome.stderr);
    }
}

/// Settings that docs/evaluation.md adds to a run.
#[test]
fn the_settings_of_evaluation_open() {
    let folder = Folder::new();
    text_model::write(&folder);
    for file in ["problems.jsonl", "aime24.jsonl", "amc23.jsonl"] {
        folder.write(file, "{\"problem\": \"1+1?\", \"answer\": \"2\"}\n");
    }
    let blocks = blocks("docs/evaluation.md");
    assert!(blocks.len() >= 2, "{}", blocks.len());
    let run = "recipe = \"grpo\"\n[data]\ndataset_name = \"problems.jsonl\"\npreset = \"math\"\n[[reward]]\nuse = \"exact_match\"\n";
    // The tiny model has 1,024 positions.
    folder.write("run.toml", format!("{run}{}", blocks.concat().replace("3000", "300")));
    let outcome = folder.host(&format!("train --config run.toml {MODEL} --dry-run"));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    folder.write("amc23.jsonl", "{\"question\": \"1+1?\"}\n");
    let sentence = folder.host(&format!("train --config run.toml {MODEL} --dry-run")).refused();
    assert!(sentence.contains("amc23"), "benchmarks are opened: {sentence}");
}

#[test]
fn the_papers_benchmarks_open() {
    let (folder, rows) = with_rows();
    folder.write("gsm8k.jsonl", &rows[0]);
    folder.write("math.jsonl", "{\"problem\": \"1+1?\", \"answer\": \"2\"}\n");
    let choices = ["Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"];
    let mut row = serde_json::Map::from_iter([("Question".to_owned(), Value::from("Which?"))]);
    row.extend(choices.map(|choice| (choice.to_owned(), Value::from(choice))));
    folder.write("gpqa.jsonl", format!("{}\n", Value::Object(row)));
    // The tables of the file, each with a file of one row.
    let text = std::fs::read_to_string(workspace().join("configs/eval/benchmarks.toml")).unwrap();
    let mut config: toml::Table = toml::from_str(&text).unwrap();
    let data = config["data"].as_table_mut().unwrap();
    data.insert("dataset_name".into(), "gsm8k.jsonl".into());
    data.remove("dataset_config");
    let benchmarks = config["eval"]["benchmark"].as_array_mut().unwrap();
    assert_eq!(benchmarks.len(), 8);
    for benchmark in benchmarks {
        let benchmark = benchmark.as_table_mut().unwrap();
        let file = format!("{}.jsonl", benchmark["preset"].as_str().unwrap());
        benchmark.insert("file".into(), file.into());
        ["config", "split"].iter().for_each(|key| drop(benchmark.remove(*key)));
    }
    folder.write("run.toml", toml::to_string(&config).unwrap());
    let short = "--config run.toml --set rollout.max_completion_length=4";
    let _ = folder.train("run", &format!("{short} {MODEL} --set train.max_steps=1 --set eval.num_prompts=0"));
    let outcome =
        folder.host(&format!("eval {short} --set data.max_prompt_length=600 --model run/checkpoints/step-000001"));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout.lines().filter(|line| line.contains("pass@1")).count(), 9, "{}", outcome.stdout);
}
