//! Contents of `metrics.jsonl`.

use tests::Folder;

#[test]
fn the_accuracy_before_training_comes_first() {
    let folder = Folder::new();
    let run = folder.train("run", "--set train.max_steps=2 --set eval.num_prompts=8");
    let steps: Vec<_> = run
        .lines()
        .iter()
        .map(|line| line["step"].clone())
        .collect();
    assert_eq!(steps, [0, 1, 2]);
    let before = run.lines()[0]["eval_accuracy"].as_f64().unwrap();
    let progress = std::fs::read_to_string(run.last_checkpoint().join("progress.json")).unwrap();
    assert!(
        progress.contains(&format!("\"accuracy_before\": {before:?},")),
        "{progress}"
    );
    let without = folder.train(
        "without",
        "--set train.max_steps=1 --set eval.num_prompts=0",
    );
    assert_eq!(without.lines().len(), 1);
}

#[test]
fn the_line_of_a_step_has_the_time_of_its_checkpoint() {
    let folder = Folder::new();
    let steps = |run: &tests::RunDir| {
        let text = run.text("metrics.jsonl");
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let with = lines.filter(|line| line["timing_s/checkpoint"].as_f64() > Some(0.0));
        with.map(|line| line["step"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    let args = "--set train.max_steps=3 --set eval.num_prompts=0";
    assert_eq!(steps(&folder.train("run", args)), [3]);
    assert_eq!(
        steps(&folder.train("stopped", &format!("{args} --stop-after 1"))),
        [1]
    );
    assert_eq!(steps(&folder.resume("stopped")), [1, 3]);
}
