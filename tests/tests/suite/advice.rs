//! The advice of `host` works: each piece of advice is applied to a run that gets it, and what an
//! error asks for is given.

use std::collections::BTreeSet;

use host::report::found::{Diagnosis, FoundRun, diagnose};
use host::warnings::{Way, rank};
use serde_json::Value;
use tests::{Folder, artifacts, json_lines, text};

const TWO_STEPS: &str =
    "--set train.max_steps=2 --set eval.num_prompts=0 --set train.per_device_train_batch_size=16";

fn data(name: &str) -> String {
    text(&artifacts::workspace().join("tests/data/advice").join(name))
}

/// The parts of a text in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Lines of metrics from a list of `[number of steps, values, ...]`, whose values take turns.
fn metrics(case: &Value) -> String {
    let list = |value: &Value| value.as_array().unwrap().clone();
    let steps = list(&case["steps"]).into_iter().flat_map(|part| {
        let part = list(&part);
        let count = part[0].as_u64().unwrap() as usize;
        part[1..]
            .iter()
            .cycle()
            .take(count)
            .cloned()
            .collect::<Vec<_>>()
    });
    let line = |(step, mut values): (u64, Value)| {
        values["step"] = step.into();
        format!("{values}\n")
    };
    (case["from"].as_u64().unwrap_or(1)..)
        .zip(steps)
        .map(line)
        .collect()
}

/// The test fails if no run here has the finding of a check, or gets a piece of advice: then add a
/// line to `runs.jsonl`.
#[test]
fn every_piece_of_advice_works_on_the_run_that_gets_it() {
    let (mut taken, mut checks, mut said) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for case in json_lines(&data("runs.jsonl")) {
        let (folder, about, args) = (Folder::new(), &case["about"], case["run"].as_str().unwrap());
        folder.write("components.toml", data("components.toml"));
        let run = folder.train("run", &format!("{TWO_STEPS} {args}"));
        folder.write("run/metrics.jsonl", metrics(&case));
        let plugins = args
            .split(' ')
            .filter(|word| word.ends_with(".so"))
            .map(|library| format!("--plugin {library} "));
        let again = format!(
            "--config run/config.toml {} --dry-run",
            plugins.collect::<String>()
        );
        let found = diagnose(&FoundRun::read(run.path()).unwrap());
        said.push(format!("{args}: {}", about.as_str().unwrap()));
        said.extend(found.iter().map(|Diagnosis { finding, first, .. }| {
            format!("  {first} {}: {}", finding.check, finding.line())
        }));
        for finding in found.into_iter().map(|found| found.finding) {
            checks.insert(finding.check);
            for advice in &finding.advice {
                taken.insert(advice.way);
                for change in
                    quoted(&advice.text).filter(|part| Some(*part) != finding.component.as_deref())
                {
                    if let Some(command) = change.strip_prefix("host ") {
                        folder.said(command);
                        continue;
                    }
                    // Additions to the run's own command and to its settings.
                    for given in [args, &again] {
                        let outcome = folder.host(&format!("train {TWO_STEPS} {given} {change}"));
                        assert_eq!(outcome.code, Some(0), "{about}: {change}: {outcome:#?}");
                        let is_new = outcome.stderr.contains("more than once")
                            && !about.as_str().unwrap().contains("twice");
                        assert!(!is_new, "{about}: {change}: {}", outcome.stderr);
                    }
                }
            }
        }
    }
    insta::assert_snapshot!(
        "advice",
        said.join("\n")
            .replace(&*artifacts::folder().to_string_lossy(), "BUILD")
    );
    assert!(taken.into_iter().eq(Way::ALL.iter().map(|(way, _)| *way)));
    assert_eq!(checks.len(), rank("every check comes before what is none"));
}

#[test]
fn following_the_advice_of_an_error_is_enough() {
    for args in data("refused.txt").lines() {
        let (folder, mut given) = (Folder::new(), format!("{TWO_STEPS} {args} "));
        for more in 0.. {
            let outcome = folder.attempt("run", &given);
            if outcome.code == Some(0) {
                assert!(more > 0, "{args} is not refused");
                break;
            }
            let sentence = outcome.refused();
            let is_new =
                |part: &&str| part.starts_with("--") && !given.contains(&format!("{part} "));
            let change = quoted(&sentence)
                .filter(is_new)
                .last()
                .unwrap_or_else(|| panic!("{given}: {sentence}"));
            given = format!("{given}{change} ");
        }
    }
}
