//! JSON Lines files that a run appends to, and continues after a resume: `metrics.jsonl`,
//! `completions.jsonl`.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use capo_system::{files, terminal};
use serde::Deserialize;

use super::line::Line;
use super::lines::Lines;

/// Name of the metrics file in a run's directory.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// A file to which this process appends lines. Nobody else should change it meanwhile.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    /// Size of the file as this process left it, bytes.
    size: u64,
}

impl Log {
    /// The file at `path`, as it is now.
    pub fn open(path: PathBuf) -> Self {
        let size = files::size(&path).unwrap_or(0);
        Self { path, size }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends `line`. Returns true if the file has lost lines since the last call, because
    /// somebody deleted or cut it.
    pub fn append(&mut self, line: &str) -> Result<bool> {
        let appended = files::append_line(&self.path, line)?;
        let has_lost = appended.before < self.size;
        self.size = appended.after;
        Ok(has_lost)
    }

    /// The warning that lines were lost. `which` names their steps, if these are known.
    pub fn loss(&self, which: Option<String>) -> String {
        let which = which.map_or_else(String::new, |which| format!(": {which}"));
        format!(
            "`{}` was deleted or cut while the run went on{which}",
            self.path.display()
        )
    }
}

/// `metrics.jsonl`, to which a line is appended per step.
#[derive(Debug)]
pub struct Journal {
    log: Log,
    /// Names with a warning in this process.
    warned: BTreeSet<String>,
}

impl Journal {
    /// The file at `path`.
    pub fn new(path: PathBuf) -> Self {
        Self {
            log: Log::open(path),
            warned: BTreeSet::new(),
        }
    }

    /// Appends `line`. Values that are not finite become null; returns one warning for each such
    /// name, and one if lines were lost.
    pub fn append(&mut self, line: &Line) -> Result<Vec<String>> {
        let has_lost = self.log.append(&serde_json::to_string(line)?)?;
        let lost = has_lost.then(|| {
            let left = Lines::read(self.log.path()).unwrap_or_default();
            self.log.loss(left.missing(line.step))
        });
        let mut warnings = Vec::from_iter(lost);
        for (name, value) in &line.values {
            if !value.is_finite() && self.warned.insert(name.clone()) {
                warnings.push(format!(
                    "metric `{name}` is {value} at step {}: written as null (told once)",
                    line.step
                ));
            }
        }
        Ok(warnings)
    }
}

/// Refuses the file at `path` if a resumed run could not continue it. A missing file is not an
/// error.
pub fn check(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        let opened = files::open_plain(path, OpenOptions::new().read(true));
        opened
            .and_then(|mut file| file.read(&mut [0]))
            .with_context(|| not_taken_up(path))?;
    }
    Ok(())
}

fn not_taken_up(path: &Path) -> String {
    format!("cannot take `{}` up again", path.display())
}

/// Removes the lines after `step` from the file at `path`, and warns of their number. All lines
/// from the first torn or later one on are removed. Step 0 removes all lines. A missing file is not
/// an error.
pub fn cut(path: &Path, step: u64) -> Result<()> {
    let lines = cut_lines(path, step).with_context(|| not_taken_up(path))?;
    if lines > 0 {
        let plural = if lines == 1 { "line is" } else { "lines are" };
        terminal::warn(&format!(
            "`{}`: {lines} {plural} cut that came after step {step}",
            path.display()
        ));
    }
    Ok(())
}

fn cut_lines(path: &Path, step: u64) -> Result<usize> {
    let file = match files::open_plain(path, OpenOptions::new().read(true).write(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let mut reader = BufReader::new(&file);
    let mut line = Vec::new();
    let mut kept = 0;
    while reader.read_until(b'\n', &mut line)? > 0 {
        if step == 0 || is_later(&line, step) {
            let lines = 1 + reader.split(b'\n').count();
            file.set_len(kept)?;
            file.sync_all()?;
            return Ok(lines);
        }
        kept += line.len() as u64;
        line.clear();
    }
    Ok(0)
}

/// True for a line that is torn or of a later step. Other unreadable lines stay: readers of the
/// file skip and report them.
fn is_later(line: &[u8], step: u64) -> bool {
    #[derive(Deserialize)]
    struct Line {
        step: u64,
    }
    let Some(whole) = line.strip_suffix(b"\n") else {
        return true;
    };
    serde_json::from_slice::<Line>(whole).is_ok_and(|line| line.step > step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_once_of_each_value_that_becomes_null() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let mut journal = Journal::new(path.clone());
        let mut append = |step, values: &[(&str, f64)]| {
            let values = values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect();
            journal.append(&Line { step, values }).unwrap()
        };
        let warnings = append(
            1,
            &[("loss", f64::INFINITY), ("kl", f64::NAN), ("reward", 0.5)],
        );
        assert_eq!(warnings.len(), 2);
        assert_eq!(
            warnings[0],
            "metric `kl` is NaN at step 1: written as null (told once)"
        );
        assert!(append(2, &[("kl", f64::NEG_INFINITY)]).is_empty());
        let expected =
            "{\"step\":1,\"kl\":null,\"loss\":null,\"reward\":0.5}\n{\"step\":2,\"kl\":null}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    }

    #[test]
    fn warns_of_lost_lines_with_their_steps() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let mut journal = Journal::new(path.clone());
        let mut append = |step| {
            let warnings = journal
                .append(&Line {
                    step,
                    values: [("loss".to_owned(), 0.5)].into(),
                })
                .unwrap();
            warnings
                .join("; ")
                .replace(&*directory.path().to_string_lossy(), "RUN")
        };
        assert_eq!((0..=3).map(&mut append).collect::<String>(), "");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            append(4),
            "`RUN/metrics.jsonl` was deleted or cut while the run went on: the lines of steps 1 to 3 are missing"
        );
        assert_eq!(append(5), "");
        std::fs::write(&path, "{\"step\":5}\n").unwrap();
        assert!(append(6).ends_with(": the lines of steps 1 to 4 are missing"));
        std::fs::write(&path, "").unwrap();
        assert!(append(7).ends_with(": the lines of steps 1 to 6 are missing"));
    }

    #[test]
    fn cuts_later_lines_wherever_the_last_is_torn() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let (kept, later) = (
            "{\"step\":0}\nnot ours\n{\"step\":2,\"kl\":null}\n",
            "{\"step\":3,\"reward\":0.5}\n{\"step\":4}\n",
        );
        let left = |text: &str, step| {
            std::fs::write(&path, text).unwrap();
            let lines = cut_lines(&path, step).unwrap();
            (std::fs::read_to_string(&path).unwrap(), lines)
        };
        for length in 0..=later.len() {
            let lines = later[..length].split_inclusive('\n').count();
            assert_eq!(
                left(&format!("{kept}{}", &later[..length]), 2),
                (kept.to_owned(), lines)
            );
        }
        assert_eq!(
            left(kept, 0),
            (String::new(), 3),
            "nothing comes before the beginning"
        );
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            cut_lines(&path, 2).unwrap(),
            0,
            "no file is one without lines"
        );
    }
}
