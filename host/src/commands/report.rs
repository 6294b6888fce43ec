//! `host report`: shows runs on one page.

use std::path::Path;

use anyhow::{Result, bail};
use capo_loader::files;

use super::args::ReportArgs;
use super::runs::found;
use crate::report::page;
use crate::report::terminal::{say, warn};

/// Writes the page.
pub(super) fn run(args: &ReportArgs) -> Result<()> {
    check(&args.out)?;
    let runs = found(&args.runs)?;
    for run in &runs {
        run.remarks.iter().for_each(|remark| warn(&format!("`{}`: {remark}", run.dir.display())));
    }
    let page = page::html(&runs);
    files::write_atomic(&args.out, page.as_bytes())?;
    let (count, size) = (runs.len(), capo_loader::memory::text(page.len() as u128));
    let plural = if count == 1 { "" } else { "s" };
    say(&format!("{count} run{plural} in {} ({size})", args.out.display()));
    Ok(())
}

/// Refuses a path that cannot be written, before the work is done.
fn check(path: &Path) -> Result<()> {
    let shown = path.display();
    if path.extension().is_none_or(|ending| ending != "html") {
        bail!("`--out {shown}` does not end in `.html` (a report is a page)");
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        bail!("`--out {shown}`: there is no folder `{}` (make it first)", folder.display());
    }
    files::check_replaceable(path)
}
