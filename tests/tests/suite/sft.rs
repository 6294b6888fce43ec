//! `host sft` after a kill, a stop or a change: the same command goes on from the newest checkpoint
//! and ends with the same bits.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use insta::assert_snapshot;
use tests::{Folder, RunDir, names};

use crate::interruption::{kill, terminate};

/// A training with a checkpoint after each step.
const EACH_STEP: &str = "--set train.max_steps=30 --set train.per_device_train_batch_size=4 --set eval.num_prompts=0 \
    --set train.save_minutes=1e-6";

fn start(folder: &Folder, args: &str) -> Child {
    folder
        .command(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until a checkpoint of `step` or later is there.
fn wait_for(child: &mut Child, checkpoints: &RunDir, step: u64) {
    while checkpoints
        .checkpoints()
        .last()
        .is_none_or(|newest| *newest < step)
    {
        assert_eq!(
            child.try_wait().unwrap(),
            None,
            "the training ended too early"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A training in a new folder that was killed after a few steps, and its checkpoints.
fn killed() -> (Folder, RunDir) {
    let folder = Folder::new();
    let checkpoints = folder.run_dir("base.partial");
    let mut child = start(&folder, &format!("sft --output-dir base {EACH_STEP}"));
    wait_for(&mut child, &checkpoints, 3);
    kill(child);
    (folder, checkpoints)
}

#[test]
fn resumes_to_the_bits_of_an_undisturbed_training() {
    let (folder, checkpoints) = killed();
    assert!(checkpoints.checkpoints().len() <= 2, "the newest is kept");
    let command = format!("sft --output-dir base {EACH_STEP}");
    let begun = checkpoints.checkpoints().pop().unwrap();
    let mut child = start(&folder, &command);
    wait_for(&mut child, &checkpoints, begun + 2);
    assert!(
        folder
            .refused(&command)
            .contains(&format!("in use by process {} on ", child.id()))
    );
    terminate(&child);
    let outcome = folder
        .outcome(child.wait_with_output().unwrap())
        .succeeded();
    assert_snapshot!(outcome.stderr.trim_end(), @"stopping after this step, with a checkpoint (again to stop at once)");
    let stopped = checkpoints.checkpoints().pop().unwrap();
    assert!(
        outcome
            .stdout
            .contains(&format!("resumed    after step {begun} of 30\n")),
        "{outcome:?}"
    );
    let last = format!("stopped after step {stopped} of 30; the same command goes on from there");
    assert_eq!(outcome.stdout.lines().last().unwrap(), last);
    assert!(!folder.path().join("base").exists());
    let resumed = folder.said(&command);
    let whole = folder.said(&format!("sft --output-dir whole {EACH_STEP}").replace("1e-6", "0"));
    for file in names(&folder.path().join("whole")) {
        assert!(
            folder.bytes(&format!("base/{file}")) == folder.bytes(&format!("whole/{file}")),
            "{file}"
        );
    }
    let loss = |said: &str| {
        said.lines()
            .find(|line| line.starts_with("step "))
            .unwrap()
            .to_owned()
    };
    assert_eq!(loss(&resumed), loss(&whole), "the mean is of all steps");
    assert_eq!(
        names(folder.path()),
        ["base", "whole"].map(str::to_owned).into(),
        "nothing is left"
    );
}

#[test]
fn resumes_only_with_the_same_settings_and_whole_files() {
    let (folder, checkpoints) = killed();
    let command = format!("sft --output-dir base {EACH_STEP}");
    let newest = checkpoints.checkpoints().pop().unwrap();
    let sentence = folder
        .refused(&format!("{command} --set train.seed=1"))
        .replace(&format!("{newest:06}"), "STEP");
    assert_snapshot!(sentence, @"cannot go on from `./base.partial/checkpoints/step-STEP` (remove `./base.partial` to begin anew): it was made with other settings: `train.seed`: 42 -> 1 (put them back)");
    for file in [
        "model.safetensors",
        "optimizer.safetensors",
        "progress.json",
        "tokenizer.json",
    ] {
        let path = checkpoints.last_checkpoint().join(file);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
        let sentence = folder.refused(&command);
        assert!(
            sentence.contains(&format!("{file}` is damaged")),
            "{sentence}"
        );
        fs::write(&path, whole).unwrap();
    }
    // A folder with other contents stays.
    folder.write("other.partial/notes.txt", "mine");
    assert_snapshot!(folder.refused(&command.replace("base", "other")), @"`./other.partial` exists and has no checkpoint of `host sft` (remove it, or choose another `--output-dir`)");
    // The training is not a run, so lists of runs leave it out.
    folder.train("run", crate::ONE_STEP);
    assert!(!folder.said("runs run base.partial").contains("base"));
    let model = format!("base.partial/checkpoints/step-{newest:06}");
    folder.said(&format!(
        "eval --model {model} --num-prompts 1 --set data.dataset_name=embedded:arithmetic"
    ));
}
