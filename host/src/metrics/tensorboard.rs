//! Metrics as TensorBoard reads them: event files in the run's directory.
//!
//! A file is a sequence of records, each a message `Event` of TensorFlow's with its length and two checksums. The three messages that scalars
//! take are written here: the crates that do so have not been kept up, and bring a compiler of protocols along.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// How TensorBoard knows an event file; what follows orders them.
const PREFIX: &str = "events.out.tfevents.";

/// An event file that is written to.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// Begins a file in the run's directory `dir`, of steps from `first` on. TensorBoard then ignores what earlier files hold of these
    /// steps.
    pub fn begin(dir: &Path, first: u64) -> Result<Self> {
        let (path, file) = create(dir).with_context(|| format!("cannot make an event file in `{}`", dir.display()))?;
        let mut events = Self { path, file };
        events.append(&event(0, &message(3, b"brain.Event:2")))?;
        if first > 0 {
            // A session that starts: its status is 1.
            events.append(&event(first, &message(7, &number(1, 1))))?;
        }
        Ok(events)
    }

    /// Writes the values of a step, those that are not finite left out.
    pub fn write<'a>(&mut self, step: u64, values: impl Iterator<Item = (&'a String, &'a f64)>) -> Result<()> {
        let value = |(name, value): (&String, &f64)| {
            let scalar = [&message(1, name.as_bytes())[..], &[2 << 3 | 5], &(*value as f32).to_le_bytes()].concat();
            message(1, &scalar)
        };
        let summary: Vec<u8> = values.filter(|(_, value)| value.is_finite()).flat_map(value).collect();
        self.append(&event(step, &message(5, &summary)))
    }

    /// Appends a record with one call, so that what is killed leaves whole ones and at most one torn at the end.
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let sum = |bytes: &[u8]| masked(crc32c(bytes)).to_le_bytes();
        let record = [&length[..], &sum(&length), data, &sum(data)].concat();
        self.file.write_all(&record).with_context(|| format!("cannot append to `{}`", self.path.display()))
    }
}

/// A new file whose name comes after those that are there.
fn create(dir: &Path) -> std::io::Result<(PathBuf, File)> {
    let mut last = 0;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok());
        last = last.max(number.unwrap_or(0));
    }
    // By convention the second in which it was made.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    for number in now.max(last.saturating_add(1)).. {
        let path = dir.join(format!("{PREFIX}{number:010}.capo"));
        match OpenOptions::new().create_new(true).append(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return Ok((path, opened?)),
        }
    }
    unreachable!("there are more numbers than files")
}

/// The message `Event` of now, with one more field.
fn event(step: u64, field: &[u8]) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    [&[1 << 3 | 1][..], &now.to_le_bytes(), &number(2, step), field].concat()
}

/// A field that is a whole number.
fn number(field: u8, value: u64) -> Vec<u8> {
    let mut bytes = vec![field << 3];
    varint(value, &mut bytes);
    bytes
}

/// A field that is text or a message.
fn message(field: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![field << 3 | 2];
    varint(content.len() as u64, &mut bytes);
    bytes.extend(content);
    bytes
}

fn varint(mut value: u64, bytes: &mut Vec<u8>) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// As records hold a checksum, so that one of data that holds checksums is still good.
fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The cyclic redundancy check with Castagnoli's polynomial.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut at = 0;
        while at < 256 {
            let (mut sum, mut bit) = (at as u32, 0);
            while bit < 8 {
                sum = if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
                bit += 1;
            }
            table[at] = sum;
            at += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |sum, byte| sum >> 8 ^ TABLE[(sum as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(0), 0xa282_ead8);
    }

    #[test]
    fn numbers_take_as_many_bytes_as_they_need() {
        assert_eq!([number(2, 1), number(2, 300)].concat(), [16, 1, 16, 172, 2]);
        assert_eq!(message(3, b"ab"), [26, 2, b'a', b'b']);
    }

    #[test]
    fn a_later_file_has_a_later_name() {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<PathBuf> = (0..3).map(|first| EventFile::begin(directory.path(), first).unwrap().path).collect();
        assert!(names.is_sorted() && names[0] != names[1] && names[1] != names[2], "{names:?}");
    }
}
