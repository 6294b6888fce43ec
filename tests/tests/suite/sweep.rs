//! Sweeps of a mask's setting over recorded batches: the table agrees with separate replays, and
//! the suggestion meets its target.

use insta::assert_snapshot;
use tests::artifacts::load_examples;
use tests::{Folder, names};

use crate::refused::assert_refused;
use crate::replay::{
    batch_arguments as batches, case, dumped, rejected_by, tokens_and_dropped, with_case,
};

const KEY: &str = "mask.0.fisher_threshold";

/// The arguments of a replay of a reference case.
fn reference(name: &str) -> String {
    format!(
        "replay --plugin libcapo.so --config {}{}",
        case(name).join("mask.toml").display(),
        batches(name)
    )
}

/// Value, rejected tokens and rate of every line of a table.
fn rows(said: &str) -> Vec<[String; 3]> {
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    said.lines()
        .skip(3)
        .map(words)
        .map_while(|words| <[String; 3]>::try_from(words).ok())
        .collect()
}

/// Tokens that a replay with `--set KEY=value` drops.
fn rejected(folder: &Folder, replay: &str, value: &str) -> usize {
    folder.said(&format!("{replay} --set {KEY}={value} --out out-{value}"));
    tokens_and_dropped(folder, replay, &format!("out-{value}")).1 as usize
}

#[test]
fn replays_every_value_separately() {
    let (folder, replay) = (Folder::new(), reference("paper-token-adam"));
    let said = folder.said(&format!("{replay} --sweep {KEY}=1e-5..1e-2:4"));
    assert_snapshot!(said);
    for [value, count, _] in rows(&said) {
        assert_eq!(
            rejected(&folder, &replay, &value).to_string(),
            count,
            "{value}"
        );
    }
}

#[test]
fn suggests_the_last_value_that_meets_the_target() {
    let (folder, replay) = (Folder::new(), reference("authors-token-adam"));
    let open = "--set mask.0.hessian_threshold=false";
    let said = folder.said(&format!(
        "{replay} {open} --sweep {KEY}=1e-5..1e-1 --target-rate 10%"
    ));
    let (_, suggested) = said.split_once(&format!("--set {KEY}=")).unwrap();
    let value = suggested.lines().next().unwrap();
    let tokens: usize = said.split(' ').nth(4).unwrap().parse().unwrap();
    let count = rejected(&folder, &format!("{replay} {open}"), value);
    assert!(count <= tokens / 10, "{said}");
    assert!(said.contains(&format!(
        "{value} rejects {:.2}% ({count} of {tokens})",
        100.0 * count as f64 / tokens as f64
    )));
    assert!(
        said.ends_with(&format!(
            "  fisher_threshold = {value}\n  hessian_threshold = false\n"
        )),
        "{said}"
    );
    let below = format!("{:e}", 0.98 * value.parse::<f64>().unwrap());
    assert!(
        count == tokens / 10
            || rejected(&folder, &format!("{replay} {open}"), &below) > tokens / 10,
        "{said}"
    );
}

#[test]
fn sweeps_each_mask_of_a_run() {
    let folder = Folder::new();
    let steps = "--set train.max_steps=3 --set eval.num_prompts=0 --set train.save_steps=0";
    let run = folder.train(
        "run",
        &format!("--plugin libcapo.so {steps} --set {KEY}=1e-5 --dump-batches dump"),
    );
    let surprise = load_examples(&["surprise-cap"]);
    let mut config = run.text("config.toml");
    config.push_str("\n[[mask]]\nuse = \"example.surprise-cap\"\nmax_nats = 1e9\n");
    folder.write("two.toml", config);
    let replay = format!(
        "replay --plugin libcapo.so{surprise} --config two.toml{}",
        dumped(3)
    );
    let said = folder
        .host(&format!(
            "{replay} --sweep {KEY}=1e-5..1e-4:2 --sweep mask.1.max_nats=1..3"
        ))
        .succeeded();
    let (first, second) = said.stdout.split_once("\n\n`mask.1.max_nats`").unwrap();
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let head = words(first.lines().nth(2).unwrap());
    assert_eq!(
        head,
        [
            "fisher_threshold",
            "rejected",
            "rate",
            "capo.curvature",
            "example.surprise-cap"
        ]
    );
    let tokens: f64 = words(first)[4].replace(',', "").parse().unwrap();
    // Tokens that the run itself rejected, at the same threshold.
    let (row, count) = (
        words(first.lines().nth(3).unwrap()),
        rejected_by(&folder, &run, &dumped(3)),
    );
    assert!(count > 0.0, "nothing was rejected");
    let rate = format!("{:.2}%", 100.0 * count / tokens);
    assert_eq!(row, ["1e-5", &count.to_string(), &rate, &rate, "0.00%"]);
    // A range between whole numbers has whole values. The other mask keeps its settings.
    let second: Vec<_> = second.lines().skip(3).map(words).collect();
    assert_eq!(
        second.iter().map(|row| &*row[0]).collect::<Vec<_>>(),
        ["1", "2", "3"]
    );
    assert!(
        second.iter().all(|row| row[3] == rate) && second[0][4] != "0.00%",
        "{second:?}"
    );
}

#[test]
fn a_sweep_writes_no_file_unless_asked() {
    let (folder, replay) = (Folder::new(), reference("paper-token-sgd"));
    let sweep = format!("--sweep {KEY}=1e-4..1e-2:2");
    folder.said(&format!("{replay} {sweep}"));
    assert!(names(folder.path()).is_empty());
    let said = folder.said(&format!("{replay} {sweep} --out out"));
    assert!(
        said.starts_with("step ") && said.contains("\n`mask.0.fisher_threshold` over 4 batches, "),
        "{said}"
    );
    assert_eq!(names(&folder.path().join("out")).len(), 4);
}

#[test]
fn says_which_targets_it_cannot_reach() {
    let (folder, replay) = (Folder::new(), reference("paper-token-adam"));
    let say = |args: &str| {
        let said = folder.said(&format!("{replay} {args}"));
        said.lines()
            .filter(|line| line.starts_with("target"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    assert_snapshot!(say(&format!("--sweep {KEY}=1.0..100.0:3 --target-rate 2%")), @"target 2%: no value of `mask.0.fisher_threshold` from 1.0 to 100.0 rejects less than 14.72%, at 1.0 (other limits reject that much: loosen those)");
    assert_snapshot!(say(&format!("--sweep {KEY}=1e-5..1e-4:3 --target-rate 2%")), @"target 2%: no value of `mask.0.fisher_threshold` from 1e-5 to 1e-4 rejects less than 74.03%, at 1e-4 (widen the range)");
    assert_snapshot!(say(&format!("--sweep {KEY}=1e-3..1e-2:3 --target-rate 0.9")), @"
    target 0.9: no value of `mask.0.fisher_threshold` from 0.001 to 0.01 rejects more than 39.39%, at 0.001 (widen the range)
    target 0.9: 0.001 rejects 39.39% (91 of 231)
    ");
}

#[test]
fn checks_ranges_and_targets() {
    assert_refused("sweep", &with_case());
}
