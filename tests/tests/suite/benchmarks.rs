//! Benchmarks: several answers to each question, by `host eval` and while a run trains.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use insta::assert_snapshot;
use serde_json::{Value, json};
use tests::{Folder, text_model, to_json_lines};

use crate::refused::assert_refused;

/// Two files with sums, about half of which the embedded model gets right.
fn folder() -> Folder {
    let folder = Folder::new();
    for (name, from, count) in [("easy.jsonl", 100, 12), ("hard.jsonl", 551, 9)] {
        let sum = |i: i32| (from + 37 * i, 999 - 11 * i);
        let row = |(a, b)| json!({"prompt": format!("{a}+{b}="), "answer": a + b});
        folder.write(name, to_json_lines((0..count).map(sum).map(row)));
    }
    folder
}

const BENCHMARKS: &str = "--set eval.benchmark=[{name=\"easy\",file=\"easy.jsonl\",samples=4,temperature=1.0},{name=\"hard\",file=\"hard.jsonl\",max_prompts=7}]";

#[test]
fn keeps_and_counts_every_answer() {
    let folder = folder();
    let said = folder.said(&format!("eval {BENCHMARKS} --output answers.jsonl"));
    assert_snapshot!(said, @"
    right      `exact_match` above 0
    easy              pass@1 58.3%  pass@2 73.6%  pass@4 83.3%  mean@4 58.3%  maj@4 66.7%  reward 0.583  (12 prompts)
    hard              pass@1 28.6%  reward 0.286  (7 prompts)
    TEST              pass@1 43.5%  reward 0.435  (their mean)
    ");
    let all = folder.json_lines("answers.jsonl");
    assert_eq!(all.len(), 12 * 4 + 7);
    let places: Vec<(u64, u64)> = all[..48]
        .iter()
        .map(|line| {
            (
                line["prompt"].as_u64().unwrap(),
                line["sample"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        places,
        (0..12)
            .flat_map(|prompt| (0..4).map(move |sample| (prompt, sample)))
            .collect::<Vec<_>>()
    );
    let right = all[..48]
        .iter()
        .filter(|line| line["correct"] == true)
        .count();
    assert!(
        said.contains(&format!("pass@1 {:.1}%", 100.0 * right as f64 / 48.0)),
        "{right}: {said}"
    );
    for line in &all {
        let ends = line["completion"]
            .as_str()
            .unwrap()
            .rsplit_once('=')
            .map(|(_, answer)| answer);
        assert_eq!(
            line["extracted"].as_str(),
            ends.filter(|answer| !answer.is_empty()),
            "{line}"
        );
    }
    assert!(!folder.path().join("answers.jsonl.partial").exists());
}

#[test]
fn answers_do_not_depend_on_each_other() {
    let folder = folder();
    let run = |name: &str, more: &str| {
        folder.said(&format!("eval {BENCHMARKS} --output {name} {more}"));
        folder.bytes(name)
    };
    let whole = run("whole.jsonl", "");
    assert_eq!(
        run("batches.jsonl", "--set eval.per_device_eval_batch_size=5"),
        whole
    );
    assert_eq!(run("seqs.jsonl", "--set rollout.max_num_seqs=3"), whole);
    // With fewer samples, the answers are the first ones of those with more samples.
    let _ = run(
        "fewer.jsonl",
        "--set eval.benchmark=[{name=\"easy\",file=\"easy.jsonl\",samples=2,temperature=1.0}]",
    );
    let all = folder.json_lines("whole.jsonl");
    let first: Vec<&Value> = all[..48]
        .iter()
        .filter(|line| line["sample"].as_u64().unwrap() < 2)
        .collect();
    assert_eq!(
        folder.json_lines("fewer.jsonl").iter().collect::<Vec<_>>(),
        first
    );
    assert_ne!(run("seed.jsonl", "--set train.seed=7"), whole);
}

#[test]
fn the_answers_to_a_question_are_a_group() {
    let folder = folder();
    folder.write(
        "grade",
        "while read -r l; do echo \"$l\" >> lines; echo 1; done",
    );
    let grade = "--set reward=[{use=\"command\",command=[\"sh\",\"grade\"]}]";
    // A batch of nine has room for two whole questions.
    folder.said(&format!(
        "eval {BENCHMARKS} {grade} --set eval.per_device_eval_batch_size=9"
    ));
    for line in &folder.json_lines("lines")[..48] {
        let [id, group] = ["id", "group"].map(|key| line[key].as_u64().unwrap());
        assert_eq!(group, id / 4, "{line}");
    }
    let prompts: Vec<Value> = folder
        .json_lines("lines")
        .into_iter()
        .map(|line| line["prompt"].clone())
        .collect();
    assert!(
        prompts[..48]
            .chunks(4)
            .all(|group| group.iter().all(|prompt| *prompt == group[0])),
        "{prompts:?}"
    );
}

#[test]
fn a_killed_evaluation_goes_on_to_the_same_bytes() {
    let folder = folder();
    let eval =
        format!("eval {BENCHMARKS} --output answers.jsonl --set eval.per_device_eval_batch_size=5");
    folder.said(&eval);
    let whole = folder.bytes("answers.jsonl");
    std::fs::remove_file(folder.path().join("answers.jsonl")).unwrap();
    let mut child = folder
        .command(&eval)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("easy ")));
    let _ = child.kill();
    let _ = child.wait();
    let partial = folder.path().join("answers.jsonl.partial");
    // The file may be complete by then, so it is cut here as a kill would cut it.
    if let Ok(bytes) = std::fs::read(&partial) {
        std::fs::write(&partial, &bytes[..bytes.len().min(1500)]).unwrap();
        // An edited answer is not the one that was measured.
        let cut = String::from_utf8(std::fs::read(&partial).unwrap()).unwrap();
        let (before, after) = cut.split_once("\"correct\":").unwrap();
        let [from, to] = if after.starts_with("true") {
            ["true", "false"]
        } else {
            ["false", "true"]
        };
        std::fs::write(
            &partial,
            format!("{before}\"correct\":{}", after.replacen(from, to, 1)),
        )
        .unwrap();
        assert_snapshot!(folder.refused(&eval), @"`answers.jsonl.partial` is damaged at line 2 (remove it to begin anew)");
        std::fs::write(&partial, cut).unwrap();
        let other = folder.refused(&format!("{eval} --set train.seed=7"));
        assert_snapshot!(other, @"`answers.jsonl.partial` has answers of another model, or with other questions, settings, plugins or programs (remove it to begin anew)");
    }
    folder.said(&eval);
    assert!(folder.bytes("answers.jsonl") == whole);
}

/// The settings of the embedded task do not apply to a model that is neither embedded nor a run.
#[test]
fn any_other_model_is_measured_with_the_defaults() {
    let folder = folder();
    text_model::write(&folder);
    folder.write(
        "problems.jsonl",
        "{\"question\": \"How many?\", \"answer\": \"Five.\\n#### 5\"}\n",
    );
    let data =
        "--set data.dataset_name=problems.jsonl --set data.preset=gsm8k --set eval.num_prompts=0";
    folder.train(
        "run",
        &format!("{} {data} --set train.max_steps=1", text_model::SETTINGS),
    );
    folder.said("export --model run --out text");
    assert_snapshot!(folder.said("eval --benchmark problems.jsonl --model text --set data.preset=gsm8k"), @"
    right      `number` above 0
    problems          pass@1 0.0%  reward 0.000  (1 prompts, 1 of 1 answers cut off at 256 tokens)
    ");
    folder.said("export --model embedded:tiny-arithmetic --out sums");
    let eval = "eval --benchmark easy.jsonl --set model.model_name_or_path=sums";
    assert_snapshot!(folder.refused(eval), @r#"the settings of the default config and `--set` do not fit together: the number of `[[reward]]` tables is 0 (give one, as `--set 'reward=[{use="math"}]'` does, or `data.preset`, which brings one)"#);
    let eval = format!("{eval} --set reward=[{{use=\"exact_match\"}}]");
    assert_snapshot!(folder.refused(&eval), @"`data.max_prompt_length` 512 and `rollout.max_completion_length` 256 make 768 tokens, the model has 64 positions (lower one of them)");
    let short = "--set data.max_prompt_length=16 --set rollout.max_completion_length=9";
    assert_snapshot!(folder.said(&format!("{eval} {short}")), @"
    right      `exact_match` above 0
    easy              pass@1 0.0%  reward 0.000  (12 prompts, 12 of 12 answers cut off at 9 tokens)
    ");
}

/// Answers that were graded in one way are not joined with others.
#[test]
fn an_evaluation_continues_only_with_the_same_programs() {
    let folder = folder();
    folder.write("grade", "exit 1");
    let eval = "eval --benchmark hard.jsonl --set reward=[{use=\"command\",command=[\"sh\",\"grade\"]}] --output answers.jsonl";
    assert_eq!(folder.host(eval).code, Some(1));
    let plugin = folder.refused(&format!("{eval} --plugin librewarding.so"));
    folder.write("grade", "while read -r line; do echo 1; done");
    assert_eq!(folder.refused(eval), plugin);
    assert_snapshot!(plugin, @"`answers.jsonl.partial` has answers of another model, or with other questions, settings, plugins or programs (remove it to begin anew)");
}

#[test]
fn checks_the_saved_part_of_an_evaluation() {
    let folder = folder();
    let eval = "eval --benchmark hard.jsonl --output answers.jsonl";
    folder.write("answers.jsonl.partial", "no head\n");
    assert_snapshot!(folder.refused(eval), @"`answers.jsonl.partial` is damaged at line 1 (remove it to begin anew)");
    std::fs::remove_file(folder.path().join("answers.jsonl.partial")).unwrap();
    assert_snapshot!(folder.said(eval), @"
    right      `exact_match` above 0
    hard              pass@1 44.4%  reward 0.444  (9 prompts)
    ");
}

/// A preset has its own columns, not those of `[data]`.
#[test]
fn a_benchmark_with_a_preset_has_its_own_columns() {
    let folder = folder();
    let worded = folder.json_lines("hard.jsonl").into_iter();
    let worded =
        worded.map(|row| json!({"question": row["prompt"], "answer": format!("#### {}", row["answer"]), "sum": 0}));
    folder.write("worded.jsonl", to_json_lines(worded));
    let preset =
        "{name=\"hard\",file=\"worded.jsonl\",preset=\"gsm8k\",prompt_template=\"{prompt}\"}";
    let columns = "--set data.dataset_name=worded.jsonl --set data.prompt_column=question --set data.answer_column=sum";
    let said = folder.said(&format!("eval {columns} --set eval.benchmark=[{preset}]"));
    assert_eq!(said, folder.said("eval --benchmark hard.jsonl"));
}

#[test]
fn a_run_records_its_benchmarks_and_resumes() {
    let folder = folder();
    let steps = "--set train.max_steps=4 --set eval.eval_steps=2 --set eval.num_prompts=8 --set train.per_device_train_batch_size=16";
    let whole = folder.assert_resumes(&format!("{BENCHMARKS} {steps}"), [3]);
    let steps: Vec<u64> = (whole.lines().iter())
        .filter(|line| line.contains_key("eval/TEST/pass@1"))
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [0, 2, 4]);
    let last = whole.lines().pop().unwrap();
    let evals: BTreeMap<&str, f64> = (last.iter())
        .filter(|(name, _)| name.starts_with("eval/"))
        .map(|(name, value)| (name.as_str(), value.as_f64().unwrap()))
        .collect();
    let of_all = [
        "mean_length",
        "pass@1",
        "reward",
        "rewards/exact_match/mean",
    ];
    let of_several = ["maj@4", "mean@4", "pass@2", "pass@4"];
    let names = ["TEST", "easy", "hard"]
        .into_iter()
        .flat_map(|of| of_all.map(|name| format!("eval/{of}/{name}")));
    let names = names.chain(of_several.map(|name| format!("eval/easy/{name}")));
    assert_eq!(
        evals
            .keys()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>(),
        names.collect()
    );
    assert!(
        (evals["eval/TEST/pass@1"] - (evals["eval/easy/pass@1"] + evals["eval/hard/pass@1"]) / 2.0)
            .abs()
            < 1e-12
    );
    // A separate evaluation of the model gives the run's results.
    let model = whole.last_checkpoint();
    folder.said(&format!(
        "eval {BENCHMARKS} --model {} --output answers.jsonl",
        model.display()
    ));
    let right = folder.json_lines("answers.jsonl")[..48]
        .iter()
        .filter(|line| line["correct"] == true)
        .count();
    assert!((evals["eval/easy/pass@1"] - right as f64 / 48.0).abs() < 1e-12);
    let replacing = format!(
        "eval --model {} --output {}",
        model.display(),
        whole.path().join("metrics.jsonl").display()
    );
    assert_snapshot!(folder.refused(&replacing), @"`--output FOLDER/whole/metrics.jsonl` would replace a file of `FOLDER/whole`, which is read (choose another name)");
}

#[test]
fn measures_benchmarks_without_held_out_prompts() {
    let folder = folder();
    let one = "--set eval.benchmark=[{name=\"hard\",file=\"hard.jsonl\"}] --set eval.num_prompts=0 --set eval.eval_steps=1";
    let args = format!(
        "train --output-dir run {one} --set train.max_steps=1 --set train.per_device_train_batch_size=16"
    );
    let said = folder.said(&args);
    let lines = folder.run_dir("run").lines();
    let measured: Vec<(u64, f64)> = (lines.iter())
        .map(|line| {
            (
                line["step"].as_u64().unwrap(),
                line["eval/hard/pass@1"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        measured.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
        [0, 1],
        "a line of its own before training"
    );
    assert!(
        said.contains(&format!(
            "benchmarks  hard {:.1}%  before training",
            100.0 * measured[0].1
        )),
        "{said}"
    );
    assert!(
        said.contains(&format!("  hard {:.1}%\n", 100.0 * measured[1].1)),
        "{said}"
    );
}

#[test]
fn refuses_impossible_benchmarks() {
    assert_refused("benchmarks", &folder());
}
