//! A run's directory: it appears as a whole, one process works in it, and nothing is left over.

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;

use insta::assert_snapshot;
use tests::run_dir::tensors;
use tests::{Folder, names};

use crate::ONE_STEP;
use crate::interruption::{kill, start, terminate, wait_for};
use crate::refused::assert_refused;

const THREE_STEPS: &str =
    "--set train.max_steps=3 --set eval.num_prompts=0 --set train.save_steps=1";

#[test]
fn survives_a_kill_as_soon_as_the_directory_appears() {
    let folder = Folder::new();
    let whole = folder.train("whole", THREE_STEPS);
    for _ in 0..3 {
        let mut child = start(&folder, &format!("train --output-dir run {THREE_STEPS}"));
        wait_for(&mut child, &folder.run_dir("run"), 0);
        kill(child);
        folder.resume("run").assert_same_files(&whole);
        fs::remove_dir_all(folder.path().join("run")).unwrap();
    }
    folder.train("last", ONE_STEP);
    assert_eq!(
        names(folder.path()),
        BTreeSet::from(["last", "whole"].map(str::to_owned))
    );
}

/// A limit on the size of files, in blocks of 512 bytes, looks like a full disk: the signal that
/// comes with it is ignored.
#[test]
fn a_full_disk_at_the_start_leaves_nothing() {
    let folder = Folder::new();
    let outcome = folder.host_after("ulimit -f 0", &format!("train --output-dir run {ONE_STEP}"));
    let sentence = outcome.failed();
    assert!(
        sentence.starts_with("cannot make the run directory `run`: cannot write `FOLDER/"),
        "{sentence}"
    );
    assert!(
        sentence.ends_with("lock`: File too large (os error 27)"),
        "{sentence}"
    );
    assert_eq!(names(folder.path()), BTreeSet::new());
    folder.train("run", ONE_STEP);
    for written in [
        "eval --num-prompts 4 --output answers.jsonl",
        "report run --out report.html",
    ] {
        let sentence = folder.host_after("ulimit -f 0", written).failed();
        assert!(
            sentence.contains("File too large (os error 27)"),
            "{sentence}"
        );
    }
}

#[test]
fn a_full_disk_later_leaves_a_resumable_run() {
    let folder = Folder::new();
    let whole = folder.train("whole", THREE_STEPS);
    let sentence = folder
        .host_after(
            "ulimit -f 64",
            &format!("train --output-dir run {THREE_STEPS}"),
        )
        .failed();
    let told = "the run stopped after step 1, without a checkpoint (`host train --resume run` begins again at step 1): ";
    assert!(sentence.starts_with(told), "{sentence}");
    assert_eq!(
        names(&folder.path().join("run/checkpoints")),
        BTreeSet::new()
    );
    fs::remove_dir(folder.path().join("run/checkpoints")).unwrap();
    assert_eq!(
        folder.refused("eval --model run"),
        "the run `run` has no checkpoint yet"
    );
    folder.resume("run").assert_same_files(&whole);
}

#[test]
fn a_start_replaces_nothing() {
    let folder = Folder::new();
    folder.write("config.toml", "mine");
    folder.write("file", "mine");
    fs::create_dir(folder.path().join("empty")).unwrap();
    std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
    let before = names(folder.path());
    let refused =
        |set: &str| folder.refused(&format!("train {ONE_STEP} --set train.output_dir={set}"));
    assert_refused("output_dir", &folder);
    for name in [".", "file", "empty", "link"] {
        let expected = format!("`train.output_dir` `{name}` exists already (choose another)");
        assert_eq!(refused(name), expected);
        assert_eq!(
            folder.refused(&format!("train {ONE_STEP} --output-dir {name}")),
            expected
        );
        let sft = folder.refused(&format!("sft --output-dir {name}"));
        assert!(
            sft.contains(if name == "." {
                "names no folder"
            } else {
                "exists already"
            }),
            "{sft}"
        );
    }
    for name in ["empty", "link"] {
        let outcome = folder.host(&format!("eval --num-prompts 1 --output {name}"));
        assert!(
            outcome
                .refused()
                .ends_with("exists and is not a plain file (choose another name)"),
            "{outcome:?}"
        );
    }
    assert_eq!(names(folder.path()), before);
    assert_eq!(folder.bytes("config.toml"), b"mine");
}

#[test]
fn replaces_a_run_that_failed_before_its_first_step() {
    let folder = Folder::new();
    let args = "--output-dir run --set train.max_steps=2 --set eval.num_prompts=4";
    let exists =
        "`train.output_dir` `run` exists already (choose another, or go on with `--resume run`)";
    let _ = folder
        .host(&format!(
            "train {args} --set reward=[{{use=\"command\",command=[\"false\"]}}]"
        ))
        .failed();
    let blank = names(&folder.path().join("run"));
    // A file that does not belong to the run stays.
    folder.write("run/notes.txt", "mine");
    assert_eq!(folder.refused(&format!("train {args}")), exists);
    fs::remove_file(folder.path().join("run/notes.txt")).unwrap();
    assert_eq!(names(&folder.path().join("run")), blank);
    folder.said(&format!("train {}", args.replace("run ", "run/. ")));
    assert_eq!(folder.run_dir("run").metrics().len(), 2);
    // A run that has done a step is not replaced.
    assert_eq!(folder.refused(&format!("train {args}")), exists);
}

#[test]
fn a_resume_prunes_what_a_killed_run_did_not() {
    let folder = Folder::new();
    let run = folder.train("run", &format!("{ONE_STEP} --set train.save_total_limit=1"));
    let surplus = run.path().join("checkpoints/step-000000");
    fs::create_dir(&surplus).unwrap();
    folder.said("train --resume run");
    assert!(!surplus.exists());
    assert_eq!(
        names(&run.path().join("checkpoints")),
        BTreeSet::from(["step-000001".to_owned()])
    );
}

#[test]
fn refuses_one_of_two_starts_in_one_directory() {
    let folder = Folder::new();
    let whole = folder.train("whole", ONE_STEP);
    let start = || {
        let mut command = folder.command(&format!("train --output-dir run {ONE_STEP}"));
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let both = [start(), start()].map(|child| folder.outcome(child.wait_with_output().unwrap()));
    let (won, lost) = if both[0].code == Some(0) {
        (&both[0], &both[1])
    } else {
        (&both[1], &both[0])
    };
    assert_eq!(won.code, Some(0), "{both:?}");
    assert_snapshot!(lost.refused(), @"`train.output_dir` `run` exists already (choose another, or go on with `--resume run`)");
    folder.run_dir("run").assert_same_files(&whole);
    assert_eq!(
        names(folder.path()),
        BTreeSet::from(["run", "whole"].map(str::to_owned))
    );
}

#[test]
fn refuses_a_second_process_in_a_run() {
    let folder = Folder::new();
    let steps = "--set train.max_steps=100000 --set eval.num_prompts=0";
    let mut child = start(&folder, &format!("train --output-dir run {steps}"));
    wait_for(&mut child, &folder.run_dir("run"), 1);
    let sentence = folder.refused("train --resume run");
    let expected = format!("`run` is in use by process {} on ", child.id());
    assert!(sentence.starts_with(&expected), "{sentence}");
    assert!(
        sentence.ends_with(" (wait until it has ended, or stop it)"),
        "{sentence}"
    );
    // The lock, and not the file, keeps a second process away.
    fs::remove_file(folder.path().join("run/lock")).unwrap();
    assert_snapshot!(folder.refused("train --resume run"), @"`run` is in use by another process, which its file `lock` does not name (wait until it has ended, or stop it)");
    kill(child);
    folder.said("train --resume run --stop-after 1");
}

#[test]
fn a_link_in_a_run_changes_nothing_elsewhere() {
    let folder = Folder::new();
    folder.train(
        "run",
        &format!("{THREE_STEPS} --set logging.log_completions=true --stop-after 2"),
    );
    folder.write("thesis.txt", "{\"step\": 99}\n");
    let before = names(folder.path());
    for (name, what) in [
        (
            "lock",
            "cannot lock the run directory `run`: cannot open `run/lock`",
        ),
        ("metrics.jsonl", "cannot take `run/metrics.jsonl` up again"),
        (
            "completions.jsonl",
            "cannot take `run/completions.jsonl` up again",
        ),
    ] {
        let (path, aside) = (
            folder.path().join("run").join(name),
            folder.path().join("run/aside"),
        );
        fs::rename(&path, &aside).unwrap();
        for target in ["../thesis.txt", "../absent.txt"] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            let expected = format!(
                "{what}: it is a symbolic link, not a regular file (remove it, or put a file in its place)"
            );
            assert_eq!(folder.refused("train --resume run"), expected);
            fs::remove_file(&path).unwrap();
        }
        fs::rename(&aside, &path).unwrap();
    }
    for name in ["checkpoints", "completions"] {
        let path = folder.path().join("run").join(name);
        let _ = fs::rename(&path, folder.path().join("run/aside"));
        folder.write("other/step-000001/file", "mine");
        std::os::unix::fs::symlink("../other", &path).unwrap();
        let sentence = folder.refused("train --resume run");
        assert_eq!(
            sentence,
            format!(
                "`run/{name}` is a symbolic link, and a run changes nothing outside its directory (put the folder itself in its place)"
            )
        );
        fs::remove_file(&path).unwrap();
        let _ = fs::rename(folder.path().join("run/aside"), &path);
    }
    fs::remove_dir_all(folder.path().join("other")).unwrap();
    assert_eq!(folder.text("thesis.txt"), "{\"step\": 99}\n");
    assert_eq!(names(folder.path()), before);
    folder.resume("run");
}

#[test]
fn a_pipe_in_place_of_the_lock_stops_nobody() {
    let folder = Folder::new();
    folder.train("run", ONE_STEP);
    let lock = folder.path().join("run/lock");
    fs::remove_file(&lock).unwrap();
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&lock)
            .status()
            .unwrap()
            .success()
    );
    for command in ["runs .", "diagnose run", "report run --out page.html"] {
        let outcome = folder.host(command).succeeded();
        let expected = "`lock`: it is a named pipe, not a regular file (remove it, or put a file in its place)";
        assert!(
            command.starts_with("diagnose") || outcome.stderr.contains(expected),
            "{command}: {outcome:?}"
        );
    }
    assert!(
        folder
            .refused("train --resume run")
            .contains("`run/lock`: it is a named pipe")
    );
}

#[test]
fn warns_of_lost_lines_of_metrics() {
    let folder = Folder::new();
    let steps = "--set train.max_steps=100000 --set eval.num_prompts=0 --set train.per_device_train_batch_size=8";
    let run = folder.run_dir("run");
    let mut child = start(&folder, &format!("train --output-dir run {steps}"));
    wait_for(&mut child, &run, 3);
    fs::remove_file(run.path().join("metrics.jsonl")).unwrap();
    wait_for(&mut child, &run, 2);
    terminate(&child);
    let outcome = folder
        .outcome(child.wait_with_output().unwrap())
        .succeeded();
    let told = "warning: `run/metrics.jsonl` was deleted or cut while the run went on: the lines of steps 1 to ";
    assert_eq!(
        outcome.stderr.matches(told).count(),
        1,
        "{}",
        outcome.stderr
    );
    // Somebody removes a line before a resume.
    let metrics = run.text("metrics.jsonl");
    folder.write("run/metrics.jsonl", metrics.split_once('\n').unwrap().1);
    let resumed = folder.host(&format!(
        "train --resume run --stop-after {}",
        run.checkpoints().pop().unwrap() + 1
    ));
    let first = run.metrics()[0]["step"].as_u64().unwrap() - 1;
    let told =
        format!("warning: `run/metrics.jsonl`: the lines of steps 1 to {first} are missing\n");
    assert_eq!(resumed.succeeded().stderr, told);
}

#[test]
fn a_command_removes_what_a_killed_one_left_beside_its_output() {
    let folder = Folder::new();
    folder.train("runs/run", ONE_STEP);
    let model = "--model embedded:tiny-arithmetic";
    folder.write(
        "rows.jsonl",
        "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n",
    );
    for command in [
        &format!("generate {model} --out out/a.jsonl --max-completion-length 2 1+1="),
        &format!("score {model} --input rows.jsonl --out out/b.jsonl"),
        "eval --num-prompts 1 --output out/c.jsonl",
        "report runs/run --out out/d.html",
        &format!("export {model} --out out/e"),
        "sft --output-dir out/f --set train.max_steps=1 --set train.per_device_train_batch_size=2 --set eval.num_prompts=0",
        "new-plugin calm --dir out",
    ] {
        folder.write("out/.partial-capo-file", "half");
        folder.write("out/.partial-capo-folder/whole/model.safetensors", "half");
        folder.write("out/.deleted-capo-folder/whole/file", "half");
        // A living process holds the lock of its file.
        folder.write("out/.partial-capo-living", "half");
        let living = fs::File::open(folder.path().join("out/.partial-capo-living")).unwrap();
        living.lock().unwrap();
        folder.said(command);
        let hidden: Vec<_> = names(&folder.path().join("out"))
            .into_iter()
            .filter(|name| name.starts_with('.'))
            .collect();
        assert_eq!(hidden, [".partial-capo-living"], "{command}");
    }
}

#[test]
fn leftovers_of_an_interruption_are_removed() {
    let folder = Folder::new();
    let run = folder.train(
        "run",
        &format!("{THREE_STEPS} --set train.save_total_limit=1 --stop-after 2"),
    );
    for left in [
        ".partial-x",
        "checkpoints/.partial-x/model.safetensors",
        "checkpoints/.deleted-capo-x/whole/file",
    ] {
        folder.write(&format!("run/{left}"), "half");
    }
    folder.resume("run");
    assert_eq!(run.checkpoints(), [3]);
    assert_eq!(
        names(&run.path().join("checkpoints")),
        BTreeSet::from(["step-000003".to_owned()])
    );
    let files = [
        "checkpoints",
        "config.toml",
        "lock",
        "metrics.jsonl",
        "provenance.json",
    ];
    assert_eq!(names(run.path()), BTreeSet::from(files.map(str::to_owned)));
}

#[test]
fn batches_of_a_resumed_run() {
    let folder = Folder::new();
    folder.train(
        "whole",
        &format!("{THREE_STEPS} --dump-batches whole-batches"),
    );
    folder.train(
        "run",
        &format!("{THREE_STEPS} --dump-batches batches --stop-after 2"),
    );
    // The run looks as if it had been killed before its first checkpoint, once while it wrote a
    // batch.
    fs::remove_dir_all(folder.path().join("run/checkpoints")).unwrap();
    folder.write("batches/.partial-x", "half");
    folder.write(
        "batches/batch-000007.safetensors",
        "of a step that will not come",
    );
    folder.write("batches/notes.txt", "mine");
    folder.said("train --resume run --dump-batches batches");
    let steps = (0..3).map(|step| format!("batch-{step:06}.safetensors"));
    assert_eq!(
        names(&folder.path().join("batches")),
        steps.clone().chain(["notes.txt".into()]).collect()
    );
    let read = |dir: &str, name: &str| tensors(&folder.path().join(dir).join(name));
    assert!(
        steps
            .into_iter()
            .all(|name| read("batches", &name) == read("whole-batches", &name))
    );
    // A new run that is refused leaves nothing.
    for dir in ["batches", "batches/notes.txt"] {
        let refused = folder.refused(&format!(
            "train --output-dir other {ONE_STEP} --dump-batches {dir}"
        ));
        assert_eq!(
            refused,
            format!("`--dump-batches {dir}` is no empty folder (choose another)")
        );
    }
    assert!(!folder.path().join("other").exists());
    // The batches of another run stay.
    assert_snapshot!(folder.refused("train --resume run --dump-batches whole-batches"), @"`--dump-batches whole-batches` is no empty folder, and not the one with this run's batches (choose another)");
}
