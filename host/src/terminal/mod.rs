//! Output on the terminal: lines, error messages, numbers in readable form, and the progress of a
//! run.

mod live;
mod progress;
pub mod words;

use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use anyhow::{Result, bail};
use capo_system::terminal::escape;
pub use capo_system::terminal::{error, note, warn, word};

pub use live::Answered;
pub use progress::{ProgressLines, faster_dtype, found_rate, pace};

/// The first failure to write to standard output.
static FAILURE: OnceLock<String> = OnceLock::new();

/// Writes a line to standard output. After a failure the work continues, and [`check`] reports it
/// at the end.
pub fn say(line: &str) {
    heard(writeln!(io::stdout().lock(), "{}", escape(line)));
}

/// Writes text to standard output at once, without a line break.
pub fn print(text: &str) {
    heard(write!(io::stdout().lock(), "{}", escape(text)));
}

/// Records a failure to write to standard output. It is not a failure if the reader has closed its
/// end.
pub fn heard(written: io::Result<()>) {
    if let Err(error) = written.and_then(|()| io::stdout().lock().flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILURE.set(error.to_string());
    }
}

/// Fails if some output could not be written.
pub fn check() -> Result<()> {
    match FAILURE.get() {
        Some(failure) => {
            bail!("standard output cannot be written: {failure} (some of what was said is lost)")
        }
        None => Ok(()),
    }
}

/// Formats a share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.2}%", 100.0 * share)
}

/// Formats a share as a percentage with one digit after the point, for what is read at a glance.
pub fn short_percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// Formats a number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}

/// The width of each column of a table: characters of its longest cell.
pub fn widths(table: &[Vec<String>]) -> Vec<usize> {
    let mut widths = Vec::new();
    for row in table {
        widths.resize(row.len().max(widths.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    widths
}

/// The error and its causes on one line. Each cause contributes its first line, unless that is only
/// a heading, as in a comparison of layouts. With `verbose`, all lines.
pub fn sentence(error: &anyhow::Error, verbose: bool) -> String {
    let mut causes = Vec::new();
    for cause in error
        .chain()
        .map(|cause| capo_loader::cause(cause).trim().to_owned())
    {
        let first = cause.lines().next().unwrap_or_default();
        if verbose {
            causes.push(cause);
        } else if causes.is_empty() || !first.ends_with(':') {
            causes.push(first.to_owned());
        }
    }
    causes.join(": ")
}

/// Formats a duration for people: `9.5 s`, `3 min 20 s`, `2 h 5 min`.
pub fn duration(seconds: f64) -> String {
    match seconds.round() as u64 {
        0..60 if seconds < 59.95 => format!("{seconds:.1} s"),
        whole @ 0..3600 => format!("{} min {} s", whole / 60, whole % 60),
        whole => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_digits_in_threes() {
        assert_eq!(
            [0, 999, 1000, 12_345, 1_234_567].map(grouped),
            ["0", "999", "1,000", "12,345", "1,234,567"]
        );
    }

    #[test]
    fn shows_durations_in_two_units() {
        let shown = [0.0, 9.54, 59.96, 200.4, 3599.6, 7500.0].map(duration);
        assert_eq!(
            shown,
            [
                "0.0 s",
                "9.5 s",
                "1 min 0 s",
                "3 min 20 s",
                "1 h 0 min",
                "2 h 5 min"
            ]
        );
    }
}
