//! `host report`: shows runs on one page.

use anyhow::{Result, bail};
use capo_loader::files;

use super::args::ReportArgs;
use super::output;
use super::runs::found;
use crate::report::page;
use crate::terminal::{say, warn};

pub(super) fn run(args: &ReportArgs) -> Result<()> {
    let out = &args.out;
    if out.extension().is_none_or(|ending| ending != "html") {
        bail!("`--out {}` does not end in `.html` (a report is a page)", out.display());
    }
    output::check(out)?;
    let runs = found(&args.runs)?;
    for run in &runs {
        run.remarks.iter().for_each(|remark| warn(&format!("`{}`: {remark}", run.dir.display())));
    }
    let page = page::html(&runs);
    files::write_atomic(out, page.as_bytes())?;
    let (count, size) = (runs.len(), capo_loader::memory::text(page.len() as u128));
    let plural = if count == 1 { "" } else { "s" };
    say(&format!("{count} run{plural} in {} ({size})", out.display()));
    Ok(())
}
