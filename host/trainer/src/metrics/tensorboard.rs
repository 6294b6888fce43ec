//! Writes metrics for TensorBoard, as event files in the run's directory.
//!
//! A file is a sequence of records. Each is a TensorFlow message `Event` with its length and two
//! checksums. Scalars need three messages, which are written here: existing crates for them are
//! unmaintained, and depend on a protocol compiler.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use capo_loader::component_names;

use super::line::Line;
use super::names::{APPLIED, FOUND_RATE, MEAN_WEIGHT, REJECTION_RATE};
use crate::config::{ComponentMetrics, Config, Tracker};

/// Prefix by which TensorBoard recognizes an event file. The rest of the name orders the files.
const PREFIX: &str = "events.out.tfevents.";

/// Metrics that show at a glance what a mask, a weight or a step control does: the share of
/// rejected tokens or the mean weight, the threshold, the mean predicted shift, the share of a step
/// that was applied, the learning rate that was found, and the KL divergence.
const MAIN: [&str; 8] = [
    REJECTION_RATE,
    MEAN_WEIGHT,
    "threshold",
    "m_f/mean",
    APPLIED,
    FOUND_RATE,
    "kl",
    "kl/mean",
];

/// The event file of a run.
#[derive(Debug)]
pub struct Tensorboard {
    path: PathBuf,
    file: File,
    /// Masks, weights and step controls, if only their [`MAIN`] metrics are written.
    brief: Vec<String>,
}

impl Tensorboard {
    /// Begins a file in the run's directory `dir` if the config asks for one, for steps from
    /// `first` on. TensorBoard then ignores these steps in earlier files.
    pub fn begin(dir: &Path, first: u64, config: &Config) -> Result<Option<Self>> {
        if !config.logging.report_to.contains(&Tracker::Tensorboard) {
            return Ok(None);
        }
        let (path, file) = create(dir)
            .with_context(|| format!("cannot make an event file in `{}`", dir.display()))?;
        let mut brief = Vec::new();
        if config.logging.component_metrics == ComponentMetrics::Main {
            for components in [&config.mask, &config.weight, &config.step_control] {
                brief.extend(component_names(components));
            }
        }
        let mut events = Self { path, file, brief };
        events.append(&event(0, &message(3, b"brain.Event:2")))?;
        if first > 0 {
            // Marks the start of a session: its status is 1.
            events.append(&event(first, &message(7, &number(1, 1))))?;
        }
        Ok(Some(events))
    }

    /// Writes the values of a step, except those that are not finite.
    pub fn write(&mut self, line: &Line) -> Result<()> {
        let mut summary = Vec::new();
        for (name, value) in &line.values {
            if value.is_finite() && self.is_main(name) {
                summary.extend(message(1, &scalar(name, *value)));
            }
        }
        self.append(&event(line.step, &message(5, &summary)))
    }

    /// True unless `metric` belongs to a component of which only other metrics are written.
    fn is_main(&self, metric: &str) -> bool {
        self.brief
            .iter()
            .filter_map(|component| metric.strip_prefix(component)?.strip_prefix('/'))
            .all(|name| MAIN.contains(&name))
    }

    /// Appends a record in one write. If the process is killed, at most the last record is torn.
    fn append(&mut self, data: &[u8]) -> Result<()> {
        let length = (data.len() as u64).to_le_bytes();
        let record = [&length[..], &checksum(&length), data, &checksum(data)].concat();
        self.file
            .write_all(&record)
            .with_context(|| format!("cannot append to `{}`", self.path.display()))
    }
}

/// Creates a file whose name sorts after the existing ones.
fn create(dir: &Path) -> std::io::Result<(PathBuf, File)> {
    let mut last = 0;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| {
            name.strip_prefix(PREFIX)?
                .split('.')
                .next()?
                .parse::<u64>()
                .ok()
        });
        last = last.max(number.unwrap_or(0));
    }
    // By convention, the name contains the second of the file's creation.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    for number in now.max(last.saturating_add(1)).. {
        let path = dir.join(format!("{PREFIX}{number:010}.capo"));
        match OpenOptions::new().create_new(true).append(true).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return Ok((path, opened?)),
        }
    }
    unreachable!("there are more numbers than files")
}

/// The message `Event` with the current time and one additional field.
fn event(step: u64, field: &[u8]) -> Vec<u8> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64());
    [
        &[1 << 3 | 1][..],
        &now.to_le_bytes(),
        &number(2, step),
        field,
    ]
    .concat()
}

/// The message `Summary.Value` with the name of a metric and its value.
fn scalar(name: &str, value: f64) -> Vec<u8> {
    [
        &message(1, name.as_bytes())[..],
        &[2 << 3 | 5],
        &(value as f32).to_le_bytes(),
    ]
    .concat()
}

/// Encodes a whole number as a field.
fn number(field: u8, value: u64) -> Vec<u8> {
    let mut bytes = vec![field << 3];
    varint(value, &mut bytes);
    bytes
}

/// Encodes a text or a message as a field.
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

/// The checksum of some bytes of a record.
fn checksum(bytes: &[u8]) -> [u8; 4] {
    masked(crc32c(bytes)).to_le_bytes()
}

/// Masks a checksum for a record, as the format asks, so that checksums of data with checksums
/// still detect errors.
fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Cyclic redundancy check with Castagnoli's polynomial.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut at = 0;
        while at < 256 {
            let mut sum = at as u32;
            let mut bit = 0;
            while bit < 8 {
                sum = if sum & 1 == 1 {
                    sum >> 1 ^ 0x82f6_3b78
                } else {
                    sum >> 1
                };
                bit += 1;
            }
            table[at] = sum;
            at += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |sum, byte| {
        sum >> 8 ^ TABLE[(sum as u8 ^ byte) as usize]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_agree_with_the_standard() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(0), 0xa282_ead8);
    }

    #[test]
    fn later_files_have_later_names() {
        let directory = tempfile::tempdir().unwrap();
        let names: Vec<PathBuf> = (0..3)
            .map(|_| create(directory.path()).unwrap().0)
            .collect();
        assert!(
            names.is_sorted() && names[0] != names[1] && names[1] != names[2],
            "{names:?}"
        );
    }
}
