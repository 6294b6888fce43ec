//! Verdicts compared with math-verify's, written by `golden/make_math.py`.

use std::fmt::Write;

use insta::assert_snapshot;
use serde::Deserialize;

use math_answer::{Places, grade};

#[derive(Deserialize)]
struct Case {
    kind: String,
    gold: String,
    answer: String,
    /// Verdict by hand.
    right: bool,
    /// Verdict of math-verify with its defaults.
    verify: bool,
    /// Verdict of TRL's `accuracy_reward`; `None` where it skips the row.
    trl: Option<bool>,
}

impl Case {
    fn verdict(&self, places: Places) -> bool {
        grade(&self.gold, &self.answer, places).is_right()
    }
}

fn cases() -> Vec<Case> {
    include_str!("../golden/math.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Counts for one kind of case: cases, agreements with the defaults and with TRL's settings, right
/// verdicts of ours and of theirs.
#[derive(Clone, Default)]
struct Counts([usize; 5]);

impl Counts {
    fn add(&mut self, case: &Case) {
        let ours = case.verdict(Places::Any);
        let anchored = case.verdict(Places::Anchored);
        let same = [ours == case.verify, anchored == case.trl.unwrap_or(false)];
        let right = [ours == case.right, case.verify == case.right];
        let counted = [true, same[0], same[1], right[0], right[1]];
        self.0
            .iter_mut()
            .zip(counted)
            .for_each(|(count, one)| *count += usize::from(one));
    }

    fn row(&self, kind: &str) -> String {
        let counts: Vec<String> = self.0.iter().map(usize::to_string).collect();
        format!("| {kind} | {} |\n", counts.join(" | "))
    }
}

/// The tables of the documentation: one row per kind, then the cases where either verdict with the
/// defaults is wrong.
fn tables() -> String {
    let mut kinds: Vec<(String, Counts)> = Vec::new();
    let mut all = Counts::default();
    let mut different = String::new();
    for case in cases() {
        if kinds.last().is_none_or(|(kind, _)| *kind != case.kind) {
            kinds.push((case.kind.clone(), Counts::default()));
        }
        kinds.last_mut().unwrap().1.add(&case);
        all.add(&case);
        let ours = case.verdict(Places::Any);
        if ours != case.right || case.verify != case.right {
            let who = match (ours == case.right, case.verify == case.right) {
                (true, _) => "ours",
                (_, true) => "theirs",
                _ => "neither",
            };
            let [gold, answer] =
                [&case.gold, &case.answer].map(|text| text.replace('|', "\\|").replace('\n', " "));
            let says = |right| if right { "right" } else { "wrong" };
            writeln!(
                different,
                "| {} | `{gold}` | `{answer}` | {} | {} | {who} |",
                case.kind,
                says(ours),
                says(case.verify)
            )
            .unwrap();
        }
    }
    let rows: String = kinds
        .iter()
        .map(|(kind, counts)| counts.row(kind))
        .collect();
    let head = "| kind | cases | same verdict | same as TRL | ours right | math-verify right |\n|---|---|---|---|---|---|\n";
    let list = "| kind | dataset | completion | ours | math-verify | right is |\n|---|---|---|---|---|---|\n";
    format!("{head}{rows}{}\n{list}{different}", all.row("all"))
}

#[test]
fn the_documentation_has_these_verdicts() {
    let page = include_str!("../README.md");
    let tables = tables();
    let start = page.find("| kind | cases |").unwrap();
    assert!(
        page[start..] == tables,
        "`math-answer/README.md` must end with\n{tables}"
    );
}

/// Cases in which TRL's settings decide differently. A row that TRL skips earns nothing here.
#[test]
fn differences_to_the_settings_of_trl() {
    let cases = cases();
    let line = |case: &Case| {
        let ours = case.verdict(Places::Anchored);
        let theirs = case
            .trl
            .map_or("skipped", |right| if right { "right" } else { "wrong" });
        let who = if ours == case.right { "ours" } else { "theirs" };
        let (kind, gold, answer) = (&case.kind, &case.gold, case.answer.replace('\n', " "));
        (ours != case.trl.unwrap_or(false))
            .then(|| format!("{kind} | {gold} | {answer} | TRL: {theirs} | {who} is right"))
    };
    assert_snapshot!(cases.iter().filter_map(line).collect::<Vec<_>>().join("\n"));
}
