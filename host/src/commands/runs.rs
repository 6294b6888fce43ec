//! `host runs`: lists the runs in a folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::args::RunsArgs;
use crate::report::found::{FoundRun, Summary};
use crate::sft;
use crate::terminal::{duration, percent, say, warn};

pub(super) fn run(args: &RunsArgs) -> Result<()> {
    let runs: Vec<Summary> = found(&args.dirs)?.iter().map(Summary::of).collect();
    if args.json {
        say(&serde_json::to_string_pretty(&runs)?);
        return Ok(());
    }
    lines(&runs).iter().for_each(|line| say(line));
    for run in &runs {
        run.remarks
            .iter()
            .for_each(|remark| warn(&format!("`{}`: {remark}", run.name)));
    }
    Ok(())
}

/// The runs at `dirs`: each is a run or a folder of runs, sorted by name within it. `runs/*` also
/// names the models that `host sft` has written there, or is about to: they are left out, unless
/// nothing else is named.
pub(super) fn found(dirs: &[PathBuf]) -> Result<Vec<FoundRun>> {
    let is_model = |dir: &&PathBuf| {
        !FoundRun::is_run(dir) && (dir.join("config.json").is_file() || sft::is_unfinished(dir))
    };
    let (models, others): (Vec<&PathBuf>, Vec<&PathBuf>) = dirs.iter().partition(is_model);
    let named = if others.is_empty() { models } else { others };
    let mut runs = Vec::new();
    for dir in named {
        let inside = if FoundRun::is_run(dir) {
            vec![dir.clone()]
        } else {
            inside(dir)?
        };
        for dir in inside {
            runs.push(FoundRun::read(&dir)?);
        }
    }
    Ok(runs)
}

/// The runs in the folder `dir`, by name.
fn inside(dir: &Path) -> Result<Vec<PathBuf>> {
    let shown = dir.display();
    let entries = fs::read_dir(dir)
        .with_context(|| format!("cannot list `{shown}` (give a run, or a folder of runs)"))?;
    let mut runs = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("cannot list `{shown}`"))?
            .path();
        // A folder whose name begins with a dot is unfinished or being deleted.
        let hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && FoundRun::is_run(&path) {
            runs.push(path);
        }
    }
    if runs.is_empty() {
        bail!(
            "`{shown}` is no run and holds none (give a folder that `host train` printed, or one of such folders)"
        );
    }
    runs.sort();
    Ok(runs)
}

/// Cell text for an unknown value.
const NONE: &str = "-";

fn lines(runs: &[Summary]) -> Vec<String> {
    let heads = [
        "run", "status", "steps", "recipe", "seed", "rate", "held-out", "best", "reward",
        "rejected", "time", "model", "data",
    ];
    let mut table: Vec<Vec<String>> = vec![heads.map(str::to_owned).to_vec()];
    table.extend(runs.iter().map(cells));
    let width = |column: usize| {
        table
            .iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let pad = |(cell, width): (&String, &usize)| {
        format!("{cell}{}", " ".repeat(width - cell.chars().count()))
    };
    let line = |row: &Vec<String>| {
        row.iter()
            .zip(&widths)
            .map(pad)
            .collect::<Vec<_>>()
            .join("  ")
            .trim_end()
            .to_owned()
    };
    table.iter().map(line).collect()
}

fn cells(run: &Summary) -> Vec<String> {
    let none = || NONE.to_owned();
    let text = |text: &Option<String>| text.clone().unwrap_or_else(none);
    let share = |share: Option<f64>| share.map_or_else(none, percent);
    let best = run.best_accuracy.zip(run.best_step);
    vec![
        run.name.clone(),
        run.status.to_owned(),
        format!(
            "{}/{}",
            run.step,
            run.max_steps
                .map_or_else(|| "?".to_owned(), |steps| steps.to_string())
        ),
        text(&run.recipe),
        run.seed.map_or_else(none, |seed| seed.to_string()),
        run.learning_rate.map_or_else(none, |rate| {
            format!("{rate:e}")
                + &run
                    .found_rate
                    .map_or_else(String::new, |found| format!(" -> {found:.1e}"))
        }),
        run.held_out().unwrap_or_else(none),
        best.map_or_else(none, |(best, step)| format!("{} at {step}", percent(best))),
        run.reward
            .map_or_else(none, |reward| format!("{reward:.3}")),
        share(run.rejected),
        duration(run.seconds),
        text(&run.model),
        text(&run.data),
    ]
}
