//! `host download`.

use indicatif::{ProgressBar, ProgressStyle};

use super::args::DownloadArgs;
use super::failure::Failure;
use crate::download::Download;
use crate::terminal::say;

/// Downloads a model into the Hub's cache, with a progress bar if there is a terminal.
pub(super) fn run(args: &DownloadArgs) -> Result<(), Failure> {
    let download = Download::ask(&args.id, &args.revision).map_err(Failure::Input)?;
    let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {eta} {msg}");
    let bar = ProgressBar::new(download.size())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let snapshot = download.fetch(|file, bytes| {
        bar.set_message(file.to_owned());
        bar.inc(bytes);
    });
    bar.finish_and_clear();
    say(&snapshot.map_err(Failure::Run)?.display().to_string());
    Ok(())
}
