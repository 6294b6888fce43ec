//! Rows that no run could use: found when data are opened.

use insta::assert_snapshot;
use tests::Folder;

/// Settings for `train.jsonl`, and few steps.
const ROWS: &str = "--set data.dataset_name=train.jsonl --set train.max_steps=3 --set eval.num_prompts=0 \
    --set train.per_device_train_batch_size=16";

/// Forty rows, with `bad` in place of some by number from 0.
fn rows(bad: &[(usize, &str)]) -> String {
    let row = |i: usize| {
        let good = format!("{{\"prompt\": \"{}+{i}=\", \"answer\": {}}}", 100 + i, 100 + 2 * i);
        bad.iter().find(|(number, _)| *number == i).map_or(good, |(_, row)| (*row).to_owned())
    };
    (0..40).map(|i| row(i) + "\n").collect()
}

const BAD: [(usize, &str); 3] = [
    (7, r#"{"prompt": "12\u00e9+9=", "answer": 1}"#),
    (20, "no row"),
    (33, r#"{"prompt": "1111111111111111111111", "answer": 1}"#),
];

#[test]
fn a_bad_row_is_told_at_once() {
    let refused = |bad: &[(usize, &str)]| {
        let folder = Folder::new();
        folder.write("train.jsonl", rows(bad));
        let sentence = folder.host(&format!("train {ROWS}")).refused();
        assert!(!folder.path().join("runs").exists(), "nothing is written before all is open");
        sentence
    };
    assert_snapshot!(refused(&BAD[..1]), @"bad row at line 8 of `FOLDER/train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): cannot encode `12é+9=`: the tokenizer has no id for `é`");
    assert_snapshot!(refused(&BAD[1..2]), @"bad row at line 21 of `FOLDER/train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): not valid JSON: expected ident at line 1 column 2");
    assert_snapshot!(refused(&BAD[2..]), @"bad row at line 34 of `FOLDER/train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): a prompt has 22 tokens, `data.max_prompt_length` is 16 (raise it, or shorten the prompt `1111111111111111111111`)");
    let long = format!(r#"{{"prompt": "{}", "answer": 1}}"#, "x".repeat(1000));
    assert_snapshot!(refused(&[(3, &long)]), @"bad row at line 4 of `FOLDER/train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): cannot encode `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…`: the tokenizer has no id for `x`");
}

#[test]
fn bad_rows_can_be_skipped_and_the_run_is_that_of_the_others() {
    let folder = Folder::new();
    let all = rows(&BAD);
    folder.write("train.jsonl", &all);
    let skip = "--set data.on_bad_row=skip --set train.save_steps=1";
    let said = folder.host(&format!("train --output-dir skipped {ROWS} {skip}")).succeeded().stdout;
    let data = said.lines().find(|line| line.starts_with("data ")).unwrap();
    assert_snapshot!(data, @"data       FOLDER/train.jsonl (37 rows, 3 skipped: line 8, 21, 34)");
    let good: String =
        all.lines().enumerate().filter(|(i, _)| ![7, 20, 33].contains(i)).map(|(_, l)| format!("{l}\n")).collect();
    let clean = Folder::new();
    clean.write("train.jsonl", good);
    let clean = clean.train("clean", ROWS);
    let skipped = folder.run_dir("skipped");
    assert_eq!(skipped.weights(), clean.weights());
    // A checkpoint counts usable rows, so that a resume goes on among the same rows.
    std::fs::remove_dir_all(skipped.path().join("checkpoints/step-000003")).unwrap();
    std::fs::remove_dir_all(skipped.path().join("checkpoints/step-000002")).unwrap();
    assert_eq!(folder.resume("skipped").weights(), clean.weights());
}

#[test]
fn held_out_rows_and_targets_are_checked_where_they_are_used() {
    let folder = Folder::new();
    folder.write("train.jsonl", rows(&[(7, r#"{"prompt": "1+1=", "answer": "two"}"#)]));
    folder.write("held_out.jsonl", rows(&[(39, r#"{"prompt": "eleven", "answer": 11}"#)]));
    let data =
        "--set data.dataset_name=train.jsonl --set data.eval_dataset_name=held_out.jsonl --set eval.num_prompts=4";
    let held_out = "bad row at line 40 of `FOLDER/held_out.jsonl` (mend it, or set `data.on_bad_row` to `skip`): cannot encode `eleven`: the tokenizer has no id for `e`";
    assert_eq!(folder.host(&format!("train {data}")).refused(), held_out);
    // A run's paths are absolute.
    assert_eq!(folder.host(&format!("eval {data}")).refused(), held_out.replace("FOLDER/", ""));
    let _ = folder.host(&format!("eval {data} --set data.on_bad_row=skip")).succeeded();
    // Nobody reads an answer as tokens, except where it is taught.
    let sft = format!("sft --output-dir out {data} --set train.max_steps=1 --set eval.max_completion_length=8");
    assert_snapshot!(folder.host(&sft).refused(), @"bad row at line 8 of `train.jsonl` (mend it, or set `data.on_bad_row` to `skip`): cannot encode `two`: the tokenizer has no id for `t`");
}
