//! Converts rows of tables, Parquet or Arrow, to lines of JSON.

mod arrow;
mod parquet;

use anyhow::{Result, ensure};
use arrow_array::RecordBatch;
use arrow_json::writer::{LineDelimited, Writer, WriterBuilder};
use capo_loader::memory;

pub(super) use arrow::lines as arrow;
pub(super) use parquet::lines as parquet;

/// Number of rows that are written between checks of their size.
const AT_A_TIME: usize = 64;

/// Lines of JSON, limited by the free memory: few bytes of a compressed table can expand to any number of bytes.
struct Lines {
    bytes: Vec<u8>,
    most: u64,
}

impl Lines {
    fn new() -> Self {
        Self { bytes: Vec::new(), most: memory::available().unwrap_or(u64::MAX) }
    }

    /// Appends the rows of `batch`; null values are written as null.
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        for start in (0..batch.num_rows()).step_by(AT_A_TIME) {
            let part = batch.slice(start, AT_A_TIME.min(batch.num_rows() - start));
            let mut writer: Writer<_, LineDelimited> =
                WriterBuilder::new().with_explicit_nulls(true).build(&mut self.bytes);
            writer.write(&part)?;
            writer.finish()?;
            ensure!(
                (self.bytes.len() as u64) < self.most,
                "its rows take more than the {} of memory that are free (use a larger machine, or fewer files)",
                memory::text(self.most.into())
            );
        }
        Ok(())
    }

    fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
