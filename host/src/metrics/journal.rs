//! Files of JSON lines that a run appends to, and takes up again where it was: `metrics.jsonl`, `completions.jsonl`.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use capo_loader::files;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A file that lines are appended to; knows its length and the SHA-256 of its bytes.
#[derive(Debug, Clone)]
pub struct Journal {
    path: PathBuf,
    bytes: u64,
    digest: Sha256,
}

/// A place in a journal: what the file held when it was there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    bytes: u64,
    sha256: String,
}

impl Default for Mark {
    /// The beginning.
    fn default() -> Self {
        Journal::new(Path::new("")).mark()
    }
}

/// Damage that is found in a journal when a run takes it up again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// The journal's name.
    pub file: String,
    /// The run went on after this step.
    pub step: u64,
    /// In words.
    pub what: String,
    /// The name under which the file lies that was found, if there was one.
    pub kept: Option<String>,
}

impl Gap {
    /// The gap as words, for the summary.
    pub fn sentence(&self) -> String {
        let kept = self.kept.as_ref().map_or_else(String::new, |kept| format!(" (`{kept}` is what was found)"));
        format!("lines up to step {} are not those that the run wrote: {}{kept}", self.step, self.what)
    }
}

/// The lines that a journal must have.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// After this step.
    pub step: u64,
    /// From step 1 on every so many steps have lines.
    pub every: u64,
    /// True if each has one line.
    pub once: bool,
}

impl Journal {
    /// A journal of which nothing has been written.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), bytes: 0, digest: Sha256::new() }
    }

    /// Appends a line.
    pub fn append(&mut self, line: &str) -> Result<()> {
        files::append_line(&self.path, line)?;
        self.count(line.as_bytes());
        self.count(b"\n");
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn count(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.digest.update(bytes);
    }

    /// Where the journal is now.
    pub fn mark(&self) -> Mark {
        let sha256 = self.digest.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Mark { bytes: self.bytes, sha256 }
    }

    /// Takes the journal up where it was at `mark`: later lines go, as they will be written again. A file that is not what was written
    /// there is put aside, its readable lines go on, and the gap is told.
    pub fn resume(path: &Path, mark: Option<&Mark>, expected: Expected) -> Result<(Self, Option<Gap>)> {
        let resume = || match mark.map(|mark| Self::cut(path, mark)).transpose()?.flatten() {
            Some(journal) => Ok((journal, None)),
            None => Self::salvage(path, mark.is_some(), expected),
        };
        resume().with_context(|| format!("cannot take `{}` up again", path.display()))
    }

    /// The journal at `mark`; none where the file does not begin with what was written.
    fn cut(path: &Path, mark: &Mark) -> Result<Option<Self>> {
        let mut journal = Self::new(path);
        let open = || files::size(path).and_then(|_| OpenOptions::new().read(true).write(true).open(path));
        let mut file = match open() {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((mark.bytes == 0).then_some(journal)),
            Err(error) => return Err(error.into()),
        };
        let mut block = vec![0; 1 << 16];
        while journal.bytes < mark.bytes {
            let want = block.len().min((mark.bytes - journal.bytes) as usize);
            match file.read(&mut block[..want])? {
                0 => return Ok(None),
                count => journal.count(&block[..count]),
            }
        }
        if journal.mark() != *mark {
            return Ok(None);
        }
        file.set_len(mark.bytes)?;
        file.sync_all()?;
        Ok(Some(journal))
    }

    /// The readable lines up to the expected step, by steps. Where no mark is `known`, lines that are all there count as unchanged.
    fn salvage(path: &Path, known: bool, expected: Expected) -> Result<(Self, Option<Gap>)> {
        let found = match files::bytes(path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let bytes = found.as_deref().unwrap_or_default();
        let numbered = |line| Some((step_of(line)?, line)).filter(|(step, _)| *step <= expected.step);
        let mut lines: Vec<(u64, &[u8])> = bytes.split_inclusive(|byte| *byte == b'\n').filter_map(numbered).collect();
        lines.sort_by_key(|(step, _)| *step);
        if expected.once {
            lines.dedup_by_key(|(step, _)| *step);
        }
        let there: BTreeSet<u64> = lines.iter().map(|(step, _)| *step).collect();
        let missing = (1..=expected.step).step_by(expected.every as usize).filter(|step| !there.contains(step));
        let missing = ranges(missing, expected.every);
        let kept = lines.into_iter().flat_map(|(_, line)| line).copied().collect::<Vec<u8>>();
        let mut journal = Self::new(path);
        journal.count(&kept);
        if !known && missing.is_empty() && bytes.starts_with(&kept) {
            files::write_atomic(path, &kept)?;
            return Ok((journal, None));
        }
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let aside = found.is_some().then(|| aside(path)).transpose()?;
        files::write_atomic(path, &kept)?;
        let what = match (&found, missing.as_str()) {
            (None, _) => "the file was missing".to_owned(),
            (_, "") => "lines were changed".to_owned(),
            (_, missing) => format!("no line of step {missing}"),
        };
        Ok((journal, Some(Gap { file, step: expected.step, what, kept: aside })))
    }
}

/// Copies the file at `path` to a name of its own beside it; returns that name.
fn aside(path: &Path) -> Result<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for number in 1_u32.. {
        let kept = format!("{name}.damaged-{number}");
        let target = path.with_file_name(&kept);
        match OpenOptions::new().create_new(true).write(true).open(&target) {
            Ok(mut file) => {
                std::io::copy(&mut fs::File::open(path)?, &mut file)?;
                return Ok(kept);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("cannot write `{}`", target.display())),
        }
    }
    unreachable!("there are more numbers than files")
}

/// The step of a whole line; `None` for anything else.
fn step_of(line: &[u8]) -> Option<u64> {
    let whole = line.strip_suffix(b"\n")?;
    serde_json::from_slice::<Value>(whole).ok()?["step"].as_u64()
}

/// `2 to 4, 7`, of numbers that rise; `every` is how far neighbours are apart.
pub(super) fn ranges(numbers: impl Iterator<Item = u64>, every: u64) -> String {
    let mut ranges: Vec<[u64; 2]> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some([_, last]) if number - *last == every => *last = number,
            _ => ranges.push([number, number]),
        }
    }
    let shown = ranges.iter().map(|[first, last]| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "{\"step\":1,\"kl\":null}\n{\"step\":2}\n";
    const EXPECTED: Expected = Expected { step: 2, every: 1, once: true };

    /// The file that is left of a journal and the gap that is reported. The journal was `written`; a resume after step 2 finds `found`.
    fn resumed(written: &str, found: Option<&str>) -> (String, Option<Gap>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let mut journal = Journal::new(&path);
        written.lines().for_each(|line| journal.append(line).unwrap());
        let mark = journal.mark();
        std::fs::remove_file(&path).unwrap();
        found.iter().for_each(|found| std::fs::write(&path, found).unwrap());
        let (journal, gap) = Journal::resume(&path, Some(&mark), EXPECTED).unwrap();
        let kept = gap.as_ref().and_then(|gap| gap.kept.as_ref());
        assert_eq!(
            kept.map(|kept| std::fs::read_to_string(path.with_file_name(kept)).unwrap()).as_deref(),
            kept.and(found)
        );
        let left = std::fs::read_to_string(&path).unwrap();
        assert_eq!(journal.mark().bytes, left.len() as u64);
        assert_eq!(Journal::resume(&path, Some(&journal.mark()), EXPECTED).unwrap().1, None, "told once");
        (left, gap)
    }

    fn what(found: Option<&str>) -> String {
        resumed(TWO, found).1.unwrap().what
    }

    #[test]
    fn later_lines_go_wherever_the_last_was_torn() {
        let later = "{\"step\":3,\"reward\":0.5}\n";
        for length in 0..=later.len() {
            assert_eq!(resumed(TWO, Some(&format!("{TWO}{}", &later[..length]))), (TWO.to_owned(), None));
        }
    }

    #[test]
    fn a_change_is_told_and_readable_lines_go_on() {
        let (left, gap) = resumed(TWO, Some("not ours\n{\"step\":2}\n{\"step\":3}\n"));
        assert_eq!(left, "{\"step\":2}\n");
        let sentence = "lines up to step 2 are not those that the run wrote: no line of step 1 (`metrics.jsonl.damaged-1` is what was found)";
        assert_eq!(gap.unwrap().sentence(), sentence);
        assert_eq!(what(Some("")), "no line of step 1 to 2");
        assert_eq!(what(Some(&TWO[..TWO.len() - 1])), "no line of step 2");
        assert_eq!(what(Some(&TWO.replace("null", "0.25"))), "lines were changed");
        assert_eq!(what(Some(&format!("{TWO}{TWO}")[TWO.len() - 13..])), "lines were changed");
        assert_eq!(what(None), "the file was missing");
    }

    #[test]
    fn a_journal_of_which_no_mark_is_known() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let resume = |found: &str| {
            std::fs::write(&path, found).unwrap();
            Journal::resume(&path, None, EXPECTED).unwrap().1.map(|gap| gap.what)
        };
        assert_eq!(resume(&format!("{TWO}{{\"step\":3}}\n")), None);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), TWO);
        assert_eq!(resume("{\"step\":2}\n").as_deref(), Some("no line of step 1"));
    }

    #[test]
    fn steps_as_ranges() {
        assert_eq!(ranges([2, 3, 4, 7, 9, 10].into_iter(), 1), "2 to 4, 7, 9 to 10");
        assert_eq!(ranges([3, 5, 9].into_iter(), 2), "3 to 5, 9");
    }
}
