//! Reads the completions that a run has written, for a few of its steps.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use capo_system::files;
use host_data::read_rows;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::metrics::completions::{COMPLETIONS_FILE, FOLDER, step_of};

/// Longest line that is read, in bytes.
const LONGEST: u64 = 1 << 28;

/// A completion: its columns by name.
pub type Row = Map<String, Value>;

/// Place of a step's completions.
enum Source {
    /// Byte ranges in the file of lines, as offset and length.
    Lines(Vec<(u64, u64)>),
    /// A separate file.
    File(PathBuf),
}

/// Reads the completions of at most `steps` steps of the run in `dir`, from the first to the last
/// step that has some. Damaged lines are left out.
pub fn completions(dir: &Path, steps: usize) -> Result<BTreeMap<u64, Vec<Row>>> {
    let path = dir.join(COMPLETIONS_FILE);
    read(dir, &path, steps).with_context(|| format!("cannot read `{}`", path.display()))
}

fn read(dir: &Path, path: &Path, steps: usize) -> Result<BTreeMap<u64, Vec<Row>>> {
    let mut sources = if path.symlink_metadata().is_ok() {
        index(path)?
    } else {
        BTreeMap::new()
    };
    if let Ok(entries) = fs::read_dir(dir.join(FOLDER)) {
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        sources.extend(paths.filter_map(|path| Some((step_of(&path)?, Source::File(path)))));
    }
    let count = sources.len();
    let chosen = sources
        .into_iter()
        .enumerate()
        .filter(|(at, _)| is_chosen(*at, count, steps));
    chosen
        .map(|(_, (step, source))| Ok((step, rows(path, &source)?)))
        .collect()
}

/// True if index `at` of `count` is among `most` evenly spaced ones, which include the first and
/// the last.
fn is_chosen(at: usize, count: usize, most: usize) -> bool {
    count <= most || (0..most).any(|number| number * (count - 1) / (most.max(2) - 1) == at)
}

/// Finds the lines of each step in the file at `path`.
fn index(path: &Path) -> Result<BTreeMap<u64, Source>> {
    #[derive(Deserialize)]
    struct Head {
        step: u64,
    }
    files::size(path)?;
    let mut file = BufReader::new(File::open(path)?);
    let mut line = Vec::new();
    let mut first = 0;
    let mut sources = BTreeMap::new();
    loop {
        line.clear();
        let length = (&mut file).take(LONGEST).read_until(b'\n', &mut line)? as u64;
        if length == 0 {
            return Ok(sources);
        }
        if let Ok(Head { step }) = serde_json::from_slice(&line)
            && let Source::Lines(places) = sources
                .entry(step)
                .or_insert_with(|| Source::Lines(Vec::new()))
        {
            places.push((first, length));
        }
        first += length;
    }
}

fn rows(path: &Path, source: &Source) -> Result<Vec<Row>> {
    let mut lines = Vec::new();
    match source {
        Source::File(path) => lines = read_rows(path)?.bytes,
        Source::Lines(places) => {
            let mut file = File::open(path)?;
            for (first, length) in places {
                file.seek(SeekFrom::Start(*first))?;
                (&mut file).take(*length).read_to_end(&mut lines)?;
            }
        }
    }
    Ok(lines
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_evenly_apart() {
        let chosen = |count, most| {
            (0..count)
                .filter(|at| is_chosen(*at, count, most))
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen(3, 4), [0, 1, 2]);
        assert_eq!(chosen(100, 4), [0, 33, 66, 99]);
        assert_eq!(chosen(5, 1), [0]);
    }

    #[test]
    fn lines_of_steps() {
        let directory = tempfile::tempdir().unwrap();
        let line = |step: u64, reward: u64| format!("{{\"step\":{step},\"reward\":{reward}}}\n");
        let text = [
            line(1, 0),
            "damaged\n".into(),
            line(1, 1),
            line(2, 2),
            line(3, 3),
            "{\"step\":4".into(),
        ]
        .concat();
        std::fs::write(directory.path().join(COMPLETIONS_FILE), text).unwrap();
        let found = completions(directory.path(), 2).unwrap();
        let rewards = |step: u64| {
            found[&step]
                .iter()
                .map(|row| row["reward"].as_u64().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 3]);
        assert_eq!([rewards(1), rewards(3)], [vec![0, 1], vec![3]]);
    }
}
