//! Converts rows of tables, Parquet or Arrow, to lines of JSON.

mod arrow;
mod parquet;

use std::sync::Once;

use anyhow::{Result, ensure};
use arrow_array::RecordBatch;
use arrow_json::writer::{LineDelimited, Writer, WriterBuilder};
use capo_system::{memory, terminal};

pub(super) use arrow::lines as arrow;
pub(super) use parquet::lines as parquet;

/// Number of rows that are written between checks of their size.
const AT_A_TIME: usize = 64;

/// Lines of JSON, limited by the free memory: few bytes of a compressed table can expand to any
/// number of bytes.
struct Lines {
    bytes: Vec<u8>,
    most: u64,
    /// Columns that have a form in JSON; `None` before the first row.
    columns: Option<Vec<usize>>,
}

impl Lines {
    fn new() -> Self {
        Self {
            bytes: Vec::new(),
            most: memory::available().unwrap_or(u64::MAX),
            columns: None,
        }
    }

    /// Appends the rows of `batch`; null values are written as null, and columns without a form in
    /// JSON are left out.
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let batch = &batch.project(self.columns.get_or_insert_with(|| readable(batch)))?;
        for start in (0..batch.num_rows()).step_by(AT_A_TIME) {
            let part = batch.slice(start, AT_A_TIME.min(batch.num_rows() - start));
            write(&part, &mut self.bytes)?;
            ensure!(
                (self.bytes.len() as u64) < self.most,
                "its rows take more than the {} of memory that are free \
                 (use a larger machine, or fewer files)",
                memory::text(self.most.into())
            );
        }
        Ok(())
    }

    fn finish(self) -> Vec<u8> {
        self.bytes
    }
}

fn write(rows: &RecordBatch, bytes: &mut Vec<u8>) -> Result<()> {
    let mut writer: Writer<_, LineDelimited> =
        WriterBuilder::new().with_explicit_nulls(true).build(bytes);
    writer.write(rows)?;
    Ok(writer.finish()?)
}

/// The columns that have a form in JSON, for instance not times with a time zone. Warns once of the
/// others.
fn readable(batch: &RecordBatch) -> Vec<usize> {
    static WARNED: Once = Once::new();
    let first = batch.slice(0, 1);
    let (readable, others): (Vec<usize>, Vec<usize>) =
        (0..batch.num_columns()).partition(|column| {
            first
                .project(&[*column])
                .is_ok_and(|one| write(&one, &mut Vec::new()).is_ok())
        });
    if let Some(other) = others.first() {
        let name = batch.schema().field(*other).name().clone();
        WARNED.call_once(|| {
            terminal::warn(&format!(
                "columns whose type cannot be read are left out of the rows, such as `{name}`"
            ));
        });
    }
    readable
}
