//! Records of a run: how far its metrics and completions had come at each checkpoint. They are in `records.json` in its directory.
//!
//! A resume notices by them that metrics or completions have changed. They are no state: a resume reports damage and goes on.
//!
//! It lies beside the checkpoints and not in them, because metrics hold durations, and a checkpoint is the same bits in every run.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use capo_loader::{seal, terminal};
use serde::{Deserialize, Serialize};

use crate::metrics::journal::{Gap, Mark};

const FILE: &str = "records.json";

/// The records of a run.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Records {
    /// By the step of the checkpoint.
    marks: BTreeMap<u64, Marks>,
    /// Damage that a resume found.
    pub gaps: Vec<Gap>,
}

/// How far the files had come at a checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Marks {
    /// `metrics.jsonl`.
    pub metrics: Mark,
    /// `completions.jsonl`.
    pub completions: Mark,
}

impl Records {
    /// The records of the run in `dir`.
    pub fn read(dir: &Path) -> Result<Self> {
        seal::read(&dir.join(FILE))
    }

    /// The marks at the checkpoint of `step`, where they are known.
    pub fn at(&self, step: u64) -> Option<&Marks> {
        self.marks.get(&step)
    }

    /// Notes the marks of a checkpoint that is about to appear, and forgets those of other steps than `checkpoints`.
    pub fn note(&mut self, dir: &Path, step: u64, marks: Marks, checkpoints: &[u64]) -> Result<()> {
        self.marks.retain(|step, _| checkpoints.contains(step));
        self.marks.insert(step, marks);
        self.write(dir)
    }

    /// Notes what is damaged.
    pub fn tell(&mut self, dir: &Path, gap: Gap) -> Result<()> {
        terminal::warn(&format!("`{}`: {}; the run goes on", dir.join(&gap.file).display(), gap.sentence()));
        self.gaps.push(gap);
        self.write(dir)
    }

    fn write(&self, dir: &Path) -> Result<()> {
        seal::write(&dir.join(FILE), self)
    }
}
