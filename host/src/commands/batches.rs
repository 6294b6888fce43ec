//! Recorded batches that are read several times.

use std::path::{Path, PathBuf};

use anyhow::Result;
use capo_loader::replay::OptimizerSettings;
use capo_plugin::BatchBuffer;

/// Largest total size in bytes of batch files that are held in memory.
const HELD_BYTES: u64 = 1 << 30;

pub struct Batches<'a> {
    /// Batch files, in order.
    pub paths: &'a [PathBuf],
    pub optimizer: OptimizerSettings,
    /// The batches, once they are in memory.
    pub held: Option<Vec<BatchBuffer>>,
}

impl Batches<'_> {
    /// Reads the batches now, if they are small enough to be held in memory.
    pub fn hold(&mut self) -> Result<()> {
        let bytes: u64 = self
            .paths
            .iter()
            .filter_map(|path| path.metadata().ok())
            .map(|file| file.len())
            .sum();
        if bytes <= HELD_BYTES {
            self.held = Some(
                self.paths
                    .iter()
                    .map(|path| self.optimizer.read(path))
                    .collect::<Result<_>>()?,
            );
        }
        Ok(())
    }

    /// Calls `take` with every batch, in order.
    pub fn each(&self, mut take: impl FnMut(&Path, &BatchBuffer) -> Result<()>) -> Result<()> {
        match &self.held {
            Some(held) => self
                .paths
                .iter()
                .zip(held)
                .try_for_each(|(path, batch)| take(path, batch)),
            None => self
                .paths
                .iter()
                .try_for_each(|path| take(path, &self.optimizer.read(path)?)),
        }
    }
}
