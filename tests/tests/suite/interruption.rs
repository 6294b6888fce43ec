//! Runs that end early: by `kill -9` and by Ctrl-C.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use insta::assert_snapshot;
use tests::{Folder, RunDir};

/// Long enough to be interrupted.
const THIRTY_STEPS: &str = "--plugin libcapo.so --set train.max_steps=30 --set train.save_steps=0 --set eval.num_prompts=0";

/// Starts `host ARGS`.
pub(crate) fn start(folder: &Folder, args: &str) -> Child {
    folder
        .command(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the run is there and has written `steps` lines of metrics.
pub(crate) fn wait_for(child: &mut Child, run: &RunDir, steps: usize) {
    let written = || {
        let text = std::fs::read_to_string(run.path().join("metrics.jsonl")).unwrap_or_default();
        run.path().exists() && text.lines().count() >= steps
    };
    while !written() {
        assert_eq!(child.try_wait().unwrap(), None, "the run ended too early");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills a run that would go on.
pub(crate) fn kill(mut child: Child) {
    child.kill().unwrap();
    assert_eq!(
        child.wait().unwrap().signal(),
        Some(9),
        "killed, not finished"
    );
}

/// Sends a signal that `host` treats like Ctrl-C. Ctrl-C itself is ignored if these tests run in
/// the background of a script.
pub(crate) fn terminate(child: &Child) {
    let _ = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status()
        .unwrap();
}

#[test]
fn resumes_after_a_kill() {
    let folder = Folder::new();
    let whole = folder.train(
        "whole",
        &format!("{THIRTY_STEPS} --set train.save_minutes=0"),
    );
    assert_eq!(whole.checkpoints(), [30]);
    // The bits do not depend on when a run is saved, and the final checkpoints do not depend on
    // checkpoints by time.
    let by_time = "--set train.save_minutes=0.0001";
    for (name, saves, kept) in [
        (
            "steps",
            "--set train.save_steps=1 --set train.save_total_limit=2".to_owned(),
            vec![29, 30],
        ),
        ("time", by_time.to_owned(), vec![30]),
        (
            "both",
            format!("{by_time} --set train.save_steps=10 --set train.save_total_limit=2"),
            vec![20, 30],
        ),
    ] {
        let killed = folder.run_dir(name);
        // The run is killed twice, at arbitrary points.
        let begin = format!("train --output-dir {name} {THIRTY_STEPS} {saves}");
        for (command, steps) in [(begin, 3), (format!("train --resume {name}"), 15)] {
            let mut child = start(&folder, &command);
            wait_for(&mut child, &killed, steps);
            kill(child);
            // A rollout takes longer than the interval: no more than one is lost.
            let (checkpoints, done) = (
                killed.checkpoints(),
                killed.text("metrics.jsonl").lines().count() as u64,
            );
            assert!(
                checkpoints.last().is_some_and(|newest| newest + 1 >= done),
                "{checkpoints:?} of {done}"
            );
            assert!(checkpoints.len() <= kept.len() + 2, "{checkpoints:?}");
        }
        folder.resume(name).assert_same_files(&whole);
        assert_eq!(killed.checkpoints(), kept);
    }
}

#[test]
fn resumes_after_an_interruption() {
    let folder = Folder::new();
    let whole = folder.train("whole", THIRTY_STEPS);
    let mut command = folder.command(&format!("train --output-dir run {THIRTY_STEPS}"));
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let run = folder.run_dir("run");
    wait_for(&mut child, &run, 2);
    terminate(&child);
    let outcome = folder
        .outcome(child.wait_with_output().unwrap())
        .succeeded();
    assert_snapshot!(outcome.stderr.trim_end(), @"stopping after this rollout, with a checkpoint (again to stop at once)");
    let steps = run.metrics().len();
    assert!(steps < 30, "interrupted, not finished");
    assert_eq!(run.checkpoints(), [steps as u64]);
    assert!(
        outcome
            .stdout
            .contains(&format!("stopped after step {steps} of 30")),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome
            .stdout
            .trim_end()
            .ends_with("host train --resume run"),
        "{}",
        outcome.stdout
    );
    folder.resume("run").assert_same_files(&whole);
}

/// Batch systems warn a job with these before they end it.
#[test]
fn stops_at_the_warning_of_a_batch_system() {
    let folder = Folder::new();
    let endless = THIRTY_STEPS.replace("max_steps=30", "max_steps=100000");
    for signal in ["-USR1", "-USR2"] {
        let run = folder.run_dir(signal.trim_start_matches('-'));
        let name = signal.trim_start_matches('-');
        let mut child = start(&folder, &format!("train --output-dir {name} {endless}"));
        wait_for(&mut child, &run, 2);
        // A second signal changes nothing.
        for _ in 0..2 {
            let _ = Command::new("kill")
                .args([signal, &child.id().to_string()])
                .status()
                .unwrap();
        }
        let outcome = folder
            .outcome(child.wait_with_output().unwrap())
            .succeeded();
        assert_eq!(
            outcome.stderr.trim_end(),
            "stopping after this rollout, with a checkpoint"
        );
        assert_eq!(run.checkpoints(), [run.metrics().len() as u64]);
    }
}

/// A process that `nohup` starts ignores the hang-up signal, and one that a script starts with `&`
/// ignores Ctrl-C.
#[test]
fn keeps_ignored_signals_ignored() {
    let folder = Folder::new();
    let signals = "trap '' HUP INT; (until [ -s run/metrics.jsonl ]; do sleep 0.02; done; kill -HUP $$; kill -INT $$) &";
    let outcome = folder.host_after(
        &format!("{signals} true"),
        &format!("train --output-dir run {THIRTY_STEPS}"),
    );
    assert_eq!(outcome.succeeded().stderr, "");
    assert_eq!(folder.run_dir("run").checkpoints(), [30]);
}

#[test]
fn resumes_after_two_interruptions() {
    let folder = Folder::new();
    let args = THIRTY_STEPS
        .replace("max_steps=30", "max_steps=100000")
        .replace("save_steps=0", "save_steps=1");
    let mut child = start(
        &folder,
        &format!("train --output-dir run {args} --set train.save_total_limit=1"),
    );
    wait_for(&mut child, &folder.run_dir("run"), 2);
    // Signals are sent until the run has ended, because the first may have been handled before the
    // second arrives.
    while child.try_wait().unwrap().is_none() {
        terminate(&child);
    }
    let outcome = folder.outcome(child.wait_with_output().unwrap());
    let last = outcome.stderr.lines().last().unwrap();
    assert!(
        outcome.code == Some(0) || last.starts_with("the run stopped after step "),
        "{outcome:#?}"
    );
    folder.said("train --resume run --stop-after 3");
}
