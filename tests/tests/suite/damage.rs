//! Files of a run that somebody changed: changed states and settings are refused.

use std::fs;

use insta::assert_snapshot;
use tests::{Folder, RunDir};

use crate::ONE_STEP;

const FIVE_STEPS: &str =
    "--set train.save_steps=0 --set train.max_steps=5 --set eval.num_prompts=0";

/// A run that stopped after two of five steps.
fn stopped(args: &str) -> (Folder, RunDir) {
    let folder = Folder::new();
    let run = folder.train("run", &format!("{FIVE_STEPS} {args} --stop-after 2"));
    (folder, run)
}

/// Inverts a bit in the middle of a file, or writes something into an empty one. Returns the error
/// of `host ARGS`, and restores the file.
fn with_a_flip(folder: &Folder, file: &str, args: &str) -> String {
    let path = folder.path().join(file);
    let whole = fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    let middle = bytes.len() / 2;
    match bytes.get_mut(middle) {
        Some(byte) => *byte ^= 1,
        None => bytes.push(0),
    }
    fs::write(&path, bytes).unwrap();
    let sentence = folder.refused(args);
    fs::write(&path, whole).unwrap();
    sentence
}

#[test]
fn refuses_any_changed_file_of_a_checkpoint() {
    let (folder, run) = stopped("--plugin libcapo.so");
    let checkpoint = "run/checkpoints/step-000002";
    let (_, files) = run.files();
    assert_eq!(files.len(), 11, "{files:?}");
    for file in files.keys() {
        let sentence = with_a_flip(
            &folder,
            &format!("{checkpoint}/{file}"),
            "train --resume run",
        );
        let expected = format!("checkpoint `{checkpoint}` cannot be used: `{checkpoint}/{file}` ");
        assert!(
            sentence.starts_with(&expected) && sentence.contains("SHA-256"),
            "{sentence}"
        );
    }
    assert_snapshot!(with_a_flip(&folder, &format!("{checkpoint}/model.safetensors"), "train --resume run"), @"checkpoint `run/checkpoints/step-000002` cannot be used: `run/checkpoints/step-000002/model.safetensors` is damaged (use another checkpoint; a run whose newest is deleted goes on from the one before it, or from the start): SHA-256 HASH expected HASH");
    for (from, to) in [
        ("\"step\": 2", "\"step\": 3"),
        ("\"prompts\": ", "\"prompts\": 1"),
    ] {
        let path = run.last_checkpoint().join("progress.json");
        let whole = fs::read(&path).unwrap();
        folder.replace(&format!("{checkpoint}/progress.json"), from, to);
        assert!(
            folder
                .refused("train --resume run")
                .contains("progress.json` is damaged")
        );
        fs::write(&path, whole).unwrap();
    }
    folder.resume("run");
}

#[test]
fn refuses_a_checkpoint_under_another_steps_name() {
    let (folder, run) = stopped("");
    fs::rename(
        run.last_checkpoint(),
        run.path().join("checkpoints/step-000003"),
    )
    .unwrap();
    assert_snapshot!(folder.refused("train --resume run --allow-changed-config"), @"checkpoint `run/checkpoints/step-000003` cannot be used: it is of step 2, not 3 (give the folder its name back: `step-000002`)");
    fs::remove_file(run.last_checkpoint().join("capo-manifest.json")).unwrap();
    assert_snapshot!(folder.refused("train --resume run"), @"checkpoint `run/checkpoints/step-000003` cannot be used: `run/checkpoints/step-000003/capo-manifest.json` is missing or damaged (use another checkpoint; a run whose newest is deleted goes on from the one before it, or from the start): cannot read `run/checkpoints/step-000003/capo-manifest.json`: No such file or directory (os error 2)");
}

#[test]
fn every_reader_of_a_checkpoint_compares_hashes() {
    let (folder, _) = stopped("");
    let checkpoint = "run/checkpoints/step-000002";
    let readers = [
        format!("eval --num-prompts 4 --model {checkpoint}"),
        format!("generate --model {checkpoint} --max-completion-length 2 1+1="),
        format!("export --model {checkpoint} --out exported"),
        format!("train {ONE_STEP} --set model.model_name_or_path={checkpoint}"),
        format!(
            "sft --output-dir base --set model={{model_name_or_path=\"{checkpoint}\"}} --set train.max_steps=1 --set eval.num_prompts=0"
        ),
    ];
    for args in &readers {
        for file in [
            "model.safetensors",
            "config.json",
            "tokenizer.json",
            "capo-manifest.json",
        ] {
            let sentence = with_a_flip(&folder, &format!("{checkpoint}/{file}"), args);
            assert!(
                sentence.contains(&format!("{checkpoint}/{file}` "))
                    && sentence.contains("SHA-256"),
                "{sentence}"
            );
        }
        // Files that only a resume needs are not read.
        folder.write(&format!("{checkpoint}/optimizer.safetensors"), "changed");
        folder.said(args);
    }
    // A model's folder without a manifest is read as it is. A checkpoint without its manifest is
    // such a folder.
    fs::remove_file(folder.path().join(checkpoint).join("capo-manifest.json")).unwrap();
    folder.said(&readers[0]);
}

#[test]
fn names_changed_settings_and_takes_them_if_told_to() {
    let (folder, run) = stopped("--plugin libcapo.so");
    folder.replace(
        "run/config.toml",
        "learning_rate = 0.0001",
        "learning_rate = 0.0002",
    );
    folder.replace(
        "run/config.toml",
        "[[mask]]",
        "[[mask]]\nquantile_of_nothing = 1",
    );
    assert!(
        folder
            .refused("train --resume run")
            .contains("quantile_of_nothing")
    );
    folder.replace("run/config.toml", "quantile_of_nothing = 1", "threads = 1");
    let refused = folder.refused("train --resume run");
    assert_snapshot!(refused, @"the settings of `run/config.toml` are not those that its checkpoint of step 2 was made with: `mask.0.threads`: not set -> 1, `train.learning_rate`: 0.0001 -> 0.0002 (put them back, or take them with `--allow-changed-config`)");
    // The changed settings were accepted, but no step was taken, so there is no checkpoint made
    // with them.
    folder.said("train --resume run --allow-changed-config --stop-after 2");
    assert_eq!(folder.refused("train --resume run"), refused);
    let outcome = folder
        .host("train --resume run --allow-changed-config --stop-after 3")
        .succeeded();
    assert_snapshot!(outcome.stdout.lines().find(|line| line.starts_with("changed")).unwrap(), @"changed    `mask.0.threads`: not set -> 1, `train.learning_rate`: 0.0001 -> 0.0002");
    // After a step with them, the settings are recorded. They are not once the checkpoint is gone.
    folder.said("train --resume run --stop-after 4");
    for step in [3, 4] {
        fs::remove_dir_all(run.path().join(format!("checkpoints/step-00000{step}"))).unwrap();
    }
    assert!(
        folder
            .refused("train --resume run")
            .contains("those that the run began with")
    );
    let refused = folder.refused("train --allow-changed-config");
    assert!(refused.contains("--resume <DIR>"), "{refused}");
}

#[test]
fn names_changed_settings_before_the_first_checkpoint() {
    let (folder, run) = stopped("");
    fs::remove_dir_all(run.path().join("checkpoints")).unwrap();
    folder.replace("run/config.toml", "seed = 42", "seed = 43");
    assert_snapshot!(folder.refused("train --resume run"), @"the settings of `run/config.toml` are not those that the run began with: `train.seed`: 42 -> 43 (put them back, or take them with `--allow-changed-config`)");
    let changed = folder
        .host("train --resume run --allow-changed-config")
        .succeeded();
    assert!(
        changed
            .stdout
            .contains("changed    `train.seed`: 42 -> 43\n"),
        "{}",
        changed.stdout
    );
    let other = folder.train("other", &format!("{FIVE_STEPS} --set train.seed=43"));
    run.assert_same_files(&other);
}

#[test]
fn refuses_a_changed_record_of_a_runs_origin() {
    let (folder, _) = stopped("--plugin libcapo.so");
    let sentence = with_a_flip(&folder, "run/provenance.json", "train --resume run");
    assert!(
        sentence.starts_with("`run/provenance.json` is damaged: SHA-256"),
        "{sentence}"
    );
}
