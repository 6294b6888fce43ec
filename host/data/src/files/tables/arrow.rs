//! Reads Arrow files: a stream of batches, as `datasets` writes them, or such a stream between a
//! header and a footer.

use std::io::Cursor;

use anyhow::{Context, Result, bail, ensure};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::{Message, MessageHeader, RecordBatch};
use capo_system::contain::{contain, damaged};

use super::Lines;

/// Bytes before the stream in a file with a footer.
const HEAD: &[u8] = b"ARROW1\0\0";
const CUT: &str = "it ends too early (fetch it again)";
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Largest ratio of a column's length to its compressed length.
const MOST_GROWTH: u64 = 1 << 12;

/// Returns the rows of an Arrow file as lines of JSON. The footer is not read, for it repeats what
/// the stream says.
pub fn lines(bytes: &[u8]) -> Result<Vec<u8>> {
    let stream = bytes.strip_prefix(HEAD).unwrap_or(bytes);
    contain(|| {
        check(stream)?;
        rows(stream)
    })?
}

fn rows(stream: &[u8]) -> Result<Vec<u8>> {
    let reader = StreamReader::try_new(Cursor::new(stream), None).map_err(damaged)?;
    let mut lines = Lines::new();
    for batch in reader {
        let batch = batch.map_err(damaged)?;
        // A column takes at least one bit per row, or holds nothing.
        ensure!(
            batch.num_rows() / 8 <= stream.len().saturating_mul(MOST_GROWTH as usize),
            "a batch of it is said to have {} rows (fetch it again)",
            batch.num_rows()
        );
        lines.push(&batch)?;
    }
    Ok(lines.finish())
}

/// Refuses a stream that ends early, and compressed columns with impossible lengths.
fn check(mut stream: &[u8]) -> Result<()> {
    while !stream.is_empty() {
        let after = stream.strip_prefix(&CONTINUATION).unwrap_or(stream);
        let (size, after) = after.split_first_chunk().context(CUT)?;
        let size = u32::from_le_bytes(*size) as usize;
        if size == 0 {
            return Ok(());
        }
        let (head, after) = after.split_at_checked(size).context(CUT)?;
        let message = arrow_ipc::root_as_message(head).map_err(damaged)?;
        let length = usize::try_from(message.bodyLength()).map_err(damaged)?;
        let (body, after) = after.split_at_checked(length).context(CUT)?;
        if let Some(batch) = batch(&message)
            && batch.compression().is_some()
        {
            check_packed(&batch, body)?;
        }
        stream = after;
    }
    Ok(())
}

/// The columns of a message that holds rows or a dictionary.
fn batch<'a>(message: &Message<'a>) -> Option<RecordBatch<'a>> {
    match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => message
            .header_as_dictionary_batch()
            .and_then(|batch| batch.data()),
        _ => None,
    }
}

/// Checks the length that each compressed column declares, before memory is allocated for it.
fn check_packed(batch: &RecordBatch<'_>, body: &[u8]) -> Result<()> {
    let mut sum = 0_u64;
    for buffer in batch
        .buffers()
        .into_iter()
        .flatten()
        .filter(|buffer| buffer.length() > 0)
    {
        let place = usize::try_from(buffer.offset())
            .ok()
            .zip(usize::try_from(buffer.length()).ok());
        let packed = place.and_then(|(offset, length)| body.get(offset..)?.get(..length));
        let head = packed
            .and_then(|packed| packed.first_chunk())
            .context("a column of it lies outside of it")?;
        // A length of -1 marks a column that is not compressed.
        let length = u64::try_from(i64::from_le_bytes(*head).max(0)).unwrap_or(0);
        sum = sum.saturating_add(length);
        let most = (body.len() as u64).saturating_mul(MOST_GROWTH);
        if sum > most {
            bail!(
                "its columns are said to have {sum} bytes unpacked (at most {most}; fetch it again)"
            );
        }
    }
    Ok(())
}
