//! The command line: help, listings, and what the shipped plugins do out of the box.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Stdio;

use host::config::Settings;
use insta::assert_snapshot;
use tests::{Folder, names};

use crate::FOUR_STEPS;

#[test]
fn help() {
    assert_snapshot!(Folder::new().said("--help"));
    let train = "--config, --set, mask.0., --plugin, CAPO_PLUGIN_PATH, native code that runs with your rights, --device, --output-dir, runs/, \
        --resume, --stop-after, embedded arithmetic task, host train --plugin libcapo.so, metrics.jsonl, Ctrl-C and SIGTERM, \
        --allow-more-memory";
    for (command, mentioned) in [
        ("train", train),
        (
            "eval",
            "--config, --set, --plugin, --model, --num-prompts, --output, Hugging Face, embedded:",
        ),
        ("sft", "--config, --set, --output-dir, worked solutions"),
        (
            "generate",
            "--model, --temperature, --top-k, --top-p, --max-completion-length, chat template",
        ),
        (
            "score",
            "--model, --input, --out, --batch-tokens, completion_ids, logps",
        ),
        (
            "check",
            "--json, --only, --set, --fuzz, --seed, --reproduce, --timeout, --list, built-in",
        ),
        (
            "compare-masks",
            "--config, --set, --mask, --plugin, --target-rate, --out, one token in fifty",
        ),
        ("report", "--out, FILE.html, runs/*, standard error"),
        ("runs", "--json, runs"),
        ("plugins", "--plugin, CAPO_PLUGIN_PATH, component, recipe"),
    ] {
        let help = Folder::new().said(&format!("{command} --help"));
        for words in mentioned.split(", ") {
            assert!(
                help.contains(words),
                "`host {command} --help` does not mention `{words}`:\n{help}"
            );
        }
    }
}

#[test]
fn prints_its_version_and_refuses_wrong_words() {
    let folder = Folder::new();
    assert_snapshot!(folder.said("--version").trim_end(), @"host 0.1.0");
    assert!(
        folder
            .refused("trian")
            .starts_with("unrecognized subcommand 'trian'")
    );
    assert!(folder.refused("sweep x").contains("`host replay --sweep`"));
    assert!(
        folder
            .refused("train --pluggin x")
            .contains("a similar argument exists: '--plugin'")
    );
    let soon = folder.refused("train --stop-after soon");
    assert!(
        soon.contains(
            "invalid value 'soon' for '--stop-after <STEP>': give a whole number from 0 up"
        ),
        "{soon}"
    );
    assert!(
        folder
            .refused("generate --temperature hot x")
            .contains("for '--temperature <T>': give a number")
    );
    assert_eq!(folder.host("").code, Some(2));
}

/// The origin of the component `id`: the plugin with whose name it begins, or `host` itself.
fn origin_of(point: &str, id: &str) -> String {
    match id.split_once('.') {
        Some((plugin @ ("capo" | "drcapo" | "reincapo"), _)) => {
            format!("{plugin} 0.1.0, `BUILD/lib{plugin}.so`")
        }
        None if point == "environment" => "capo-environments 0.1.0, built in".to_owned(),
        None if id != "reward_model" => "capo-rewards 0.1.0, built in".to_owned(),
        _ => "host-trainer 0.1.0, built in".to_owned(),
    }
}

#[test]
fn listing_of_the_shipped_plugins() {
    let args = "plugins --plugin libcapo.so --plugin libdrcapo.so --plugin libreincapo.so";
    let said = Folder::new().said(args);
    let mut listed = String::new();
    let (mut point, mut id) = ("", "");
    for line in said.lines() {
        let words = line.trim_start();
        match words.strip_prefix("from ") {
            Some(origin) => assert_eq!(origin, origin_of(point, id), "{id}"),
            None => writeln!(listed, "{line}").unwrap(),
        }
        match line.len() - words.len() {
            0 if !line.is_empty() => point = line,
            2 => id = words.split(' ').next().unwrap(),
            _ => {}
        }
    }
    assert_snapshot!(listed);
}

#[test]
fn the_shipped_plugins_train_and_resume() {
    let mut weights = BTreeSet::new();
    for recipe in ["grpo", "capo", "drcapo", "reincapo"] {
        let plugin = if recipe == "grpo" {
            String::new()
        } else {
            format!("--plugin lib{recipe}.so")
        };
        let folder = Folder::new();
        let args = "--set train.save_steps=0 --set train.max_steps=6 --set eval.num_prompts=16 --set eval.eval_steps=2";
        let run = folder.assert_resumes(&format!("{plugin} {args}"), [2]);
        assert_eq!((run.metrics().len(), run.checkpoints()), (6, vec![6]));
        let config = run.text("config.toml");
        assert!(
            config.starts_with(&format!("recipe = \"{recipe}\"\n")),
            "{config}"
        );
        assert_eq!(run.metric("step_skipped"), [0.0; 6]);
        assert!(
            weights.insert(run.weights()),
            "{recipe} is one of those before"
        );
        if recipe != "grpo" {
            assert!(
                run.metric(&format!("{recipe}.curvature/m_f_batch"))[1..]
                    .iter()
                    .all(|&m_f| m_f > 0.0)
            );
            let rejected = run.metric("mask/rejection_rate");
            assert!(
                rejected.iter().all(|rate| (0.0..0.5).contains(rate)),
                "{recipe}: {rejected:?}"
            );
        }
    }
}

#[test]
fn a_dry_run_estimates_a_run_and_writes_nothing() {
    let folder = Folder::new();
    let args = "train --plugin libcapo.so --set train.max_steps=4 --set train.per_device_train_batch_size=16 --set train.gradient_accumulation_steps=3";
    let told = folder.said(&format!("{args} --dry-run"));
    assert!(names(folder.path()).is_empty(), "nothing is written");
    for words in [
        "masks      capo.curvature",
        "run        runs/capo-seed42 (4 steps of 48 completions",
        "memory     about ",
        "  the optimizer's moments",
        "measuring a step on this machine ...\n",
        "time       about ",
        " if every completion has its full length (1,536 tokens a step): 4 steps of ",
        " and 2 evaluations of ",
        "max_steps = 4",
    ] {
        assert!(told.contains(words), "no `{words}` in\n{told}");
    }
    // The printed settings are those that the run writes down, and those that it leaves out there.
    let settings = told.split_once("its settings, in full:\n\n").unwrap().1;
    let _ran = folder.train("run", args.strip_prefix("train ").unwrap());
    let written = folder.text("run/config.toml");
    let [told, written] =
        [settings, &written].map(|text| host::run::settings::keys(&text.parse().unwrap()));
    assert!(
        written
            .iter()
            .all(|(key, value)| told.get(key) == Some(value)),
        "{told:?}\n{written:?}"
    );
    for key in host::config::TrainConfig::SETTINGS
        .iter()
        .map(|setting| setting.name)
    {
        assert!(
            told.contains_key(&format!("train.{key}"))
                || settings.contains(&format!("train.{key},")),
            "no {key}"
        );
    }
    folder.write("full.toml", settings);
    let again = folder.said("train --config full.toml --dry-run --plugin libcapo.so");
    assert!(again.ends_with(settings), "{again}");
    let refused = folder.refused(&format!("{args} --dry-run --set data.dataset_name=nowhere"));
    assert!(refused.contains("no dataset `nowhere`"), "{refused}");
}

#[test]
fn a_run_chooses_a_folder_of_its_own() {
    let folder = Folder::new();
    for name in ["grpo-seed42", "grpo-seed42-2", "grpo-seed42-3"] {
        let outcome = folder
            .host(&format!("train {FOUR_STEPS} --set train.max_steps=1"))
            .succeeded();
        assert!(
            outcome
                .stdout
                .contains(&format!("run        runs/{name} (1 steps")),
            "{}",
            outcome.stdout
        );
        let files = [
            "checkpoints",
            "config.toml",
            "lock",
            "metrics.jsonl",
            "provenance.json",
        ];
        assert!(
            names(&folder.path().join("runs").join(name))
                .iter()
                .eq(&files)
        );
    }
}

#[test]
fn a_runs_own_config_repeats_it() {
    let folder = Folder::new();
    let first = folder.train("first", &format!("--plugin libcapo.so {FOUR_STEPS}"));
    first.assert_same_files(
        &folder.train("second", "--plugin libcapo.so --config first/config.toml"),
    );
}

#[test]
fn evaluation_writes_completions() {
    let folder = Folder::new();
    let outcome = folder
        .host("eval --num-prompts 16 --output graded.jsonl")
        .succeeded();
    let graded = folder.json_lines("graded.jsonl");
    let right = graded
        .iter()
        .filter(|line| line["reward"].as_f64().unwrap() > 0.0)
        .count();
    assert_eq!(graded.len(), 16);
    let share = 100.0 * right as f64 / 16.0;
    let right = "right      `exact_match` above 0";
    let held_out = format!(
        "held-out accuracy {share:.1}%  reward {:.3}  (16 prompts, greedy)",
        share / 100.0
    );
    assert_eq!(outcome.stdout, format!("{right}\n{held_out}\n"));
    let names: Vec<&str> = graded[0]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let documented = "answer benchmark completion correct extracted prompt reward rewards sample tokens truncated";
    assert_eq!(names.join(" "), documented);
    assert_eq!(
        (&graded[3]["benchmark"], &graded[3]["prompt"]),
        (&"held-out".into(), &3.into())
    );
}

#[test]
fn sft_refuses_bad_input() {
    let folder = Folder::new();
    let row = |solution: usize| {
        serde_json::json!({"prompt": "1+1=", "answer": "2", "solution": "1".repeat(solution)})
            .to_string()
    };
    let sft = "sft --output-dir out --set data={dataset_name=\"rows.jsonl\"} --set eval.num_prompts=0 --set train.max_steps=1";
    folder.write("rows.jsonl", format!("{}\n{}\n", row(1), row(5 << 20)));
    assert_snapshot!(folder.refused(sft), @"bad row at line 2 of `rows.jsonl` (mend it, or set `data.on_bad_row` to `skip`): a text of 5242880 bytes has more tokens than the model has positions, 64 (shorten `111111111111111111111111111111111111111111111111111111111111…`)");
    let step = "--set train.max_steps=1 --set eval.num_prompts=0 --set train.learning_rate=1e30 --set train.warmup_ratio=0";
    let broken = folder
        .host(&format!("sft --output-dir out {step}"))
        .failed();
    assert!(
        broken.ends_with(" at step 1 (lower `train.learning_rate`)"),
        "{broken}"
    );
    let infinite = folder
        .host(&format!(
            "sft --output-dir out {step} --set train.learning_rate=1e39"
        ))
        .failed();
    assert_snapshot!(infinite, @"step 1 makes numbers of `lm_head.weight` infinite or NaN (lower `train.learning_rate`)");
    assert!(!folder.path().join("out").exists());
    folder.write("taken/file", "");
    assert_snapshot!(folder.refused("sft --output-dir taken"), @"`taken` exists already (choose another `--output-dir`)");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let folder = Folder::new();
    for args in [
        "plugins --plugin libcapo.so",
        "eval --num-prompts 4",
        "train --set train.max_steps=1",
    ] {
        let mut command = folder.command(args);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{args}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
