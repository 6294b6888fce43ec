//! Room for checkpoints on a disk.

use std::path::Path;

use anyhow::{Result, ensure};
use capo_system::{folders, memory};

/// Refuses a disk without room for `count` checkpoints of `bytes` in the folder `dir`. A disk whose
/// free space is unknown is accepted.
pub fn fits_disk(dir: &Path, bytes: u64, count: u64) -> Result<()> {
    let Some(free) = folders::free_bytes(dir) else {
        return Ok(());
    };
    let others = if count > 1 {
        ", the last one as much"
    } else {
        ""
    };
    ensure!(
        bytes.saturating_mul(count) <= free,
        "a checkpoint of this run takes {}{others}, and {} are free on the disk of `{}` (make \
         room, or choose another `train.output_dir`)",
        memory::text(bytes.into()),
        memory::text(free.into()),
        dir.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_disk_without_room() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("absent/run");
        fits_disk(&absent, 1, 2).unwrap();
        for (count, expected) in [(1, ", and "), (2, ", the last one as much, and ")] {
            let sentence = fits_disk(&absent, u64::MAX, count).unwrap_err().to_string();
            let expected = format!("a checkpoint of this run takes 16777216.0 TiB{expected}");
            assert!(sentence.starts_with(&expected), "{sentence}");
        }
    }
}
