//! Memory of this machine and process, so that an allocation that cannot succeed is refused in advance.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Bytes that this process may still allocate, swap included: the machine's free memory, or less if the control group or `ulimit -v` leaves
/// less. `None` where the system does not say.
pub fn available() -> Option<u64> {
    // A file of the kernel, not of a user: reading it does not block.
    let free = free(&fs::read_to_string("/proc/meminfo").ok()?)?;
    Some([group(), address_space()].into_iter().flatten().fold(free, u64::min))
}

/// The texts of `needed` bytes and of those that may still be allocated, if these are fewer.
pub fn lacking(needed: u128) -> Option<[String; 2]> {
    let free = available().map(u128::from).filter(|free| needed > *free)?;
    Some([needed, free].map(text))
}

/// Peak memory of this process in bytes; `None` where the system does not say.
pub fn peak() -> Option<u64> {
    status("VmHWM:")
}

/// Current memory of this process in bytes; `None` where the system does not say.
pub fn resident() -> Option<u64> {
    status("VmRSS:")
}

/// The size called `name` in the kernel's status of this process, in bytes.
fn status(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of address space that `ulimit -v` leaves; reserved addresses count as used. `None` without such a limit.
pub fn addresses() -> Option<u64> {
    Some(getrlimit(Resource::As).current?.saturating_sub(status("VmSize:").unwrap_or(0)))
}

/// Bytes that `ulimit -v` leaves. Reserved addresses that are not in use count as free, for the allocator uses them first.
fn address_space() -> Option<u64> {
    Some(getrlimit(Resource::As).current?.saturating_sub(resident().unwrap_or(0)))
}

/// Sum of `MemAvailable` and `SwapFree` of `/proc/meminfo`, in bytes.
fn free(meminfo: &str) -> Option<u64> {
    let entry = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    entry("MemAvailable")?.checked_add(entry("SwapFree").unwrap_or(0))
}

/// Bytes that the limit of this process's control group leaves, for version 2 or 1.
fn group() -> Option<u64> {
    const NEW: [&str; 3] = ["memory.max", "memory.current", "inactive_file"];
    const OLD: [&str; 3] = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"];
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let folders = [(root.join(own), NEW), (root.to_owned(), NEW), (root.join("memory"), OLD)];
    folders.iter().find_map(|(folder, names)| left(folder, *names))
}

/// Limit less usage, from the files of a control group. File pages not used lately do not count as usage, for the kernel frees them.
fn left(folder: &Path, [limit, usage, given_up]: [&str; 3]) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let cached = |stat: String| stat.lines().find_map(|line| line.strip_prefix(given_up)?.trim().parse::<u64>().ok());
    let cached = read("memory.stat").and_then(cached).unwrap_or(0);
    Some(number(limit)?.saturating_sub(number(usage).unwrap_or(0).saturating_sub(cached)))
}

/// Formats a number of bytes for people.
pub fn text(bytes: u128) -> String {
    let (unit, name) = [(1_u128 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit)
        .unwrap_or((1, "bytes"));
    // Rounds tenths up, so that a size slightly above the available memory does not read as equal to it.
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
    fn what_a_control_group_leaves() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["memory.max", "memory.current", "inactive_file"];
        for (limit, expected) in [("max", None), ("1000", Some(400)), ("100", Some(0))] {
            let files =
                [(names[0], limit), (names[1], "700"), ("memory.stat", "anon 600\ninactive_file 100\nactive_file 5\n")];
            files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
            assert_eq!(left(folder.path(), names), expected, "{limit}");
        }
    }

    #[test]
    fn sizes_as_people_read_them() {
        assert_eq!(text(12), "12 bytes");
        assert_eq!(text(1536), "1.5 KiB");
        assert_eq!(text((4 << 30) + 1), "4.1 GiB");
        assert_eq!(text(1 << 62), "4194304.0 TiB");
    }
}
