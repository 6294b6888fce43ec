//! Runs that end before their last step, the checkpoints that they keep, and the export of their
//! models.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use serde_json::json;
use tests::{Folder, RunDir};

/// Steps with an evaluation after each, on few prompts, and with a rate that soon spoils the model.
const SPOILED: &str = "--set train.per_device_train_batch_size=16 --set eval.num_prompts=32 --set eval.eval_steps=1 \
    --set train.learning_rate=3e-2 --set train.warmup_ratio=0 --set train.max_steps=12 --set train.save_steps=1 --set train.save_total_limit=2 \
    --set train.metric_for_best_model=eval_accuracy";

/// Steps of two rollouts that are each used several times, with small batches.
const SHORT: &str = "--set train.per_device_train_batch_size=8 --set rollout.num_generations=4 --set rollout.max_completion_length=12 \
    --set eval.num_prompts=8 --set eval.eval_steps=2 --set train.num_iterations=2 --set train.save_steps=2 --set train.save_total_limit=0 --set train.max_steps=5 \
    --set train.metric_for_best_model=eval_reward --set logging.log_completions=true";

/// The step with the best accuracy, the first of several.
fn best(run: &RunDir) -> u64 {
    let accuracies = run.metric("eval_accuracy");
    let best = accuracies.iter().copied().fold(0.0, f64::max);
    accuracies
        .iter()
        .position(|accuracy| *accuracy == best)
        .unwrap() as u64
        + 1
}

#[test]
fn keeps_the_best_checkpoint_and_stops_early() {
    let folder = Folder::new();
    let patience = format!("{SPOILED} --set train.early_stopping_patience=3");
    let said = folder.said(&format!("train --output-dir whole {patience}"));
    let whole = folder.run_dir("whole");
    let (best, last) = (best(&whole), whole.metrics().len() as u64);
    assert_eq!(
        last,
        best + 3,
        "three evaluations without improvement end the run"
    );
    assert!(last < 12);
    assert_eq!(
        whole.checkpoints(),
        [best, last],
        "the best is one of those that the limit allows"
    );
    let line = said
        .lines()
        .find(|line| line.starts_with("ended after step"))
        .unwrap();
    assert!(
        line.contains("3 evaluations without improvement, the best was "),
        "{line}"
    );
    let line = said
        .lines()
        .find(|line| line.starts_with("best checkpoint"))
        .unwrap();
    let before = whole.lines()[0]["eval_accuracy"].as_f64().unwrap();
    assert!(
        line.ends_with(&format!(
            "; the model before training was better: {before:.4}"
        )),
        "{line}"
    );
    assert!(
        folder
            .said("train --resume whole")
            .contains("this run has ended: 3 evaluations")
    );
    // A resumed run knows its best evaluation from before.
    folder.train("resumed", &format!("{patience} --stop-after {}", best + 1));
    let resumed = folder.resume("resumed");
    resumed.assert_same_files(&whole);
    assert_eq!(resumed.checkpoints(), whole.checkpoints());
}

#[test]
fn completions_and_time_end_a_run_at_the_end_of_a_rollout() {
    let folder = Folder::new();
    let args = "--set train.per_device_train_batch_size=16 --set eval.num_prompts=8 --set train.max_steps=9 --set train.save_steps=0";
    let run = folder.train(
        "completions",
        &format!("{args} --set train.max_completions=40"),
    );
    assert_eq!(
        run.metrics().len(),
        3,
        "40 completions are begun by the third rollout of 16"
    );
    assert_eq!(run.checkpoints(), [3]);
    let progress = tests::json(&run.last_checkpoint().join("progress.json"));
    // Checkpoints of older hosts have no such keys, and are read.
    assert!(
        progress["progress"].get("best").is_none() && progress.get("data").is_none(),
        "{progress}"
    );
    assert!(
        run.metrics()[2].contains_key("eval_accuracy"),
        "the last step is measured"
    );
    let said = folder.said("train --resume completions");
    assert_snapshot!(said.lines().last().unwrap(), @"this run has ended: 48 completions are sampled (`train.max_completions` is 40)");
    // The time limit is over at once, so each process takes one rollout.
    let none = "--set train.num_iterations=2 --set train.max_steps=4 --set train.max_time=1e-9";
    let pieces = folder.train("pieces", &format!("{args} {none}"));
    assert_eq!(pieces.checkpoints(), [2]);
    let whole = folder.train("whole", &format!("{args} {none} --set train.max_time=1e9"));
    let pieces = folder.resume("pieces");
    assert_eq!(
        (pieces.weights(), pieces.metrics()),
        (whole.weights(), whole.metrics())
    );
}

#[test]
fn a_run_is_exported_with_its_card() {
    let folder = Folder::new();
    folder.train("run", SPOILED);
    let run = folder.run_dir("run");
    let best = best(&run);
    let said = folder.said("export --model run --out model");
    assert!(said.contains(&format!("step {best}: ")), "{said}");
    let read = |path: &str| folder.bytes(path);
    assert!(
        read("model/model.safetensors")
            == read(&format!("run/checkpoints/step-{best:06}/model.safetensors"))
    );
    for file in ["tokenizer.json", "tokenizer_config.json", "config.json"] {
        assert!(!read(&format!("model/{file}")).is_empty());
    }
    let card = String::from_utf8(read("model/README.md")).unwrap();
    let (before, _) = card.split_once("| learning_rate").unwrap();
    assert_snapshot!(before);
    let accuracy = &run.metrics()[best as usize - 1]["eval_accuracy"];
    let accuracy = format!("| eval_accuracy | {:.4} |", accuracy.as_f64().unwrap());
    assert!(card.contains(&accuracy), "{card}");
    let settings = card
        .split_once("```toml\n")
        .unwrap()
        .1
        .trim_end()
        .trim_end_matches("```");
    assert_eq!(
        settings.trim_end(),
        String::from_utf8(read("run/config.toml"))
            .unwrap()
            .trim_end()
    );
    // An evaluation of a run measures its best checkpoint on the run's own benchmarks.
    let eval = |model: &str| folder.said(&format!("eval --model {model} --num-prompts 8"));
    assert_eq!(
        eval("run"),
        eval(&format!("run/checkpoints/step-{best:06}"))
    );
    assert_eq!(
        eval("run"),
        eval("model --set data.dataset_name=embedded:arithmetic")
    );
    assert_snapshot!(folder.refused("export --model run --step 99 --out other").split(" (it has").next().unwrap(), @"the run `run` has no checkpoint of step 99");
    assert_snapshot!(folder.refused("export --model model --step 1 --out other"), @"`model` is no run, and so has no steps to choose from (remove `--step`)");
    // If somebody deleted the best checkpoint, another one is used.
    std::fs::remove_dir_all(run.path().join(format!("checkpoints/step-{best:06}"))).unwrap();
    let outcome = folder.host("export --model run --out newest").succeeded();
    assert_eq!(
        outcome.stderr,
        format!(
            "warning: the run `run` has no longer its best checkpoint, of step {best}; the newest is taken\n"
        )
    );
    assert!(outcome.stdout.contains("step 12: "), "{outcome:?}");
}

#[test]
fn a_longer_run_resumes_inside_a_rollout_with_its_saves_and_evaluations() {
    let folder = Folder::new();
    folder.train("run", SHORT);
    // Another metric has another best value. Completions are counted with the group size that each
    // rollout had.
    for (before, after) in [
        ("max_steps = 5", "max_steps = 8"),
        ("best_model = \"eval_reward\"", "best_model = \"loss\""),
        ("num_generations = 4", "num_generations = 8"),
    ] {
        folder.replace("run/config.toml", before, after);
    }
    folder.said("train --resume run --allow-changed-config");
    let run = folder.run_dir("run");
    assert_eq!(
        run.metric("num_completions"),
        [8, 8, 16, 16, 24, 32, 40, 40].map(f64::from)
    );
    assert_eq!(run.checkpoints(), [2, 4, 5, 6, 8]);
    let steps = |file: &str, name: &str| {
        let lines = folder
            .json_lines(file)
            .into_iter()
            .filter(|line| line.get(name).is_some());
        lines
            .map(|line| line["step"].as_u64().unwrap())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        steps("run/metrics.jsonl", "eval_reward"),
        [0, 2, 4, 5, 6, 8].into()
    );
    assert_eq!(
        steps("run/completions.jsonl", "completion"),
        [1, 3, 5, 7].into()
    );
    for (step, max_steps) in [(2, 5), (5, 5), (8, 8)] {
        folder.said(&format!(
            "export --model run --step {step} --out model-{step}"
        ));
        let card = folder.text(&format!("model-{step}/README.md"));
        assert!(
            card.contains(&format!("\nmax_steps = {max_steps}\n")),
            "{card}"
        );
    }
    let best = &tests::json(&run.last_checkpoint().join("progress.json"))["progress"]["best"];
    assert!(
        best["step"].as_u64() > Some(5) && best["measure"] == json!(["loss", false]),
        "{best}"
    );
}

#[test]
fn refuses_a_metric_that_no_step_has() {
    let misspelt = |metric: &str| {
        let set = format!(
            "--set train.metric_for_best_model={metric} --set eval={{num_prompts=4,eval_steps=1,benchmark=[{{name=\"b\",file=\"b.jsonl\"}}]}}"
        );
        let folder = Folder::new();
        folder.write("b.jsonl", "{\"prompt\": \"1+1=\", \"answer\": 2}\n");
        folder
            .attempt(
                "run",
                &format!(
                    "{set} --set train.per_device_train_batch_size=16 --set train.max_steps=2"
                ),
            )
            .failed()
    };
    assert_snapshot!(misspelt("eval_acuracy"), @"the run stopped after step 0 (go on with `host train --resume run`): `train.metric_for_best_model` is `eval_acuracy`, which step 0 does not have (did you mean `eval_accuracy`?)");
    assert_snapshot!(misspelt("eval/b/pass@8"), @"the run stopped after step 0 (go on with `host train --resume run`): `train.metric_for_best_model` is `eval/b/pass@8`, which step 0 does not have (did you mean `eval/b/pass@1`?)");
    assert_snapshot!(misspelt("rewards"), @"the run stopped after step 1, without a checkpoint (`host train --resume run` begins again at step 1): `train.metric_for_best_model` is `rewards`, which step 1 does not have (did you mean `reward`?)");
}
