//! `host runs`: lists the runs in a folder.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::args::RunsArgs;
use crate::report::found::{FoundRun, Summary};
use crate::sft;
use crate::terminal::{duration, percent, say, warn, widths};

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

/// The runs at `dirs`. Each is a run or a folder of runs, which are sorted by name. `runs/*` may
/// also name models of `host sft`: they are left out, unless nothing else is named.
pub(super) fn found(dirs: &[PathBuf]) -> Result<Vec<FoundRun>> {
    let (models, others): (Vec<&PathBuf>, Vec<&PathBuf>) =
        dirs.iter().partition(|dir| is_model(dir));
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

/// True for a model that `host sft` has written, or is about to write.
fn is_model(dir: &Path) -> bool {
    !FoundRun::is_run(dir) && (dir.join("config.json").is_file() || sft::is_unfinished(dir))
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
            "`{shown}` is no run and holds none (give a folder that `host train` printed, or one \
             of such folders)"
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
    let widths = widths(&table);
    let mut lines = Vec::new();
    for row in &table {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        lines.push(cells.join("  ").trim_end().to_owned());
    }
    lines
}

fn cells(run: &Summary) -> Vec<String> {
    let steps = match run.max_steps {
        Some(steps) => format!("{}/{steps}", run.step),
        None => format!("{}/?", run.step),
    };
    let rate = match (run.learning_rate, run.found_rate) {
        (Some(rate), Some(found)) => Some(format!("{rate:e} -> {found:.1e}")),
        (rate, _) => rate.map(|rate| format!("{rate:e}")),
    };
    let best = match (run.best_accuracy, run.best_step) {
        (Some(best), Some(step)) => Some(format!("{} at {step}", percent(best))),
        _ => None,
    };
    let cells = [
        Some(run.name.clone()),
        Some(run.status.to_owned()),
        Some(steps),
        run.recipe.clone(),
        run.seed.map(|seed| seed.to_string()),
        rate,
        run.held_out(),
        best,
        run.reward.map(|reward| format!("{reward:.3}")),
        run.rejected.map(percent),
        Some(duration(run.seconds)),
        run.model.clone(),
        run.data.clone(),
    ];
    cells
        .into_iter()
        .map(|cell| cell.unwrap_or_else(|| NONE.to_owned()))
        .collect()
}
