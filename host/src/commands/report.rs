//! `host report`: shows runs on one page.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use capo_system::files;

use super::args::ReportArgs;
use super::output;
use super::runs::found;
use crate::report::page;
use crate::terminal::{say, warn};

/// Name of the page without `--out`.
const DEFAULT: &str = "report.html";
/// Number of bytes at the beginning of a file that tell whether it is a page of this command.
const HEAD: u64 = 4096;

pub(super) fn run(args: &ReportArgs) -> Result<()> {
    let out = args.out.as_deref().unwrap_or(Path::new(DEFAULT));
    if out.extension().is_none_or(|ending| ending != "html") {
        bail!(
            "`--out {}` does not end in `.html` (a report is a page)",
            out.display()
        );
    }
    output::check(out)?;
    if args.out.is_none() {
        check_unnamed(out)?;
    }
    let runs = found(&args.runs)?;
    for run in &runs {
        run.remarks
            .iter()
            .for_each(|remark| warn(&format!("`{}`: {remark}", run.dir.display())));
    }
    let count = runs.len();
    let page = page::html(runs);
    files::write_atomic(out, page.as_bytes())?;
    let size = capo_system::memory::text(page.len() as u128);
    let plural = if count == 1 { "" } else { "s" };
    say(&format!(
        "{count} run{plural} in {} ({size})",
        out.display()
    ));
    Ok(())
}

/// Refuses to replace a file that the user did not name, unless it is an earlier report.
fn check_unnamed(out: &Path) -> Result<()> {
    if !out.exists() {
        return Ok(());
    }
    let mut head = Vec::new();
    let read = File::open(out).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    read.with_context(|| format!("cannot read `{}`", out.display()))?;
    if !page::is_page(&head) {
        bail!(
            "`{0}` exists and is no report (name another file with `--out`, or this one with \
             `--out {0}`)",
            out.display()
        );
    }
    Ok(())
}
