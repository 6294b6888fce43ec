//! Arrow files: a stream of batches, as `datasets` leaves them, or the same between a head and a foot.

use std::io::Cursor;

use anyhow::{Context, Result, anyhow, bail, ensure};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::{Message, MessageHeader, RecordBatch};
use arrow_schema::ArrowError;

use super::lines::Lines;
use crate::data::contain::contain;

/// Bytes before the stream in a file that has a footer.
const HEAD: &[u8] = b"ARROW1\0\0";
const CONTINUATION: [u8; 4] = [0xff; 4];
/// A packed column may be this many times as long as its bytes.
const MOST_GROWTH: u64 = 1 << 12;

/// The rows of an arrow file as lines of JSON. The footer is not read: the stream says the same.
pub fn lines(bytes: &[u8]) -> Result<Vec<u8>> {
    let stream = bytes.strip_prefix(HEAD).unwrap_or(bytes);
    contain(|| {
        check(stream)?;
        rows(stream)
    })?
}

fn damaged(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("it is damaged, or of a kind that is not supported ({error})")
}

fn rows(stream: &[u8]) -> Result<Vec<u8>> {
    let reader = StreamReader::try_new(Cursor::new(stream), None).map_err(damaged)?;
    let mut lines = Lines::new();
    for batch in reader {
        let batch = batch.map_err(|error: ArrowError| damaged(error))?;
        // A column takes a bit of each row at least, or holds nothing.
        ensure!(
            batch.num_rows() / 8 <= stream.len().saturating_mul(MOST_GROWTH as usize),
            "a batch of it is said to have {} rows (fetch it again)",
            batch.num_rows()
        );
        lines.push(&batch)?;
    }
    Ok(lines.finish())
}

/// Refuses a stream that ends early, and packed columns whose lengths cannot be.
fn check(mut stream: &[u8]) -> Result<()> {
    let cut = || anyhow!("it ends too early (fetch it again)");
    while !stream.is_empty() {
        let after = stream.strip_prefix(&CONTINUATION).unwrap_or(stream);
        let (size, after) = after.split_first_chunk().ok_or_else(cut)?;
        let size = u32::from_le_bytes(*size) as usize;
        if size == 0 {
            return Ok(());
        }
        let (head, after) = after.split_at_checked(size).ok_or_else(cut)?;
        let message = arrow_ipc::root_as_message(head).map_err(damaged)?;
        let length = usize::try_from(message.bodyLength()).map_err(damaged)?;
        let (body, after) = after.split_at_checked(length).ok_or_else(cut)?;
        if let Some(batch) = batch(&message)
            && batch.compression().is_some()
        {
            check_packed(&batch, body)?;
        }
        stream = after;
    }
    Ok(())
}

/// The columns of a message, of rows or of a dictionary.
fn batch<'a>(message: &Message<'a>) -> Option<RecordBatch<'a>> {
    match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch(),
        MessageHeader::DictionaryBatch => message.header_as_dictionary_batch().and_then(|batch| batch.data()),
        _ => None,
    }
}

/// Each packed column says how long it is before memory is asked for.
fn check_packed(batch: &RecordBatch<'_>, body: &[u8]) -> Result<()> {
    let mut sum = 0_u64;
    for buffer in batch.buffers().into_iter().flatten().filter(|buffer| buffer.length() > 0) {
        let place = usize::try_from(buffer.offset()).ok().zip(usize::try_from(buffer.length()).ok());
        let packed = place.and_then(|(offset, length)| body.get(offset..)?.get(..length));
        let head = packed.and_then(|packed| packed.first_chunk()).context("a column of it lies outside of it")?;
        // -1 is a column that is not packed.
        let length = u64::try_from(i64::from_le_bytes(*head).max(0)).unwrap_or(0);
        sum = sum.saturating_add(length);
        let most = (body.len() as u64).saturating_mul(MOST_GROWTH);
        if sum > most {
            bail!("its columns are said to have {sum} bytes unpacked (at most {most}; fetch it again)");
        }
    }
    Ok(())
}
