//! The answers of an evaluation as JSON lines, appended while it runs. An evaluation that was
//! killed continues from them.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_system::files::{self, NewFile, sha256_hex};
use serde::{Deserialize, Serialize};

use super::output;
use crate::benchmark::{Answer, Benchmark, Outcome};

/// The first line of the partial file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    /// Hash of all that determines the answers and their grades.
    evaluation: String,
}

/// The partial file and its contents.
pub(super) struct Answers {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    /// Hash of all that determines the answers and their grades; each line's hash includes it.
    evaluation: String,
    /// Outcomes of the answers that the file already holds, one list per benchmark.
    done: Vec<Vec<Outcome>>,
}

impl Answers {
    /// Opens `PATH.partial` beside `path`, and continues it if it holds answers of the same
    /// `evaluation`.
    pub(super) fn open(path: &Path, evaluation: &str, benchmarks: &[Benchmark]) -> Result<Self> {
        output::prepare(path)?;
        let partial = path.with_added_extension("partial");
        let shown = partial.display();
        let cannot = format!("cannot write `{shown}`");
        let mut options = OpenOptions::new();
        let file = files::open_plain(
            &partial,
            options.read(true).write(true).create(true).truncate(false),
        );
        let mut answers = Self {
            path: path.to_owned(),
            file: file.with_context(|| cannot.clone())?,
            partial: partial.clone(),
            evaluation: evaluation.to_owned(),
            done: Vec::new(),
        };
        match answers.file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("`{shown}` is written by another process (wait for it)")
            }
            Err(TryLockError::Error(error)) => return Err(error).context(cannot),
        }
        let whole = answers.take_up(benchmarks)?;
        let file = &mut answers.file;
        file.set_len(whole)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .context(cannot)?;
        if whole == 0 {
            let head = Head {
                evaluation: evaluation.to_owned(),
            };
            answers.write(&(serde_json::to_string(&head)? + "\n"))?;
        }
        Ok(answers)
    }

    /// Reads the existing answers; returns the number of bytes in whole lines, up to the last
    /// question with all of its answers.
    fn take_up(&mut self, benchmarks: &[Benchmark]) -> Result<u64> {
        let shown = self.partial.display();
        let mut lines = BufReader::new(&self.file);
        let mut expected = benchmarks.iter().flat_map(|benchmark| {
            (0..benchmark.answers()).map(|i| {
                (
                    benchmark.name.as_str(),
                    i / benchmark.samples,
                    i % benchmark.samples,
                )
            })
        });
        self.done = benchmarks.iter().map(|_| Vec::new()).collect();
        let mut whole = 0;
        let mut so_far = 0;
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            line.clear();
            let read = lines
                .read_until(b'\n', &mut line)
                .with_context(|| format!("cannot read `{shown}`"))?;
            // A line that a kill cut off is dropped, and its question is answered again.
            if read == 0 || line.last() != Some(&b'\n') {
                for (done, benchmark) in self.done.iter_mut().zip(benchmarks) {
                    done.truncate(done.len() / benchmark.samples * benchmark.samples);
                }
                return Ok(whole);
            }
            so_far += read as u64;
            number += 1;
            let damaged =
                || anyhow!("`{shown}` is damaged at line {number} (remove it to begin anew)");
            if number == 1 {
                let head: Head = serde_json::from_slice(&line).map_err(|_| damaged())?;
                ensure!(
                    head.evaluation == self.evaluation,
                    "`{shown}` has answers of another model, or with other questions, settings, \
                     plugins or programs (remove it to begin anew)"
                );
                whole = so_far;
                continue;
            }
            let answer = std::str::from_utf8(&line)
                .ok()
                .and_then(|line| line.trim_end().split_once(' '));
            let (_, answer) = answer
                .filter(|(hash, answer)| *hash == self.seal(answer))
                .ok_or_else(damaged)?;
            let answer: Answer = serde_json::from_str(answer).map_err(|_| damaged())?;
            let place = expected.next().ok_or_else(damaged)?;
            ensure!(
                place == (answer.benchmark.as_str(), answer.prompt, answer.sample),
                damaged()
            );
            let benchmark = benchmarks
                .iter()
                .position(|benchmark| benchmark.name == answer.benchmark);
            let benchmark = benchmark.ok_or_else(damaged)?;
            self.done[benchmark].push(Outcome::from(&answer));
            if answer.sample + 1 == benchmarks[benchmark].samples {
                whole = so_far;
            }
        }
    }

    /// Takes the outcomes that the file already held for the benchmark of this `index`.
    pub(super) fn done(&mut self, index: usize) -> Vec<Outcome> {
        std::mem::take(&mut self.done[index])
    }

    /// Hash that is written before an answer, so that an edited answer is noticed.
    fn seal(&self, answer: &str) -> String {
        sha256_hex(format!("{}{answer}", self.evaluation).as_bytes())
    }

    /// Appends answers and syncs them to disk.
    pub(super) fn append(&mut self, answers: &[Answer]) -> Result<()> {
        let mut lines = String::new();
        for answer in answers {
            let answer = serde_json::to_string(answer)?;
            lines += &format!("{} {answer}\n", self.seal(&answer));
        }
        self.write(&lines)
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let written = self
            .file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data());
        written.with_context(|| format!("cannot write `{}`", self.partial.display()))
    }

    /// Gives the file its own name, once all answers are there.
    pub(super) fn finish(mut self) -> Result<()> {
        self.write_whole()
            .with_context(|| format!("cannot write `{}`", self.path.display()))?;
        std::fs::remove_file(&self.partial)
            .with_context(|| format!("cannot remove `{}`", self.partial.display()))
    }

    /// Writes the answers without their hashes.
    fn write_whole(&mut self) -> Result<()> {
        let mut whole = NewFile::create(&self.path)?;
        self.file.seek(SeekFrom::Start(0))?;
        let mut lines = BufReader::new(&self.file);
        lines.skip_until(b'\n')?;
        while lines.skip_until(b' ')? > 0 {
            let mut answer = Vec::new();
            lines.read_until(b'\n', &mut answer)?;
            whole.write_all(&answer)?;
        }
        whole.finish()?;
        Ok(())
    }
}
