//! Code that several test files share: numbers in `tests/data`, and the first step of a run.

use std::fs;
use std::path::{Path, PathBuf};

use capo_plugin::testing::Fixture;
use capo_plugin::{BatchScalars, Denominator, Dims, OptimizerInfo, OptimizerKind, Reduction};
use serde::de::DeserializeOwned;

/// A path in `tests/data`.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path)
}

/// The value in a file of JSON.
pub fn json<T: DeserializeOwned>(path: &Path) -> T {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The first step of a run, with completions of at most `limit` tokens.
pub fn first_step(
    kind: OptimizerKind,
    reduction: Reduction,
    denominator: Denominator,
    limit: usize,
) -> BatchScalars {
    let optimizer = OptimizerInfo {
        kind,
        ..Fixture::new(1, 1).batch().optimizer
    };
    let mut info = BatchScalars::new(
        Dims {
            completions: 0,
            tokens: 0,
            group_size: 1,
        },
        optimizer,
    );
    info.max_completion_length = limit;
    info.reduction = reduction;
    info.denominator = denominator;
    info
}
