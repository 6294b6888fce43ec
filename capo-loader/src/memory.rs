//! How much memory there is, so that a size which cannot be is refused before it is tried.

use std::fs;
use std::path::Path;

/// Bytes that this process may still take, swap included: what the machine has free, or the limit of its control group. None where
/// the system does not say.
#[must_use]
pub fn available() -> Option<u64> {
    // Files of the kernel, not of a user: none of them waits.
    let free = free(&fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(limit().map_or(free, |limit| free.min(limit)))
}

/// The most memory that this process has had, bytes; none where the system does not say.
#[must_use]
pub fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// `MemAvailable` and `SwapFree` of `/proc/meminfo`, bytes.
fn free(meminfo: &str) -> Option<u64> {
    let entry = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    entry("MemAvailable")?.checked_add(entry("SwapFree").unwrap_or(0))
}

/// The limit of this process's control group, version 2 or 1, bytes.
fn limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let files = [root.join(own).join("memory.max"), root.join("memory.max"), root.join("memory/memory.limit_in_bytes")];
    files.iter().find_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
}

/// Bytes as people read them.
#[must_use]
pub fn text(bytes: u128) -> String {
    let (unit, name) = [(1_u128 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit)
        .unwrap_or((1, "bytes"));
    // Tenths, rounded up: what needs more than there is does not read as the same.
    let tenths = bytes.saturating_mul(10).div_ceil(unit);
    if unit == 1 { format!("{bytes} {name}") } else { format!("{}.{} {name}", tenths / 10, tenths % 10) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says() {
        let meminfo = "MemTotal:       16000000 kB\nMemAvailable:    1000 kB\nSwapFree:          24 kB\n";
        assert_eq!(free(meminfo), Some(1024 * 1024));
        assert_eq!(free("MemAvailable:    1000 kB\n"), Some(1000 * 1024));
        assert_eq!(free("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn sizes_as_people_read_them() {
        assert_eq!(text(12), "12 bytes");
        assert_eq!(text(1536), "1.5 KiB");
        assert_eq!(text((4 << 30) + 1), "4.1 GiB");
        assert_eq!(text(1 << 62), "4194304.0 TiB");
    }
}
