//! Reads files of rows in any supported format. Each becomes lines of JSON, so that one reader of
//! rows serves all formats.

mod find;
#[cfg(feature = "datasets")]
mod tables;

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_system::files;

pub use find::{Wanted, find};

use super::lenient::{self, BYTE_ORDER};

/// Word for a row of a file in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A line of a text file.
    Line,
    /// A row of a table.
    Row,
}

/// The rows of a file as JSON, one on each line.
#[derive(Debug)]
pub struct Text {
    /// The lines, in order; empty lines are not rows.
    pub bytes: Vec<u8>,
    /// Word for a row of this file in messages.
    pub unit: Unit,
}

/// Reads a whole file: JSON lines, a list of JSON objects, Parquet or Arrow. Its first bytes decide
/// the format, not its name.
pub fn read(path: &Path) -> Result<Text> {
    let bytes = files::read(path)?;
    match bytes.get(..4) {
        Some(b"PAR1") => table(path, tables::parquet(bytes)),
        Some(b"ARRO" | b"\xff\xff\xff\xff") => table(path, tables::arrow(&bytes)),
        Some([0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [b'{' | b'[', 0, ..]) => {
            bail!("`{}` is text in UTF-16 (write it in UTF-8)", path.display())
        }
        Some([0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd] | b"PK\x03\x04") => {
            bail!("`{}` is packed (unpack it)", path.display())
        }
        _ => {
            let start = bytes
                .iter()
                .take_while(|byte| byte.is_ascii_whitespace() || BYTE_ORDER.contains(byte))
                .count();
            if bytes[start..].starts_with(b"[") {
                let rows = lenient::lines(&bytes[start..]);
                return table(
                    path,
                    rows.map_err(|error| anyhow!("not valid JSON: {error}")),
                );
            }
            check_lines(&bytes[start..])
                .with_context(|| format!("cannot read `{}`", path.display()))?;
            Ok(Text {
                bytes,
                unit: Unit::Line,
            })
        }
    }
}

/// The rows of a table in a file.
fn table(path: &Path, rows: Result<Vec<u8>>) -> Result<Text> {
    Ok(Text {
        bytes: rows.with_context(|| format!("cannot read `{}`", path.display()))?,
        unit: Unit::Row,
    })
}

/// Refuses texts in which no line can be a JSON object.
fn check_lines(text: &[u8]) -> Result<()> {
    let first = text
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    ensure!(
        first != b"{",
        "its objects go over several lines \
         (write each on a line of its own, as `jq -c .` does, or all of them as a list)"
    );
    let has_objects = text
        .split(|byte| *byte == b'\n')
        .any(|line| line.trim_ascii_start().starts_with(b"{"));
    for (separator, name) in [(b'\t', "tabs"), (b',', "commas"), (b';', "semicolons")] {
        ensure!(
            !first.contains(&separator) || has_objects,
            "it is a table with {name} between its columns, which is not read \
             (write it as JSON lines or parquet, in Python with pandas: \
             `read_csv(...).to_json(..., orient=\"records\", lines=True)`)"
        );
    }
    Ok(())
}

#[cfg(not(feature = "datasets"))]
mod tables {
    use anyhow::Result;

    use crate::features::missing;

    pub(super) fn parquet(_: Vec<u8>) -> Result<Vec<u8>> {
        Err(missing("parquet", "datasets"))
    }

    pub(super) fn arrow(_: &[u8]) -> Result<Vec<u8>> {
        Err(missing("arrow", "datasets"))
    }
}

#[cfg(all(test, feature = "datasets"))]
mod tests;
