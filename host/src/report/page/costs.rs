//! Table of the time of a step by stage, as in table 3 of the paper.

use super::groups::Group;
use super::tables::{head, line, shown};
use crate::report::found::{FoundRun, Lines};

/// A row: its label, the metric without `timing_s/`, and true if it is a part of the row above.
type Stage = (&'static str, &'static str, bool);

/// The stages of a step, in the order of the training loop.
const STAGES: [Stage; 10] = [
    (
        "generating completions and scoring them with rewards",
        "rollout",
        false,
    ),
    ("forward passes", "score", false),
    ("advantages", "advantage", false),
    ("objective", "objective", false),
    ("masks and weights", "mask", false),
    ("backward passes", "backward", false),
    (
        "second backward pass, for Adam's second moment",
        "second_moment",
        true,
    ),
    ("optimizer", "step", false),
    (
        "step controls, and measuring the step",
        "step_control",
        false,
    ),
    ("the rest", REST, false),
];
/// The stage for the remaining time.
const REST: &str = "";
/// Stages outside the steps.
const OUTSIDE: [Stage; 2] = [
    ("evaluation", "eval", false),
    ("checkpoints", "checkpoint", false),
];

/// Seconds per step of one series, averaged over its runs' steps.
struct Costs<'a> {
    runs: Vec<&'a Lines>,
    steps: f64,
}

impl<'a> Costs<'a> {
    fn new(runs: &'a [FoundRun], group: &Group) -> Self {
        let runs: Vec<&Lines> = group.runs.iter().map(|run| &runs[*run].lines).collect();
        let steps = runs
            .iter()
            .map(|lines| lines.column("step_time").rows.len() as f64)
            .sum();
        Self { runs, steps }
    }

    fn of_metric(&self, name: &str) -> f64 {
        let mut sum = 0.0;
        for lines in &self.runs {
            let values = lines.column(name).numbers().map(|(_, value)| value);
            sum += values.sum::<f64>();
        }
        sum / self.steps.max(1.0)
    }

    fn of(&self, stage: &str) -> f64 {
        if stage != REST {
            return self.of_metric(&format!("timing_s/{stage}"));
        }
        let known = STAGES
            .iter()
            .filter(|(_, stage, part)| *stage != REST && !part);
        (self.total() - known.map(|(_, stage, _)| self.of(stage)).sum::<f64>()).max(0.0)
    }

    /// Seconds of a whole step, without evaluations and checkpoints.
    fn total(&self) -> f64 {
        let outside: f64 = OUTSIDE.iter().map(|(_, stage, _)| self.of(stage)).sum();
        (self.of_metric("step_time") - outside).max(0.0)
    }
}

/// The table, with a column of seconds and one of shares per series.
pub fn table(runs: &[FoundRun], groups: &[Group]) -> String {
    let costs: Vec<Costs<'_>> = groups.iter().map(|group| Costs::new(runs, group)).collect();
    let heads: String = groups
        .iter()
        .map(|group| {
            format!(
                "<th scope=\"col\" colspan=\"2\">{}</th>",
                shown(&group.name)
            )
        })
        .collect();
    let mut rows = String::new();
    let total: Vec<f64> = costs.iter().map(Costs::total).collect();
    rows += &line(" class=\"total\"", "a step", &cells_of_step(&costs, &total));
    for (title, stage, is_part) in STAGES {
        let seconds: Vec<f64> = costs.iter().map(|costs| costs.of(stage)).collect();
        if is_part && seconds.iter().all(|seconds| *seconds <= 0.0) {
            continue;
        }
        let class = if is_part { " class=\"part\"" } else { "" };
        rows += &line(class, title, &cells_of_step(&costs, &seconds));
    }
    for (title, stage, _) in OUTSIDE {
        let cells: String = costs
            .iter()
            .map(|costs| format!("<td>{}</td><td></td>", significant(costs.of(stage))))
            .collect();
        rows += &line("", &format!("{title}, outside the steps"), &cells);
    }
    super::tables::table(
        " class=\"costs\"",
        &(head("seconds per step") + &heads),
        &rows,
    )
}

/// For each series, a cell with its seconds and one with their share of a step.
fn cells_of_step(costs: &[Costs<'_>], seconds: &[f64]) -> String {
    let mut cells = String::new();
    for (costs, seconds) in costs.iter().zip(seconds) {
        let total = costs.total();
        let share = if total > 0.0 {
            format!("{:.2}%", 100.0 * seconds / total + 0.0)
        } else {
            String::new()
        };
        cells += &format!("<td>{}</td><td>{share}</td>", significant(*seconds));
    }
    cells
}

/// Seconds with three significant digits.
fn significant(seconds: f64) -> String {
    // The sum of an empty list is -0.
    let seconds = seconds + 0.0;
    let digits = if seconds > 0.0 {
        (2 - seconds.log10().floor() as i32).clamp(0, 6)
    } else {
        0
    };
    format!("{seconds:.*}", digits as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_and_the_rest_add_up_to_a_step() {
        let text = "{\"step\":1,\"step_time\":3.0,\"timing_s/rollout\":2.0}\n{\"step\":2,\"step_time\":1.5,\"timing_s/backward\":1.0,\"timing_s/eval\":0.5}\n";
        let lines = Lines::parse(text.as_bytes()).unwrap();
        let costs = Costs {
            runs: vec![&lines],
            steps: 2.0,
        };
        assert_eq!(
            [
                costs.total(),
                costs.of("rollout"),
                costs.of("backward"),
                costs.of(REST)
            ],
            [2.0, 1.0, 0.5, 0.5]
        );
        let nothing = Costs {
            runs: Vec::new(),
            steps: 0.0,
        };
        assert_eq!([nothing.total(), nothing.of(REST)], [0.0, 0.0]);
        let runs = [FoundRun::of("run", &[], lines)];
        let table = table(
            &runs,
            &[Group {
                name: "run".into(),
                runs: vec![0],
            }],
        );
        assert!(
            table.contains("<td>0</td><td>0.00%</td>") && !table.contains("-0"),
            "{table}"
        );
    }

    #[test]
    fn writes_seconds_with_three_digits() {
        let shown = [135.84, 3.988, 0.01234, 0.0, -0.0, 4e-9].map(significant);
        assert_eq!(shown, ["136", "3.99", "0.0123", "0", "0", "0.000000"]);
    }
}
