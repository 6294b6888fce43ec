//! The base model of an adapter: its name and the hashes of its files.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use capo_system::files::{sha256_hex, write_atomic};
use serde::{Deserialize, Serialize};

use crate::config::CONFIG_FILE;
use crate::files::{BASE_FILE, ModelFiles};
use crate::params::weight_files;

/// The base model of an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Base {
    /// Name in the form of `model_name_or_path`.
    name: String,
    /// SHA-256 hashes of its configuration and weight files, by file name.
    files: BTreeMap<String, String>,
}

impl Base {
    /// The base model `name` with the files `files`.
    pub fn of(name: &str, files: &ModelFiles) -> Result<Self> {
        let mut hashes = BTreeMap::new();
        for file in weight_files(files)?
            .into_iter()
            .chain([CONFIG_FILE.to_owned()])
        {
            let hash = sha256_hex(&files.read(&file)?);
            hashes.insert(file, hash);
        }
        Ok(Self {
            name: name.to_owned(),
            files: hashes,
        })
    }

    /// The base that the adapter in `files` records; `None` if another program wrote the adapter.
    pub fn read(files: &ModelFiles) -> Result<Option<Self>> {
        if !files.contains(BASE_FILE) {
            return Ok(None);
        }
        let base = serde_json::from_slice(&files.read(BASE_FILE)?);
        base.map(Some).with_context(|| {
            format!(
                "{} cannot be used (use another checkpoint)",
                files.describe(BASE_FILE)
            )
        })
    }

    /// Name of the base model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Refuses a base `now` that differs from this one.
    pub fn check(&self, now: &Self) -> Result<()> {
        for (file, expected) in &self.files {
            let found = now.files.get(file).map_or("none", String::as_str);
            ensure!(
                found == expected,
                "the adapter was trained over another `{file}` than `{}` has now: \
                 SHA-256 {found}, expected {expected} \
                 (put the base model back, or start a run over the new one)",
                now.name
            );
        }
        Ok(())
    }

    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        write_atomic(
            &directory.join(BASE_FILE),
            &serde_json::to_vec_pretty(self)?,
        )
    }
}
