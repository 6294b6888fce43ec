//! `host diagnose`: explains the findings about runs.

use anyhow::Result;
use serde::Serialize;

use super::args::DiagnoseArgs;
use super::runs::found;
use crate::report::found::{Diagnosis, FoundRun, REWARDS, Summary, diagnose};
use crate::terminal::{percent, say, warn};

#[derive(Serialize)]
struct Verdict {
    #[serde(flatten)]
    summary: Summary,
    findings: Vec<Diagnosis>,
}

impl Verdict {
    fn of(run: &FoundRun) -> Self {
        Self {
            summary: Summary::of(run),
            findings: diagnose(run),
        }
    }
}

pub(super) fn run(args: &DiagnoseArgs) -> Result<()> {
    let runs = found(&args.runs)?;
    if args.json {
        let verdicts: Vec<Verdict> = runs.iter().map(Verdict::of).collect();
        say(&serde_json::to_string_pretty(&verdicts)?);
        return Ok(());
    }
    for run in &runs {
        let lines = lines(run, &Verdict::of(run));
        lines.iter().for_each(|line| say(line));
        run.remarks
            .iter()
            .for_each(|remark| warn(&format!("`{}`: {remark}", run.dir.display())));
    }
    Ok(())
}

/// A line about the run, and three about each finding.
fn lines(run: &FoundRun, Verdict { summary, findings }: &Verdict) -> Vec<String> {
    let of = summary
        .max_steps
        .map_or_else(String::new, |max_steps| format!(" of {max_steps}"));
    let mut head = format!(
        "{}: {} after step {}{of}",
        summary.name, summary.status, summary.step
    );
    if let Some((first, last)) = run.lines.column("reward").ends(REWARDS) {
        head.push_str(&format!(", reward {first:.3} -> {last:.3}"));
    }
    let held_out = run.lines.column("eval_reward").ends(1);
    if let Some((first, last)) = held_out.filter(|_| summary.accuracy.is_none()) {
        head.push_str(&format!(", held-out reward {first:.3} -> {last:.3}"));
    }
    if let (Some((first, last)), Some(best), Some(step)) = (
        run.lines.column("eval_accuracy").ends(1),
        summary.best_accuracy,
        summary.best_step,
    ) {
        let [first, last, best] = [first, last, best].map(percent);
        head.push_str(&format!(
            ", held-out accuracy {first} -> {last}, best {best} after step {step}"
        ));
    }
    let mut lines = vec![head];
    lines.extend(summary.found_rate().map(|found| format!("     {found}")));
    for (number, diagnosis) in (1..).zip(findings) {
        let finding = &diagnosis.finding;
        lines.push(format!(
            "{number:>3}. {}: {}",
            diagnosis.when(),
            finding.what
        ));
        if !finding.advice.is_empty() {
            lines.push(format!("     {}", finding.advice()));
        }
        lines.push(format!("     {}, check `{}`", finding.page, finding.check));
    }
    if findings.is_empty() {
        lines.push("     nothing that the checks know of".to_owned());
    }
    lines
}
