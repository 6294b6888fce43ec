//! Datasets of users: tables, saved folders, the Hub's cache, several at once, and rows that no run
//! can use.

use insta::assert_snapshot;
use serde_json::{Value, json};
use tests::artifacts::workspace;
use tests::{Folder, text_model, to_json_lines};

use crate::refused::assert_refused;

const STEPS: &str =
    "--set train.max_steps=2 --set eval.num_prompts=0 --set train.per_device_train_batch_size=16";

/// A folder with the samples in `samples`.
fn folder() -> Folder {
    let folder = Folder::new();
    std::os::unix::fs::symlink(
        workspace().join("tests/data/datasets"),
        folder.path().join("samples"),
    )
    .unwrap();
    folder
}

/// The line about the data in the header of a dry run.
fn data_line(folder: &Folder, args: &str) -> String {
    let said = folder.said(&format!("train --dry-run --set eval.num_prompts=0 {args}"));
    said.lines()
        .find(|line| line.starts_with("data "))
        .unwrap()
        .to_owned()
}

/// Rows of the dataset `name` among those that are saved in `samples`, as JSON lines.
pub fn sample(name: &str) -> String {
    let mut expected: Value = tests::json(&workspace().join("tests/data/datasets/expected.json"));
    to_json_lines(serde_json::from_value::<Vec<Value>>(expected[name].take()).unwrap())
}

/// The rows that are saved in `samples/saved/train`.
fn rows() -> String {
    sample("train")
}

#[test]
fn reads_the_same_rows_from_every_format() {
    let folder = folder();
    folder.write("train.jsonl", rows());
    let train = |name: &str, data: &str| folder.train(name, &format!("{STEPS} {data}")).weights();
    let lines = train("lines", "--set data.dataset_name=train.jsonl");
    let saved = "--set data.dataset_name=samples/saved";
    assert_eq!(train("saved", saved), lines);
    assert_eq!(
        train("sharded", "--set data.dataset_name=samples/sharded"),
        lines
    );
    let held_out =
        "--set data.dataset_test_split=test --set eval.num_prompts=8 --set train.max_steps=1";
    folder.train("held-out", &format!("{STEPS} {saved} {held_out}"));
    let other = folder.refused(&format!(
        "train {STEPS} {saved} --set data.dataset_train_split=dev"
    ));
    assert_snapshot!(other, @"`FOLDER/samples/saved` has no split `dev` (it has `test`, `train`)");
}

#[test]
fn finds_a_cached_dataset_by_its_id() {
    let folder = folder();
    text_model::write(&folder);
    let cache = folder.path().join("samples/hub");
    let folder = folder.env("HF_HUB_CACHE", cache);
    let settings = text_model::SETTINGS;
    let data = "--set data.dataset_name=made-up/gsm8k --set data.preset=gsm8k";
    let several = folder.refused(&format!("train {settings} {data}"));
    assert_snapshot!(several, @"`FOLDER/samples/hub/datasets--made-up--gsm8k/snapshots/0123456789abcdef` has several configurations: `main`, `socratic` (choose one with `data.dataset_config`)");
    let main = format!("{data} --set data.dataset_config=main");
    for (args, key) in [
        (
            "--set data={datasets=[{path=\"made-up/gsm8k\"}],preset=\"gsm8k\"}",
            "`name` in its table of `[[data.datasets]]`",
        ),
        (
            &format!("{main} --set data.eval_dataset_name=made-up/gsm8k --set eval.num_prompts=2"),
            "the path of its folder as `data.eval_dataset_name`",
        ),
        (
            &format!("{main} --set eval.benchmark=[{{name=\"b\",file=\"made-up/gsm8k\"}}]"),
            "`config` in a table of `[[eval.benchmark]]`",
        ),
    ] {
        let refused = folder.refused(&format!("train {settings} --set eval.num_prompts=0 {args}"));
        assert!(
            refused.ends_with(&format!("(choose one with {key})")),
            "{refused}"
        );
    }
    let main = format!(
        "{settings} {data} --set data.dataset_config=main --set data.dataset_test_split=test"
    );
    let run = folder.train(
        "run",
        &format!("{main} --set train.max_steps=1 --set eval.num_prompts=2 --set logging.log_completions=true"),
    );
    let first = &folder.json_lines("run/completions.jsonl")[0];
    let prompt = first["prompt"].as_str().unwrap();
    assert!(
        prompt.ends_with(
            "How many has she? Let's think step by step and output the final answer after \"####\"."
        ),
        "{prompt}"
    );
    assert!(
        first["answer"].as_str().unwrap().parse::<u32>().is_ok(),
        "{first}"
    );
    // The run keeps the path for which the id stood.
    let config = run.text("config.toml");
    assert!(config.contains("snapshots/0123456789abcdef\""), "{config}");
    let absent = folder.refused("train --set data.dataset_name=made-up/other");
    assert_snapshot!(absent, @"no dataset `made-up/other`: neither an embedded one, nor a file or folder, nor in the Hub's cache (embedded: `embedded:arithmetic`; fetch one with `hf download --repo-type dataset OWNER/NAME`)");
}

#[test]
fn counts_rows_that_are_left_out() {
    let folder = folder();
    let long = format!(
        "{{\"prompt\": \"{}=\", \"answer\": 1, \"level\": 0}}\n",
        "1".repeat(40)
    );
    folder.write("train.jsonl", rows() + &long + &long);
    let data = "--set data.dataset_name=train.jsonl";
    assert_snapshot!(folder.refused(&format!("train {data}")), @"bad row at line 25 of `FOLDER/train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): a prompt has 41 tokens, `data.max_prompt_length` is 16 (raise it, or shorten the prompt `1111111111111111111111111111111111111111=`)");
    assert_snapshot!(data_line(&folder, &format!("{data} --set data.filter_overlong_prompts=true")), @"data       FOLDER/train.jsonl (24 rows, 2 too long)");
    let all = "--set data.filter_overlong_prompts=true --set data.filter={level=[0,2]} --set data.max_train_samples=5";
    assert_snapshot!(data_line(&folder, &format!("{data} {all}")), @"data       FOLDER/train.jsonl (5 rows, 2 too long; 8 filtered out; 11 not sampled)");
    assert_snapshot!(folder.refused(&format!("train {data} --set data.on_bad_row=skip --set data.prompt_column=text")), @"`FOLDER/train.jsonl` holds no rows but 26 bad ones (set `data.on_bad_row` to `error`, which says what is wrong)");
    let each = |keys: &str| {
        format!(
            "--set data={{datasets=[{{path=\"train.jsonl\"{keys}}}],filter={{level=0}},max_prompt_length=16,filter_overlong_prompts=true}}"
        )
    };
    assert_snapshot!(data_line(&folder, &each("")), @"data       FOLDER/train.jsonl (8 rows, 2 too long; 16 filtered out)");
    assert_snapshot!(data_line(&folder, &each(",filter={}")), @"data       FOLDER/train.jsonl (24 rows, 2 too long)");
    assert_snapshot!(folder.refused(&format!("train {data} --set data.filter={{level=7}}")), @"`FOLDER/train.jsonl` holds no rows but 26 that `filter` leaves out (widen `filter`)");
    assert_snapshot!(folder.refused(&format!("train {data} --set data.filter={{grade=7}}")), @"bad row at line 1 of `FOLDER/train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): no column `grade`, which `filter` asks for");
}

#[test]
fn a_mixture_goes_on_after_a_kill() {
    let folder = folder();
    let data = "--set data={datasets=[{path=\"samples/saved\",weight=3},{path=\"samples/saved\",split=\"test\",weight=1.5}],max_prompt_length=16}";
    assert_snapshot!(data_line(&folder, data), @"data       FOLDER/samples/saved (24 rows); FOLDER/samples/saved, test (8 rows)");
    folder.assert_resumes(&format!("{data} {STEPS} --set train.max_steps=5"), [2]);
}

#[test]
fn refuses_to_resume_with_other_rows() {
    let folder = folder();
    let others = || rows().replace("\"answer\":300", "\"answer\":301");
    for name in ["train", "eval", "bench"] {
        folder.write(&format!("{name}.jsonl"), rows());
    }
    let measured = "--set data.eval_dataset_name=eval.jsonl --set eval.num_prompts=4 \
        --set eval.benchmark=[{name=\"bench\",file=\"bench.jsonl\",max_prompts=4}]";
    let steps = STEPS.replace("--set eval.num_prompts=0", "");
    let args =
        format!("{steps} {measured} --set data.dataset_name=train.jsonl --set train.max_steps=3");
    folder.train("run", &format!("{args} --stop-after 2"));
    let with_others = |name: &str| {
        folder.write(&format!("{name}.jsonl"), others());
        let sentence = folder.refused("train --resume run");
        folder.write(&format!("{name}.jsonl"), rows());
        sentence
    };
    assert_snapshot!(with_others("train"), @"the training data are not those that the checkpoint of step 2 was made with: FOLDER/train.jsonl (24 rows) (put them back, or take them with `--allow-changed-config`)");
    assert_snapshot!(with_others("eval"), @"the held-out rows are not those that the checkpoint of step 2 was made with (put them back, or take them with `--allow-changed-config`)");
    assert_snapshot!(with_others("bench"), @"the rows of benchmark `bench` are not those that the checkpoint of step 2 was made with (put them back, or take them with `--allow-changed-config`)");
    for name in ["train", "bench"] {
        folder.write(&format!("{name}.jsonl"), others());
    }
    let said = folder.said("train --resume run --allow-changed-config");
    let changed = said
        .lines()
        .find(|line| line.starts_with("changed "))
        .unwrap();
    assert_snapshot!(changed, @"changed    the training data: FOLDER/train.jsonl (24 rows), the rows of benchmark `bench`");
}

#[test]
fn refuses_settings_that_cancel_each_other() {
    assert_refused("data", &folder());
}

/// Settings for `train.jsonl`, and few steps.
const SUMS: &str = "--set data.dataset_name=train.jsonl --set train.max_steps=3 --set eval.num_prompts=0 \
    --set train.per_device_train_batch_size=16";

/// Forty rows, some of which are replaced by `bad` rows. Rows are numbered from 0.
fn sums(bad: &[(usize, &str)]) -> String {
    let row = |i: usize| {
        let good =
            json!({"prompt": format!("{}+{i}=", 100 + i), "answer": 100 + 2 * i}).to_string();
        bad.iter()
            .find(|(number, _)| *number == i)
            .map_or(good, |(_, row)| (*row).to_owned())
    };
    (0..40).map(|i| row(i) + "\n").collect()
}

const BAD: [(usize, &str); 3] = [
    (7, r#"{"prompt": "12\u00e9+9=", "answer": 1}"#),
    (20, "no row"),
    (33, r#"{"prompt": "1111111111111111111111", "answer": 1}"#),
];

#[test]
fn skips_bad_rows_without_changing_the_others() {
    let folder = Folder::new();
    let all = sums(&BAD);
    folder.write("train.jsonl", &all);
    let skip = "--set data.on_bad_row=skip --set train.save_steps=1";
    let said = folder.said(&format!("train --output-dir skipped {SUMS} {skip}"));
    let data = said.lines().find(|line| line.starts_with("data ")).unwrap();
    assert_snapshot!(data, @"data       FOLDER/train.jsonl (37 rows, 3 skipped: line 8, 21, 34)");
    let good: String = all
        .lines()
        .enumerate()
        .filter(|(i, _)| ![7, 20, 33].contains(i))
        .map(|(_, l)| format!("{l}\n"))
        .collect();
    let clean = Folder::new();
    clean.write("train.jsonl", good);
    let clean = clean.train("clean", SUMS);
    let skipped = folder.run_dir("skipped");
    assert_eq!(skipped.weights(), clean.weights());
    // A checkpoint counts only usable rows, so that a resume continues at the same row.
    std::fs::remove_dir_all(skipped.path().join("checkpoints/step-000003")).unwrap();
    std::fs::remove_dir_all(skipped.path().join("checkpoints/step-000002")).unwrap();
    assert_eq!(folder.resume("skipped").weights(), clean.weights());
}

#[test]
fn rows_need_no_answer_if_no_reward_reads_it() {
    let folder = Folder::new();
    folder.write(
        "train.jsonl",
        to_json_lines((100..140).map(|i| json!({"prompt": format!("{i}+1="), "answer": null}))),
    );
    assert_snapshot!(folder.refused(&format!("train {SUMS}")), @"bad row at line 1 of `FOLDER/train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): column `answer` is null (give it a value, or remove the row)");
    let grade = "while read -r line; do case \"$line\" in *'\"answer\":null'*) echo 1;; *) echo null;; esac; done";
    folder.write("run.toml", format!("reward = [{{use = \"regex\", pattern = \"1\"}}, {{use = \"command\", command = [\"sh\", \"-c\", '''{grade}''']}}]"));
    let said = folder.said(&format!("train --output-dir run --config run.toml {SUMS}"));
    assert_snapshot!(said.lines().find(|line| line.starts_with("data ")).unwrap(), @"data       FOLDER/train.jsonl (40 rows, 40 without an answer)");
    assert_eq!(
        folder.run_dir("run").metric("rewards/command/mean"),
        [1.0; 3]
    );
}

#[test]
fn checks_held_out_rows_and_targets_where_they_are_used() {
    let folder = Folder::new();
    folder.write(
        "train.jsonl",
        sums(&[(7, r#"{"prompt": "1+1=", "answer": "two"}"#)]),
    );
    folder.write(
        "held_out.jsonl",
        sums(&[(39, r#"{"prompt": "eleven", "answer": 11}"#)]),
    );
    let data = "--set data.dataset_name=train.jsonl --set data.eval_dataset_name=held_out.jsonl --set eval.num_prompts=4";
    let held_out = "bad row at line 40 of `FOLDER/held_out.jsonl` (mend it, or set `data.on_bad_row` to `skip`): cannot encode `eleven`: the tokenizer has no id for `e`";
    assert_eq!(folder.refused(&format!("train {data}")), held_out);
    // A run's paths are absolute.
    assert_eq!(
        folder.refused(&format!("eval {data}")),
        held_out.replace("FOLDER/", "")
    );
    folder.said(&format!("eval {data} --set data.on_bad_row=skip"));
    // An answer is encoded as tokens only where it is taught.
    let sft = format!(
        "sft --output-dir out {data} --set train.max_steps=1 --set eval.max_completion_length=8"
    );
    assert_snapshot!(folder.refused(&sft), @"bad row at line 8 of `train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): cannot encode `two`: the tokenizer has no id for `t`");
}
