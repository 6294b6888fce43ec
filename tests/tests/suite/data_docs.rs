//! Every settings block of docs/data.md, and the configs of other pages, in a folder with the
//! datasets that they name.

use serde_json::Value;
use tests::artifacts::workspace;
use tests::{Folder, text_model};

use crate::data::sample;

/// The samples that stand in for what a block names.
const SAMPLES: [(&str, &str); 5] = [
    ("my-dataset", "saved"),
    ("math.parquet", "math-none.parquet"),
    ("extra.parquet", "math-zstd.parquet"),
    ("dapo.parquet", "verl.parquet"),
    (
        "hub/datasets--openai--gsm8k",
        "hub/datasets--made-up--gsm8k",
    ),
];

/// A folder with the model.
fn folder() -> Folder {
    let folder = Folder::new();
    text_model::write(&folder);
    folder
}

#[test]
fn every_example_opens() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("hub")).unwrap();
    for (name, sample) in SAMPLES {
        let sample = workspace().join("tests/data/datasets").join(sample);
        std::os::unix::fs::symlink(sample, folder.path().join(name)).unwrap();
    }
    for name in ["train.jsonl", "test.jsonl"] {
        folder.write(
            name,
            "{\"prompt\": \"What is 1+1?\", \"answer\": 2}\n".repeat(8),
        );
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
        assert_eq!(
            outcome.code,
            Some(0),
            "block {index}:\n{block}\n{}",
            outcome.stderr
        );
    }
}

/// Settings in place of a model that is not here.
const MODEL: &str = "--set model={model_name_or_path=\"model\",fresh_weights=true} --set data.max_prompt_length=600";

/// The settings blocks of a page.
fn blocks(page: &str) -> Vec<String> {
    let text = tests::text(&workspace().join(page));
    let block = |rest: &str| rest.split_once("```").expect("a block ends").0.to_owned();
    text.split("```toml\n").skip(1).map(block).collect()
}

#[test]
fn the_configs_of_other_pages_open() {
    let folder = folder();
    folder.write("train.jsonl", sample("gsm8k"));
    folder.write("test.jsonl", sample("gsm8k"));
    let math = workspace().join("tests/data/datasets/math-none.parquet");
    folder.write("math.parquet", std::fs::read(math).unwrap());
    let cases = [
        (
            "README.md",
            "--plugin libgovernor.so --set eval.num_prompts=2 --set rollout.max_completion_length=8",
        ),
        (
            "docs/from-trl.md",
            "--set data.dataset_name=math.parquet --set rollout.max_completion_length=8",
        ),
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
    let folder = folder();
    for file in ["problems.jsonl", "aime24.jsonl", "amc23.jsonl"] {
        folder.write(file, "{\"problem\": \"1+1?\", \"answer\": \"2\"}\n");
    }
    let blocks = blocks("docs/evaluation.md");
    assert!(blocks.len() >= 2, "{}", blocks.len());
    let run = "recipe = \"grpo\"\n[data]\ndataset_name = \"problems.jsonl\"\npreset = \"math\"\n[[reward]]\nuse = \"exact_match\"\n";
    // The tiny model has 1,024 positions.
    folder.write(
        "run.toml",
        format!("{run}{}", blocks.concat().replace("3000", "300")),
    );
    folder.said(&format!("train --config run.toml {MODEL} --dry-run"));
    folder.write("amc23.jsonl", "{\"question\": \"1+1?\"}\n");
    let sentence = folder.refused(&format!("train --config run.toml {MODEL} --dry-run"));
    assert!(
        sentence.contains("amc23"),
        "benchmarks are opened: {sentence}"
    );
}

#[test]
fn the_papers_benchmarks_open() {
    let folder = folder();
    folder.write("gsm8k.jsonl", sample("gsm8k").lines().next().unwrap());
    folder.write("math.jsonl", "{\"problem\": \"1+1?\", \"answer\": \"2\"}\n");
    let choices = [
        "Correct Answer",
        "Incorrect Answer 1",
        "Incorrect Answer 2",
        "Incorrect Answer 3",
    ];
    let row = choices
        .into_iter()
        .chain(["Question"])
        .map(|column| (column.to_owned(), Value::from(column)));
    folder.write("gpqa.jsonl", Value::from_iter(row).to_string());
    // The tables of the file, each with a file of one row.
    let text = tests::text(&workspace().join("configs/eval/benchmarks.toml"));
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
        ["config", "split"]
            .iter()
            .for_each(|key| drop(benchmark.remove(*key)));
    }
    folder.write("run.toml", toml::to_string(&config).unwrap());
    let short = "--config run.toml --set rollout.max_completion_length=4";
    folder.train(
        "run",
        &format!("{short} {MODEL} --set train.max_steps=1 --set eval.num_prompts=0"),
    );
    let model = "--set data.max_prompt_length=600 --model run/checkpoints/step-000001";
    let said = folder.said(&format!("eval {short} {model}"));
    assert_eq!(
        said.lines().filter(|line| line.contains("pass@1")).count(),
        9,
        "{said}"
    );
}
