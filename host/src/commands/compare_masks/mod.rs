//! `host compare-masks`: runs each mask alone over the same recorded batches, and compares what
//! they reject.

mod alone;
mod comparison;
mod contender;
mod gradient;
mod json;
mod setting;
mod table;
mod tokens;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use capo_loader::watchdog::Watchdog;
use capo_system::files;

use super::args::CompareArgs;
use super::batches::Batches;
use super::output;
use crate::config::replayed_settings;
use crate::terminal::say;

use alone::Replays;
use comparison::{Compared, Comparison, Row};
use contender::SelectedMasks;
use setting::Setting;
use tokens::Tokens;

pub(super) fn run(args: &CompareArgs) -> Result<()> {
    args.out.as_deref().map_or(Ok(()), check_out)?;
    let target = args.target_rate.as_deref().map(str::parse).transpose()?;
    let optimizer = replayed_settings("a comparison of masks", &["mask"], &args.set)?;
    let registry = args.plugins.open()?;
    let mut selected = SelectedMasks::choose(args, &registry, target.is_some())?;
    let watchdog = Watchdog::start(0, selected.names());
    selected.keep_buildable(&registry, &watchdog)?;
    let mut batches = Batches {
        paths: &args.batches,
        optimizer,
        held: None,
    };
    batches.hold()?;
    let tokens = Tokens::read(&batches, &mut |path, batch| {
        selected.keep_supplied(path, batch)
    })?;
    let SelectedMasks {
        contenders,
        left_out,
        ..
    } = selected;
    if contenders.is_empty() {
        bail!(
            "no mask can be compared on these batches: {}",
            left_out.join("; ")
        );
    }
    let mut replays = Replays {
        registry: &registry,
        batches: &batches,
        watchdog: &watchdog,
        warned: BTreeSet::new(),
    };
    let mut masks = Vec::new();
    for contender in contenders {
        let (contender, setting) = setting::decide(contender, target.as_ref(), &mut replays)?;
        let rejected = match setting {
            Setting::Nothing { .. } => replays.run_without_rounding(&contender)?.0,
            _ => replays.run(&contender)?,
        };
        masks.push(Compared {
            row: Row::new(&tokens, &rejected, args.batches.len()),
            contender,
            setting,
            rejected: rejected.tokens,
        });
    }
    let comparison = Comparison {
        batches: args.batches.clone(),
        target,
        tokens,
        masks,
        left_out,
    };
    table::lines(&comparison).iter().for_each(|line| say(line));
    let Some(path) = &args.out else { return Ok(()) };
    files::write_atomic(
        path,
        format!("{:#}\n", json::document(&comparison)).as_bytes(),
    )
}

/// Refuses a path of another ending, and one that cannot be written.
fn check_out(path: &Path) -> Result<()> {
    output::check(path)?;
    let is_json = path.extension().is_some_and(|ending| ending == "json");
    ensure!(
        is_json,
        "`--out {}` does not end in `.json` (the numbers are written as JSON)",
        path.display()
    );
    Ok(())
}
