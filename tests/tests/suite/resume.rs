//! A resumed run has the same bits as an uninterrupted one.

use insta::assert_snapshot;
use tests::Folder;

use crate::ONE_STEP;
use crate::refused::assert_refused;

const FIVE_STEPS: &str = "--set train.save_steps=0 --set train.max_steps=5 --set eval.num_prompts=16 --set eval.eval_steps=2";

/// MiB of a line of `said` that begins with `memory`.
fn memory(said: &str) -> f64 {
    let line = said
        .lines()
        .find(|line| line.starts_with("memory"))
        .unwrap_or_else(|| panic!("{said}"));
    let words: Vec<&str> = line
        .split_whitespace()
        .filter(|word| *word != "about")
        .collect();
    words[1].parse::<f64>().unwrap() * if words[2] == "GiB" { 1024.0 } else { 1.0 }
}

#[test]
fn a_resume_takes_the_memory_of_a_run_as_it_was_estimated() {
    let folder = Folder::new();
    let sizes = r#""vocab_size": 15, "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 6,
        "num_key_value_heads": 6, "max_position_embeddings": 64, "eos_token_id": 1"#;
    folder.write(
        "model/config.json",
        format!("{{\"model_type\": \"llama\", {sizes}}}"),
    );
    folder.write_tokenizer("model");
    let model = "--set model.model_name_or_path=model --set model.fresh_weights=true --set rollout.max_completion_length=8";
    let batch = "--set train.per_device_train_batch_size=4 --set rollout.num_generations=4 --set eval.num_prompts=0 --set train.max_steps=2";
    for (run, looks) in [("plain", ""), ("measured", "--set train.measure_step=1")] {
        let args = format!("train {model} {batch} {looks}");
        let estimated = memory(&folder.said(&format!("{args} --dry-run")));
        let fresh = memory(&folder.said(&format!("{args} --output-dir {run} --stop-after 1")));
        let resumed = memory(&folder.said(&format!("train --resume {run}")));
        let told = format!("{run}: estimated {estimated}, fresh {fresh}, resumed {resumed} MiB");
        // A debug build is twice as large as a release, and the kernel maps more or fewer of its
        // pages. 16 MiB cover this.
        assert!(
            (estimated - fresh).abs() < 0.1 * fresh + 16.0 && (resumed / fresh - 1.0).abs() < 0.1,
            "{told}"
        );
    }
    // Keys and values of so many rows take a third of what is free, activations more than all of
    // it.
    let rows = 4 * (capo_system::memory::available().unwrap() / 3 / (4 * 8 * 2 * 384 * 48 * 4));
    let much = format!(
        "train {model} {batch} --set rollout.max_completion_length=48 --set train.per_device_train_batch_size={rows}"
    );
    let refused = folder.refused(&much);
    assert!(
        refused.starts_with("the run takes about ") && refused.contains("`--allow-more-memory`"),
        "{refused}"
    );
    let said = folder.host(&format!("{much} --dry-run"));
    assert!(
        said.refused().starts_with("the run takes about ") && memory(&said.stdout) > 1000.0,
        "{said:?}"
    );
    folder.said(&format!("{much} --dry-run --allow-more-memory"));
    assert!(!folder.path().join("runs").exists());
}

#[test]
fn resumes_with_a_reference_model_and_reused_rollouts() {
    let args = "--plugin libcapo.so --set objective.beta=0.1 --set train.per_device_train_batch_size=24 \
        --set train.num_iterations=2 --set train.save_steps=0 --set logging.log_completions=true";
    let folder = Folder::new();
    let whole = folder.assert_resumes(
        &format!("{args} --set train.max_steps=6 --set eval.num_prompts=0"),
        [3],
    );
    let resumed = folder.run_dir("stopped-3");
    assert_eq!(
        resumed.checkpoints(),
        [4, 6],
        "a run stops between rollouts"
    );
    assert_eq!(
        whole.text("completions.jsonl"),
        resumed.text("completions.jsonl")
    );
}

#[test]
fn resumes_after_every_step() {
    let folder = Folder::new();
    let whole = folder.train("whole", &format!("--plugin libcapo.so {FIVE_STEPS}"));
    let stopped = folder.train(
        "resumed",
        &format!("--plugin libcapo.so {FIVE_STEPS} --stop-after 1"),
    );
    assert_eq!(
        (stopped.metrics().len(), stopped.checkpoints()),
        (1, vec![1])
    );
    for step in 2..=5 {
        folder.said(&format!("train --resume resumed --stop-after {step}"));
        let again = folder.said(&format!("train --resume resumed --stop-after {}", step - 1));
        let said = format!(
            "this run has done {step} steps (`--stop-after` is {})\n",
            step - 1
        );
        assert!(step == 5 || again.ends_with(&said), "{again}");
    }
    folder.run_dir("resumed").assert_same_files(&whole);
}

#[test]
fn resumes_the_state_of_a_component() {
    let mask = "--plugin libmisbehave.so --set mask=[{use=\"misbehave.mask\",sin=\"stateful\"}]";
    let folder = Folder::new();
    let whole = folder.assert_resumes(&format!("{mask} {FIVE_STEPS}"), [2]);
    assert_eq!(
        whole.metric("misbehave.mask/calls"),
        [1.0, 2.0, 3.0, 4.0, 5.0]
    );
    // A state that another component wrote.
    folder.train(
        "foreign",
        &format!(
            "{} {FIVE_STEPS} --stop-after 1",
            mask.replace("stateful", "none")
        ),
    );
    folder.replace("foreign/config.toml", "\"none\"", "\"stateful\"");
    assert_snapshot!(folder.refused("train --resume foreign --allow-changed-config"), @"checkpoint `foreign/checkpoints/step-000001` cannot be used: component `misbehave.mask`: a state of 0 bytes is not its own");
    // A state that no component of the run has written.
    folder.train("kept", &format!("{mask} {FIVE_STEPS} --stop-after 1"));
    folder.replace("kept/config.toml", "\"stateful\"", "\"none\"");
    assert_snapshot!(folder.refused("train --resume kept --allow-changed-config"), @"checkpoint `kept/checkpoints/step-000001` cannot be used: component `misbehave.mask`: it keeps no state");
}

#[test]
fn refuses_other_components() {
    let folder = Folder::new();
    folder.train("run", &format!("{FIVE_STEPS} --stop-after 1"));
    folder.replace("run/config.toml", "grpo.advantage", "dr_grpo.advantage");
    assert_snapshot!(folder.refused("train --resume run --allow-changed-config"), @"checkpoint `run/checkpoints/step-000001` cannot be used: it holds the state of `grpo.advantage`, `grpo.objective`, the run has `dr_grpo.advantage`, `grpo.objective` (resume with the plugins and the `config.toml` that the run began with)");
}

#[test]
fn resumes_without_a_component_of_the_recipe() {
    let folder = Folder::new();
    folder.train(
        "run",
        &format!(
            "--plugin libmasks.so --set recipe=icepop --set weight=[] {FIVE_STEPS} --stop-after 1"
        ),
    );
    folder.resume("run");
}

#[test]
fn cuts_metrics_and_completions_back_to_the_checkpoint() {
    let folder = Folder::new();
    let logged = format!("{FIVE_STEPS} --set logging.log_completions=true");
    let whole = folder.train("whole", &logged);
    let torn = folder.train("torn", &format!("{logged} --stop-after 2"));
    for file in ["metrics.jsonl", "completions.jsonl"] {
        let path = torn.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(
            &path,
            format!("{text}{{\"step\":3,\"loss\":1}}\n{{\"step\":4,\"lo"),
        )
        .unwrap();
    }
    assert_snapshot!(folder.host("train --resume torn").succeeded().stderr, @"
    warning: `torn/metrics.jsonl`: 2 lines are cut that came after step 2
    warning: `torn/completions.jsonl`: 2 lines are cut that came after step 2
    ");
    torn.assert_same_files(&whole);
    assert_eq!(
        torn.metrics()
            .iter()
            .map(|line| line["step"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
}

#[test]
fn a_finished_run_has_nothing_to_resume() {
    let folder = Folder::new();
    let run = folder.train("run", ONE_STEP);
    let before = run.files();
    let outcome = folder.host("train --resume run").succeeded();
    assert_snapshot!(outcome.stdout.lines().last().unwrap(), @"this run has done all its steps");
    assert_eq!((run.files(), run.metrics().len()), (before, 1));
}

#[test]
fn refuses_what_is_not_a_run() {
    let folder = Folder::new();
    folder.write("folder/file", "");
    folder.train("run", ONE_STEP);
    folder.write("run/provenance.json", "[");
    assert_refused("resume", &folder);
}

#[test]
fn a_resume_takes_no_settings() {
    let folder = Folder::new();
    folder.write("run.toml", "");
    for extra in [
        "--config run.toml",
        "--set train.seed=1",
        "--output-dir other",
    ] {
        let sentence = folder.refused(&format!("train --resume run {extra}"));
        let option = extra.split(' ').next().unwrap();
        assert!(
            sentence.starts_with("the argument '--resume <DIR>' cannot be used with"),
            "{sentence}"
        );
        assert!(sentence.contains(option), "{sentence}");
    }
}

#[test]
fn a_damaged_checkpoint_may_be_deleted() {
    let folder = Folder::new();
    let args = format!("{FIVE_STEPS} --set train.save_steps=1");
    let whole = folder.train("whole", &args);
    let run = folder.train("run", &format!("{args} --stop-after 3"));
    std::fs::remove_file(run.last_checkpoint().join("optimizer.safetensors")).unwrap();
    assert_snapshot!(folder.refused("train --resume run"), @"checkpoint `run/checkpoints/step-000003` cannot be used: `run/checkpoints/step-000003/optimizer.safetensors` is damaged (use another checkpoint; a run whose newest is deleted goes on from the one before it, or from the start): cannot read `run/checkpoints/step-000003/optimizer.safetensors`: No such file or directory (os error 2)");
    std::fs::remove_dir_all(run.last_checkpoint()).unwrap();
    folder.resume("run").assert_same_files(&whole);
    // Without any checkpoint a run starts again.
    folder.train("bare", &format!("{args} --stop-after 2"));
    std::fs::remove_dir_all(folder.path().join("bare/checkpoints")).unwrap();
    let said = folder.said("train --resume bare");
    assert!(
        said.contains("resuming   at step 1 again: the run has no checkpoint\n"),
        "{said}"
    );
    folder.run_dir("bare").assert_same_files(&whole);
}
