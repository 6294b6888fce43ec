//! Reads Parquet files.

use anyhow::{Context, Result, bail, ensure};
use capo_system::contain::{contain, damaged};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::errors::ParquetError;

use super::Lines;

const BATCH: usize = 256;
/// Longest footer in bytes. The reader expands the footer in memory before it reads a row.
const LONGEST_FOOTER: u32 = 16 << 20;
/// Stack of the reading thread, in bytes per byte of the footer: a nested column takes at least
/// five bytes, and a stack frame of 2 KiB.
const STACK: usize = 512;
/// Smallest stack of the reading thread, in bytes.
const LEAST_STACK: usize = 16 << 20;

/// Returns the rows of a Parquet file as lines of JSON.
pub fn lines(bytes: Vec<u8>) -> Result<Vec<u8>> {
    let footer = bytes
        .len()
        .checked_sub(8)
        .and_then(|at| bytes[at..].first_chunk())
        .copied()
        .map(u32::from_le_bytes);
    let Some(length) = footer else {
        bail!("it ends too early (fetch it again)")
    };
    ensure!(
        length <= LONGEST_FOOTER,
        "its footer is said to have {length} bytes \
         (at most {LONGEST_FOOTER}; write it again with larger row groups)"
    );
    let thread = std::thread::Builder::new().stack_size(LEAST_STACK.max(STACK * length as usize));
    std::thread::scope(|scope| {
        let thread = thread
            .spawn_scoped(scope, || contain(|| rows(bytes)).and_then(|rows| rows))
            .context("no thread can be started to read it")?;
        thread.join().unwrap_or_else(|_| bail!("it is damaged"))
    })
}

fn rows(bytes: Vec<u8>) -> Result<Vec<u8>> {
    let reader =
        ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes)).map_err(damaged)?;
    let mut lines = Lines::new();
    for batch in reader.with_batch_size(BATCH).build().map_err(damaged)? {
        lines.push(&batch.map_err(|error| damaged(ParquetError::from(error)))?)?;
    }
    Ok(lines.finish())
}
