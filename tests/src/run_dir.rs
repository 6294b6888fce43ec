//! Files that a run wrote: metrics, checkpoints, weights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use capo_system::files::sha256_hex;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;

use crate::folder::{names, text};

/// One line of `metrics.jsonl`.
pub type Line = BTreeMap<String, Value>;

/// A run directory.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// The run in `path`.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Path of the run.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of the run's file `name`.
    pub fn text(&self, name: &str) -> String {
        text(&self.path.join(name))
    }

    /// The lines of steps in `metrics.jsonl`, without durations.
    pub fn metrics(&self) -> Vec<Line> {
        self.lines()
            .into_iter()
            .filter(|line| line["step"] != 0)
            .collect()
    }

    /// All lines of `metrics.jsonl`, without durations: steps, and the measurement before the first
    /// step.
    pub fn lines(&self) -> Vec<Line> {
        let parse = |line| serde_json::from_str::<Line>(line).expect("a line is a JSON object");
        let untimed = |line: Line| {
            line.into_iter()
                .filter(|(name, _)| !is_time(name))
                .collect()
        };
        self.text("metrics.jsonl")
            .lines()
            .map(parse)
            .map(untimed)
            .collect()
    }

    /// The values of one metric in step order; steps without it are left out.
    pub fn metric(&self, name: &str) -> Vec<f64> {
        self.metrics()
            .iter()
            .filter_map(|line| line.get(name))
            .map(|value| value.as_f64().expect("a number"))
            .collect()
    }

    /// The steps of the run's checkpoints.
    pub fn checkpoints(&self) -> Vec<u64> {
        let folder = self.path.join("checkpoints");
        let names = if folder.exists() {
            names(&folder)
        } else {
            BTreeSet::new()
        };
        names
            .iter()
            .filter_map(|name| name.strip_prefix("step-")?.parse().ok())
            .collect()
    }

    /// Path of the newest checkpoint.
    pub fn last_checkpoint(&self) -> PathBuf {
        let step = self.checkpoints().pop().expect("a run has a checkpoint");
        self.path
            .join("checkpoints")
            .join(format!("step-{step:06}"))
    }

    /// Name of the newest checkpoint, and the SHA-256 of every file in it, by file name.
    pub fn files(&self) -> (String, BTreeMap<String, String>) {
        let dir = self.last_checkpoint();
        let hash = |name: String| {
            (
                name.clone(),
                sha256_hex(&std::fs::read(dir.join(name)).expect("a file")),
            )
        };
        let name = dir
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        (name, names(&dir).into_iter().map(hash).collect())
    }

    /// The SHA-256 of weights and optimizer state of the newest checkpoint.
    pub fn weights(&self) -> [String; 2] {
        let (_, files) = self.files();
        ["model.safetensors", "optimizer.safetensors"].map(|name| files[name].clone())
    }

    /// Every number in `file` of the newest checkpoint, by tensor.
    pub fn tensors(&self, file: &str) -> BTreeMap<String, Vec<f32>> {
        tensors(&self.last_checkpoint().join(file))
    }

    /// The largest difference between a weight of both runs.
    pub fn largest_difference(&self, other: &Self) -> f32 {
        let (ours, theirs) = (
            self.tensors("model.safetensors"),
            other.tensors("model.safetensors"),
        );
        assert!(ours.keys().eq(theirs.keys()));
        ours.values()
            .flatten()
            .zip(theirs.values().flatten())
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max)
    }

    /// Asserts that both runs have bitwise equal weights and optimizer states, and equal metrics.
    pub fn assert_same(&self, other: &Self) {
        self.assert_same_metrics(other);
        assert_eq!(self.weights(), other.weights());
    }

    /// Asserts that both runs also have equal checkpoints, file by file.
    pub fn assert_same_files(&self, other: &Self) {
        self.assert_same_metrics(other);
        assert_eq!(self.files(), other.files());
    }

    fn assert_same_metrics(&self, other: &Self) {
        let (ours, theirs) = (self.lines(), other.lines());
        for (a, b) in ours.iter().zip(&theirs) {
            let names = a
                .keys()
                .chain(b.keys())
                .filter(|name| a.get(*name) != b.get(*name));
            let different = names
                .map(|name| (name, a.get(name), b.get(name)))
                .collect::<Vec<_>>();
            assert!(different.is_empty(), "step {}: {different:?}", a["step"]);
        }
        assert_eq!(ours.len(), theirs.len());
    }
}

/// True if a metric is a duration, which differs between runs.
fn is_time(name: &str) -> bool {
    name == "step_time" || name.starts_with("timing_s/")
}

/// Every number of a safetensors file as f32, by tensor.
///
/// # Panics
///
/// If the file cannot be read, or holds other types than the project writes.
pub fn tensors(path: &Path) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).expect("a file");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let numbers = |view: TensorView<'_>| -> Vec<f32> {
        let (data, le) = (view.data(), "a whole number");
        match view.dtype() {
            Dtype::F32 => data
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().expect(le)))
                .collect(),
            Dtype::F64 => data
                .chunks_exact(8)
                .map(|b| f64::from_le_bytes(b.try_into().expect(le)) as f32)
                .collect(),
            Dtype::U32 => data
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes(b.try_into().expect(le)) as f32)
                .collect(),
            Dtype::I64 => data
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().expect(le)) as f32)
                .collect(),
            Dtype::U8 => data.iter().map(|&b| f32::from(b)).collect(),
            other => panic!("{other:?} in `{}`", path.display()),
        }
    };
    tensors
        .iter()
        .map(|(name, view)| (name.to_owned(), numbers(view)))
        .collect()
}
