//! Words on the terminal: lines of output, errors as sentences, numbers as people read them.

use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

use anyhow::{Result, bail};
use capo_loader::terminal::escape;
pub use capo_loader::terminal::{error, note, warn};

/// The first failure of standard output.
static FAILURE: OnceLock<String> = OnceLock::new();

/// Writes a line to standard output. Where that fails, the work goes on, and [`check`] says so at its end.
pub fn say(line: &str) {
    heard(writeln!(io::stdout().lock(), "{}", escape(line)));
}

/// Writes text to standard output, without a line break, at once.
pub fn print(text: &str) {
    heard(write!(io::stdout().lock(), "{}", escape(text)));
}

/// Takes note of a failure to write to standard output. That nobody reads any more is none.
pub fn heard(written: io::Result<()>) {
    if let Err(error) = written.and_then(|()| io::stdout().lock().flush())
        && error.kind() != ErrorKind::BrokenPipe
    {
        let _ = FAILURE.set(error.to_string());
    }
}

/// Fails where something that was said could not be written.
pub fn check() -> Result<()> {
    match FAILURE.get() {
        Some(failure) => bail!("standard output cannot be written: {failure} (some of what was said is lost)"),
        None => Ok(()),
    }
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.2}%", 100.0 * share)
}

/// Digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The error and its causes on one line: of each cause its first line, left out where that is only the heading of more, as
/// of a comparison of layouts. All lines where `verbose`.
pub fn sentence(error: &anyhow::Error, verbose: bool) -> String {
    let mut causes = Vec::new();
    for cause in error.chain().map(|cause| cause.to_string().trim().to_owned()) {
        let first = cause.lines().next().unwrap_or_default();
        if verbose {
            causes.push(cause);
        } else if causes.is_empty() || !first.ends_with(':') {
            causes.push(first.to_owned());
        }
    }
    causes.join(": ")
}

/// A time as people read it: `9.5 s`, `3 min 20 s`, `2 h 5 min`.
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
    fn durations() {
        let shown = [0.0, 9.54, 59.96, 200.4, 3599.6, 7500.0].map(duration);
        assert_eq!(shown, ["0.0 s", "9.5 s", "1 min 0 s", "3 min 20 s", "1 h 0 min", "2 h 5 min"]);
    }
}
