//! The verdicts of `math` beside those of math-verify: `golden/make_math.py` has asked it.

use std::collections::BTreeMap;
use std::fmt::Write;

use insta::assert_snapshot;
use serde::Deserialize;

use crate::math::{Answer, Places};

#[derive(Deserialize)]
struct Case {
    kind: String,
    gold: String,
    answer: String,
    /// By hand.
    right: bool,
    /// With math-verify's defaults.
    verify: bool,
    /// By TRL's `accuracy_reward`; none where it skips the row.
    trl: Option<bool>,
}

impl Case {
    fn verdict(&self, places: Places) -> bool {
        Answer::of(&self.answer, places).is_some_and(|answer| answer.matches(&Answer::gold(&self.gold)))
    }
}

fn cases() -> Vec<Case> {
    include_str!("../../golden/math.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Cases, agreement and right verdicts by kind, then each disagreement.
fn table(places: Places, theirs: impl Fn(&Case) -> bool) -> String {
    let (mut kinds, mut order) = (BTreeMap::<String, [usize; 4]>::new(), Vec::new());
    let (mut differ, mut total) = (String::new(), [0; 4]);
    for case in cases() {
        let (ours, theirs) = (case.verdict(places), theirs(&case));
        if !order.contains(&case.kind) {
            order.push(case.kind.clone());
        }
        let counts = [true, ours == theirs, ours == case.right, theirs == case.right].map(usize::from);
        let row = kinds.entry(case.kind.clone()).or_default();
        for (column, count) in counts.into_iter().enumerate() {
            row[column] += count;
            total[column] += count;
        }
        if ours != theirs {
            let who = if ours == case.right { "ours" } else { "theirs" };
            let said = if ours { "right" } else { "wrong" };
            let [gold, answer] = [&case.gold, &case.answer].map(|text| format!("{text:?}").replace("\\\\", "\\"));
            writeln!(differ, "{}: gold {gold}, answer {answer}: we say {said}; {who} is right", case.kind).unwrap();
        }
    }
    let row = |name: &str, [cases, same, ours, theirs]: [usize; 4]| {
        format!("{name:<18} {cases:>5} {same:>9} {ours:>10} {theirs:>12}\n")
    };
    let rows: String = order.iter().map(|kind| row(kind, kinds[kind])).collect();
    let head =
        format!("{:<18} {:>5} {:>9} {:>10} {:>12}\n", "kind", "cases", "agreement", "ours right", "theirs right");
    format!("{head}{rows}{}\n{differ}", row("all", total))
}

#[test]
fn with_the_defaults() {
    assert_snapshot!("agreement", table(Places::Any, |case| case.verify));
}

/// A row that TRL skips earns nothing here.
#[test]
fn as_trl_sets_it() {
    assert_snapshot!("agreement-trl", table(Places::Anchored, |case| case.trl.unwrap_or(false)));
}
