//! What `host` advises works: each way out is taken from a run that was advised to take it, and what an error says to give is given.

use std::collections::BTreeSet;

use host::report::found::{FoundRun, diagnose};
use host::warnings::{Way, rank};
use serde_json::Value;
use tests::artifacts::workspace;
use tests::{Folder, json_lines, text};

const TWO_STEPS: &str = "--set train.max_steps=2 --set eval.num_prompts=0 --set train.per_device_train_batch_size=16";

fn data(name: &str) -> String {
    text(&workspace().join("tests/data/advice").join(name))
}

/// What a text has in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Lines of metrics for a list of `[number of steps, values]`.
fn metrics(steps: &Value) -> String {
    let steps = steps.as_array().unwrap().iter().flat_map(|part| vec![&part[1]; part[0].as_u64().unwrap() as usize]);
    let line = |(step, values): (usize, &Value)| {
        let mut line = values.clone();
        line["step"] = step.into();
        format!("{line}\n")
    };
    (1..).zip(steps).map(line).collect()
}

/// A check whose finding no run here has, or a way out that none of them is shown, fails the test: add a line to `runs.jsonl`.
#[test]
fn every_way_out_works_on_the_run_that_is_shown_it() {
    let (mut taken, mut checks) = (BTreeSet::new(), BTreeSet::new());
    for case in json_lines(&data("runs.jsonl")) {
        let (folder, about, args) = (Folder::new(), &case["about"], case["run"].as_str().unwrap());
        folder.write("components.toml", data("components.toml"));
        let run = folder.train("run", &format!("{TWO_STEPS} {args}"));
        folder.write("run/metrics.jsonl", metrics(&case["steps"]));
        let plugins: String = args
            .split("--plugin ")
            .skip(1)
            .map(|rest| format!("--plugin {} ", rest.split(' ').next().unwrap()))
            .collect();
        let found = diagnose(&FoundRun::read(run.path()).unwrap());
        assert!(!found.is_empty(), "{about}: nothing is found");
        for finding in found.into_iter().map(|found| found.finding) {
            checks.insert(finding.check);
            for advice in &finding.advice {
                taken.insert(advice.way);
                for change in quoted(&advice.text).filter(|part| Some(*part) != finding.component.as_deref()) {
                    if let Some(command) = change.strip_prefix("host ") {
                        folder.said(command);
                        continue;
                    }
                    for given in [args, &format!("--config run/config.toml {plugins}")] {
                        let outcome = folder.attempt("next", &format!("{TWO_STEPS} {given} {change}"));
                        assert_eq!(outcome.code, Some(0), "{about}: {change}: {outcome:#?}");
                        let again =
                            outcome.stderr.contains("more than once") && !about.as_str().unwrap().contains("twice");
                        assert!(!again, "{about}: {change}: {}", outcome.stderr);
                        std::fs::remove_dir_all(folder.path().join("next")).unwrap();
                    }
                }
            }
        }
    }
    assert_eq!(taken.into_iter().collect::<Vec<_>>(), Way::ALL);
    assert_eq!(checks.len(), rank("every check comes before what is none"));
}

#[test]
fn what_an_error_says_to_give_is_enough() {
    for args in data("refused.txt").lines() {
        let (folder, mut given) = (Folder::new(), args.to_owned());
        let sentence = folder.refused(&format!("train {TWO_STEPS} {given}"));
        for _ in 0..2 {
            let outcome = folder.attempt("run", &format!("{TWO_STEPS} {given}"));
            if outcome.code == Some(0) {
                break;
            }
            let sentence = outcome.refused();
            let change = quoted(&sentence).filter(|part| part.starts_with("--") && !given.contains(part)).last();
            given.push_str(&format!(" {}", change.unwrap_or_else(|| panic!("{given}: {sentence}"))));
        }
        assert!(folder.path().join("run/checkpoints").exists(), "{args}: {sentence}");
    }
}
