//! Paths that are not regular files, and the output on a terminal.

use std::process::{Command, Stdio};

use insta::assert_snapshot;
use tests::Folder;

use crate::models::with_model;
use crate::refused::assert_refused;

#[test]
fn refuses_pipes_without_waiting() {
    let folder = Folder::new();
    // A pipe without a writer.
    assert!(
        Command::new("mkfifo")
            .arg(folder.path().join("pipe"))
            .status()
            .unwrap()
            .success()
    );
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    assert_refused("no_files", &folder);
}

#[test]
fn refuses_pipes_among_a_models_files() {
    let folder = with_model();
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ] {
        let path = folder.path().join("model").join(file);
        let kept = std::fs::read(&path).ok();
        let _ = std::fs::remove_file(&path);
        assert!(
            Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(
            folder.refused("train --set model.model_name_or_path=model"),
            format!(
                "cannot read `FOLDER/model/{file}`: it is a named pipe, not a regular file (give a file) (give a Hugging Face model directory)"
            )
        );
        std::fs::remove_file(&path).unwrap();
        kept.map_or(Ok(()), |bytes| std::fs::write(&path, bytes))
            .unwrap();
    }
}

#[test]
fn fails_if_output_cannot_be_written() {
    let folder = Folder::new();
    for args in [
        "--help",
        "--version",
        "plugins",
        "check --list",
        "eval --num-prompts 4",
        "train --set train.max_steps=1 --output-dir run",
    ] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = folder
            .command(args)
            .stdout(full)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let outcome = folder.outcome(output);
        assert_eq!(
            outcome.failed(),
            "standard output cannot be written: No space left on device (os error 28) (some of what was said is lost)",
            "{args}"
        );
    }
    // The work goes on.
    assert_eq!(folder.run_dir("run").checkpoints(), [1]);
}

#[test]
fn a_line_shows_means_since_the_last_line() {
    let folder = Folder::new();
    let args = "--set train.max_steps=7 --set logging.logging_steps=3 --set eval.num_prompts=0";
    let said = folder.said(&format!("train --output-dir run {args}"));
    let rewards = folder.run_dir("run").metric("reward");
    for (step, steps) in [(1, 0..1), (3, 1..3), (6, 3..6), (7, 6..7)] {
        let mean = rewards[steps.clone()].iter().sum::<f64>() / steps.len() as f64;
        assert!(
            said.contains(&format!("step {step:>4}  reward {mean:.3}  entropy ")),
            "{said}"
        );
    }
    // Without a mask nothing is rejected, and without held-out prompts there is nothing to compare.
    assert!(
        !said.contains("rejected") && !said.contains("held-out"),
        "{said}"
    );
    let long = folder.said(&format!(
        "train --output-dir long {args} --set train.max_steps=100000 --stop-after 3"
    ));
    assert!(
        long.contains(" for the 99997 steps that are left, at the pace of the first 3\n"),
        "{long}"
    );
}

#[test]
fn does_not_panic_if_errors_cannot_be_written() {
    let folder = Folder::new();
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let status = folder
        .command("train --set train.max_steps=0")
        .stderr(full)
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn shows_control_characters() {
    let folder = Folder::new();
    folder.write("run.toml", "[\"\\u001b[31mred\\u0007\"]\nx = 1\n");
    let key = folder.refused("train --config run.toml");
    assert!(
        key.starts_with(r"`run.toml`: unknown key `\u001b[31mred\u0007`"),
        "{key}"
    );
    folder.write(
        "rows.jsonl",
        r#"{"prompt": "1\u001b]0;title\u0007\u202e=", "answer": 1}"#,
    );
    assert_snapshot!(folder.refused("train --set data.dataset_name=rows.jsonl --set eval.num_prompts=0"), @r"bad row at line 1 of `FOLDER/rows.jsonl` (mend it, or set `data.on_bad_row` to `skip`): cannot encode `1\u001b]0;title\u0007\u202e=`: the tokenizer has no id for `\u001b`");
    folder.write("model/config.json", r#"{"model_type": "\u009b31mllama"}"#);
    assert_snapshot!(folder.refused("train --set model.model_name_or_path=model"), @r"cannot use `FOLDER/model/config.json`: `model_type` is `\u009b31mllama`, supported are `llama`, `mistral`, `qwen2` and `qwen3` (use a checkpoint of one of these families)");
    let output = folder
        .command("train")
        .arg("--\u{1b}[31m")
        .output()
        .unwrap();
    assert!(!output.stderr.contains(&0x1b), "{output:?}");
}

/// The word `tokens` by itself means prompt and completion tokens.
#[test]
fn tokens_at_the_end_of_a_run_are_those_of_its_report() {
    let folder = Folder::new();
    let steps = "--set train.max_steps=2 --set eval.num_prompts=0 --set logging.logging_steps=1";
    let said = folder.said(&format!(
        "train --plugin libcapo.so --output-dir run {steps}"
    ));
    let run = folder.run_dir("run");
    let grouped = |number: f64| {
        let (thousands, rest) = (number as u64 / 1000, number as u64 % 1000);
        if thousands == 0 {
            rest.to_string()
        } else {
            format!("{thousands},{rest:03}")
        }
    };
    let all = grouped(*run.metric("num_tokens").last().unwrap());
    let completions = grouped(
        run.metric("completions/mean_length")
            .iter()
            .sum::<f64>()
            .mul_add(48.0, 0.5),
    );
    assert_ne!(all, completions);
    assert!(
        said.contains(&format!(
            "tokens             {all}, of which {completions} in completions; steps skipped 0\n"
        )),
        "{said}"
    );
    let rejected = said
        .lines()
        .find(|line| line.starts_with("tokens rejected "))
        .unwrap();
    assert!(
        rejected.contains(&format!(" of {completions} in completions (")),
        "{rejected}"
    );
    folder.said("report run --out report.html");
    assert!(
        tests::text(&folder.path().join("report.html")).contains(&format!("<td>{all}</td>")),
        "{all}"
    );
}
