//! The lines of `metrics.jsonl`: made here, and cut back when a run resumes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};
use serde_json::Value;

use capo_loader::files;

/// One line, serialized with `step` first and the values in the order of their names.
struct Line<'a> {
    step: u64,
    values: &'a BTreeMap<String, f64>,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let step = ("step", Value::from(self.step));
        let values = self.values.iter().map(|(name, value)| (name.as_str(), Value::from(*value)));
        serializer.collect_map(std::iter::once(step).chain(values))
    }
}

/// The JSON object of one step; values that are not finite are null.
pub(super) fn line(step: u64, values: &BTreeMap<String, f64>) -> Result<String> {
    Ok(serde_json::to_string(&Line { step, values })?)
}

/// Drops every line of the metrics file at `path` beyond `step`, and a torn last line; returns how many lines went.
///
/// A missing file is left missing. A line before the last that is not an object with a `step` is an error: the file is not ours.
pub fn truncate_after(path: &Path, step: u64) -> Result<usize> {
    if !path.exists() {
        return Ok(0);
    }
    let bytes = files::read(path)?;
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    let mut kept = Vec::with_capacity(bytes.len());
    let mut dropped = 0;
    for (index, line) in lines.iter().enumerate() {
        let found = step_of(line);
        if found.is_none() && index + 1 < lines.len() {
            let place = format!("line {} of `{}`", index + 1, path.display());
            return Err(anyhow::anyhow!("{place} is no metrics line (move the file away to resume without it)"));
        }
        match found.is_some_and(|found| found <= step) {
            true => kept.extend_from_slice(line),
            false => dropped += 1,
        }
    }
    if dropped > 0 {
        files::write_atomic(path, &kept).context("cannot cut the metrics back to the checkpoint")?;
    }
    Ok(dropped)
}

/// The step of a whole line; `None` for anything else.
fn step_of(line: &[u8]) -> Option<u64> {
    let whole = line.strip_suffix(b"\n")?;
    serde_json::from_slice::<Value>(whole).ok()?["step"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left of `text` after a resume at step 2, and the number of lines dropped.
    fn cut(text: &str) -> Result<(String, usize)> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("metrics.jsonl");
        std::fs::write(&path, text)?;
        let dropped = truncate_after(&path, 2)?;
        Ok((std::fs::read_to_string(&path)?, dropped))
    }

    const TWO: &str = "{\"step\":1,\"kl\":null}\n{\"step\":2}\n";

    #[test]
    fn later_lines_go() {
        assert_eq!(cut(&format!("{TWO}{{\"step\":3}}\n{{\"step\":4}}\n")).unwrap(), (TWO.into(), 2));
        assert_eq!(cut(TWO).unwrap(), (TWO.into(), 0));
        assert_eq!(cut("").unwrap(), (String::new(), 0));
    }

    #[test]
    fn a_torn_last_line_goes_wherever_it_was_torn() {
        let torn = "{\"step\":2,\"reward\":0.5}";
        for length in 1..=torn.len() {
            let text = format!("{TWO}{}", &torn[..length]);
            assert_eq!(cut(&text).unwrap(), (TWO.into(), 1), "torn after {length} bytes");
        }
        assert_eq!(cut(&format!("{TWO}\0\0\0\n")).unwrap(), (TWO.into(), 1));
    }

    #[test]
    fn a_file_of_another_kind_is_refused_and_left_alone() {
        let error = cut("not ours\n{\"step\":1}\n").unwrap_err().to_string();
        assert!(error.starts_with("line 1 of `") && error.contains("is no metrics line"), "{error}");
        assert!(cut("{\"loss\":1}\n{\"step\":1}\n").is_err());
    }

    #[test]
    fn a_missing_file_stays_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        assert_eq!(truncate_after(&path, 2).unwrap(), 0);
        assert!(!path.exists());
    }
}
