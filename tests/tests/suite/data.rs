//! Datasets as users bring them along: tables, saved folders, the Hub's cache, several at once.

use insta::assert_snapshot;
use serde_json::Value;
use tests::artifacts::workspace;
use tests::{Folder, text_model};

const STEPS: &str = "--set train.max_steps=2 --set eval.num_prompts=0 --set train.per_device_train_batch_size=16";

/// A folder with the samples in `samples`.
fn folder() -> Folder {
    let folder = Folder::new();
    std::os::unix::fs::symlink(workspace().join("tests/data/datasets"), folder.path().join("samples")).unwrap();
    folder
}

/// The header's line about the data, of a run that is not started.
fn data_line(folder: &Folder, args: &str) -> String {
    let said = folder.host(&format!("train --dry-run --set eval.num_prompts=0 {args}")).succeeded().stdout;
    said.lines().find(|line| line.starts_with("data ")).unwrap().to_owned()
}

/// The rows that are saved in `samples/saved/train`, as JSON lines.
fn rows() -> String {
    let expected = std::fs::read(workspace().join("tests/data/datasets/expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    expected["train"].as_array().unwrap().iter().map(|row| format!("{row}\n")).collect()
}

#[test]
fn rows_are_the_same_in_whatever_file() {
    let folder = folder();
    folder.write("train.jsonl", rows());
    let train = |name: &str, data: &str| folder.train(name, &format!("{STEPS} {data}")).weights();
    let lines = train("lines", "--set data.dataset_name=train.jsonl");
    let saved = "--set data.dataset_name=samples/saved";
    assert_eq!(train("saved", saved), lines);
    assert_eq!(train("sharded", "--set data.dataset_name=samples/sharded"), lines);
    let held_out = "--set data.dataset_test_split=test --set eval.num_prompts=8 --set train.max_steps=1";
    let _ = folder.train("held-out", &format!("{STEPS} {saved} {held_out}"));
    let other = folder.host(&format!("train {STEPS} {saved} --set data.dataset_train_split=dev")).refused();
    assert_snapshot!(other, @"`FOLDER/samples/saved` has no split `dev` (it has `test`, `train`)");
}

#[test]
fn a_cached_dataset_goes_by_its_id() {
    let folder = folder();
    text_model::write(&folder);
    let cache = folder.path().join("samples/hub");
    let folder = folder.env("HF_HUB_CACHE", cache);
    let settings = text_model::SETTINGS;
    let data = "--set data.dataset_name=made-up/gsm8k --set data.preset=gsm8k";
    let several = folder.host(&format!("train {settings} {data}")).refused();
    assert_snapshot!(several, @"`FOLDER/samples/hub/datasets--made-up--gsm8k/snapshots/0123456789abcdef` has several configurations: `main`, `socratic` (choose one with `dataset_config`)");
    let main = format!("{settings} {data} --set data.dataset_config=main --set data.dataset_test_split=test");
    let run = folder.train(
        "run",
        &format!("{main} --set train.max_steps=1 --set eval.num_prompts=2 --set logging.log_completions=true"),
    );
    let first = &folder.json_lines("run/completions.jsonl")[0];
    let prompt = first["prompt"].as_str().unwrap();
    assert!(
        prompt.ends_with("How many has she? Let's think step by step and output the final answer after \"####\"."),
        "{prompt}"
    );
    assert!(first["answer"].as_str().unwrap().parse::<u32>().is_ok(), "{first}");
    // The run keeps what the id meant.
    let config = std::fs::read_to_string(run.path().join("config.toml")).unwrap();
    assert!(config.contains("snapshots/0123456789abcdef\""), "{config}");
    let absent = folder.host("train --set data.dataset_name=made-up/other").refused();
    assert_snapshot!(absent, @"no dataset `made-up/other`: neither an embedded one, nor a file or folder, nor in the Hub's cache (embedded: `embedded:arithmetic`; fetch one with `hf download --repo-type dataset OWNER/NAME`)");
}

#[test]
fn what_is_left_out_is_counted() {
    let folder = folder();
    let long = format!("{{\"prompt\": \"{}=\", \"answer\": 1, \"level\": 0}}\n", "1".repeat(40));
    folder.write("train.jsonl", rows() + &long + &long);
    let data = "--set data.dataset_name=train.jsonl";
    assert_snapshot!(folder.host(&format!("train {data}")).refused(), @"bad row at line 25 of `FOLDER/train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): a prompt has 41 tokens, `data.max_prompt_length` is 16 (raise it, or shorten the prompt `1111111111111111111111111111111111111111=`)");
    assert_snapshot!(data_line(&folder, &format!("{data} --set data.filter_overlong_prompts=true")), @"data       FOLDER/train.jsonl (24 rows, 2 too long)");
    let all = "--set data.filter_overlong_prompts=true --set data.filter={level=[0,2]} --set data.max_train_samples=5";
    assert_snapshot!(data_line(&folder, &format!("{data} {all}")), @"data       FOLDER/train.jsonl (5 rows, 2 too long; 8 filtered out; 11 not sampled)");
    assert_snapshot!(folder.host(&format!("train {data} --set data.filter={{level=7}}")).refused(), @"`FOLDER/train.jsonl` holds no rows but 26 that `filter` leaves out (widen `filter`)");
    assert_snapshot!(folder.host(&format!("train {data} --set data.filter={{grade=7}}")).refused(), @"bad row at line 1 of `FOLDER/train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): no column `grade`, which `filter` asks for");
}

#[test]
fn a_mixture_goes_on_after_a_kill() {
    let folder = folder();
    let data = "--set data={datasets=[{path=\"samples/saved\",weight=3},{path=\"samples/saved\",split=\"test\",weight=1.5}],max_prompt_length=16}";
    assert_snapshot!(data_line(&folder, data), @"data       FOLDER/samples/saved (24 rows); FOLDER/samples/saved, test (8 rows)");
    folder.assert_resumes(&format!("{data} {STEPS} --set train.max_steps=5"), [2]);
    let one = "--set data={datasets=[{path=\"samples/saved\",weight=3},{path=\"samples/saved\"}]}";
    assert_snapshot!(folder.host(&format!("train {one}")).refused(), @"the settings of the default config and `--set` do not fit together: 1 of 2 `[[data.datasets]]` have a `weight` (give each one, or none)");
}

#[test]
fn a_run_does_not_go_on_with_other_rows() {
    let folder = folder();
    folder.write("train.jsonl", rows());
    let args = format!("{STEPS} --set data.dataset_name=train.jsonl --set train.max_steps=3");
    let _ = folder.train("run", &format!("{args} --stop-after 2"));
    folder.write("train.jsonl", rows().replace("\"answer\":300", "\"answer\":301"));
    assert_snapshot!(folder.host("train --resume run").refused(), @"the training data are not those that the checkpoint of step 2 was made with: FOLDER/train.jsonl (24 rows) (put them back, or take them with `--allow-changed-config`)");
    let said = folder.host("train --resume run --allow-changed-config").succeeded().stdout;
    let changed = said.lines().find(|line| line.starts_with("changed ")).unwrap();
    assert_snapshot!(changed, @"changed    the training data: FOLDER/train.jsonl (24 rows)");
}

#[test]
fn a_run_is_not_measured_on_other_rows_than_before() {
    let folder = folder();
    let others = || rows().replace("\"answer\":300", "\"answer\":301");
    for name in ["train", "eval", "bench"] {
        folder.write(&format!("{name}.jsonl"), rows());
    }
    let measured = "--set data.eval_dataset_name=eval.jsonl --set eval.num_prompts=4 \
        --set eval.benchmark=[{name=\"bench\",file=\"bench.jsonl\",max_prompts=4}]";
    let steps = STEPS.replace("--set eval.num_prompts=0", "");
    let args = format!("{steps} {measured} --set data.dataset_name=train.jsonl --set train.max_steps=3");
    let _ = folder.train("run", &format!("{args} --stop-after 2"));
    folder.write("eval.jsonl", others());
    assert_snapshot!(folder.host("train --resume run").refused(), @"the held-out rows are not those that the checkpoint of step 2 was made with (put them back, or take them with `--allow-changed-config`)");
    folder.write("eval.jsonl", rows());
    folder.write("bench.jsonl", others());
    assert_snapshot!(folder.host("train --resume run").refused(), @"the rows of benchmark `bench` are not those that the checkpoint of step 2 was made with (put them back, or take them with `--allow-changed-config`)");
    let said = folder.host("train --resume run --allow-changed-config").succeeded().stdout;
    let changed = said.lines().find(|line| line.starts_with("changed ")).unwrap();
    assert_snapshot!(changed, @"changed    the rows of benchmark `bench`");
}

#[test]
fn settings_of_data_that_silence_one_another() {
    let folder = folder();
    let refused = |data: &str| folder.host(&format!("train {data}")).refused();
    assert_snapshot!(refused("--set data.preset=math"), @"the settings of `--set` do not fit together: `data.preset` is set, but dataset `embedded:arithmetic` is made, not read (remove it)");
    assert_snapshot!(refused("--set data={dataset_name=\"samples/math-none.parquet\",preset=\"math\",prompt_column=\"q\"}"), @"the settings of `--set` do not fit together: `data.prompt_column` is `q`, but a `preset` says what the columns are (remove one of them)");
    assert_snapshot!(refused("--set data={dataset_name=\"a\",datasets=[{path=\"b\"}]}"), @"the settings of the default config and `--set data` do not fit together: `data.dataset_name` is set, but `[[data.datasets]]` name the data (remove one of them)");
    assert_snapshot!(refused("--set data={dataset_name=\"a\",prompt_template=\"think:\"}"), @"the settings of the default config and `--set` do not fit together: `prompt_template` is `think:`, which has no place for the prompt (write `{prompt}` where it goes)");
    assert_snapshot!(refused("--set data={}"), @"the settings of `--set` do not fit together: `data.dataset_name` is missing (name a file, a folder, a dataset in the Hub's cache, or `embedded:arithmetic`)");
    assert_snapshot!(refused("--set data={dataset_name=\"samples/math-none.parquet\",max_prompt_length=16}"), @"bad row 1 of `FOLDER/samples/math-none.parquet` (mend it, or set `data.on_bad_row` to `skip`): no column `prompt` (columns of this row: `level`, `problem`, `solution`, `type`)");
    assert_snapshot!(refused("--set data={dataset_name=\"samples\",max_prompt_length=16}"), @"bad row 1 of `FOLDER/samples/math-file.arrow` (mend it, or set `data.on_bad_row` to `skip`): no column `prompt` (columns of this row: `level`, `problem`, `solution`, `type`)");
}
