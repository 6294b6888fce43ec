//! Memory of this machine and process, so that an allocation that cannot succeed is refused in
//! advance.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};

use rustix::process::{Resource, getrlimit};

/// Bytes that this process may still allocate, swap included: the machine's free memory, or less if
/// the control group or `ulimit -v` leaves less. `None` where the system does not say.
pub fn available() -> Option<u64> {
    // A file of the kernel, not of a user: reading it does not block.
    let free = free(&fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(
        [group(), address_space()]
            .into_iter()
            .flatten()
            .fold(free, u64::min),
    )
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
    line.split_whitespace()
        .next()?
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// Bytes of address space that `ulimit -v` leaves; reserved addresses count as used. `None` without
/// such a limit.
pub fn addresses() -> Option<u64> {
    Some(
        getrlimit(Resource::As)
            .current?
            .saturating_sub(status("VmSize:").unwrap_or(0)),
    )
}

/// Bytes that `ulimit -v` leaves. Reserved addresses that are not in use count as free, for the
/// allocator uses them first.
fn address_space() -> Option<u64> {
    Some(
        getrlimit(Resource::As)
            .current?
            .saturating_sub(resident().unwrap_or(0)),
    )
}

/// Sum of `MemAvailable` and `SwapFree` of `/proc/meminfo`, in bytes.
fn free(meminfo: &str) -> Option<u64> {
    let swap = entry(meminfo, "SwapFree").unwrap_or(0);
    entry(meminfo, "MemAvailable")?.checked_add(swap)
}

/// The entry `name` of `/proc/meminfo`, in bytes.
fn entry(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()?
        .checked_mul(1024)
}

/// Bytes that the limits of this process's control group and of the groups above it leave, for
/// version 2 or 1.
fn group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    tightest(Path::new("/sys/fs/cgroup"), &groups)
}

/// The least that a control group leaves: the process's own, or one above it, whose limit covers
/// all groups within. `groups` is the text of `/proc/self/cgroup`, and `root` the folder of all
/// groups.
fn tightest(root: &Path, groups: &str) -> Option<u64> {
    // The first version has a hierarchy of its own for memory.
    let version2 = own_path(groups, |controllers| controllers.is_empty());
    let version1 = own_path(groups, |controllers| {
        controllers.split(',').any(|name| name == "memory")
    });
    let lefts2 = ancestors(root.to_owned(), version2, &VERSION2);
    let lefts1 = ancestors(root.join("memory"), version1, &VERSION1);
    lefts2.chain(lefts1).min()
}

/// Names of the files of a control group.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Entry of `memory.stat` with the file pages that the kernel gives up first.
    given_up: &'static str,
}

const VERSION2: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    given_up: "inactive_file",
};
const VERSION1: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    given_up: "total_inactive_file",
};

/// The path of this process's group in the hierarchy with the wanted controllers; empty without
/// one.
fn own_path(groups: &str, is_wanted: impl Fn(&str) -> bool) -> &str {
    groups
        .lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(":/"))
        .find(|(controllers, _)| is_wanted(controllers))
        .map_or("", |(_, path)| path)
}

/// What the group `own` and the groups above it leave. The last one is the root itself: in a
/// container the path may be the machine's, of which only the root exists here.
fn ancestors<'a>(
    root: PathBuf,
    own: &'a str,
    names: &'a Names,
) -> impl Iterator<Item = u64> + use<'a> {
    Path::new(own)
        .ancestors()
        .filter_map(move |path| left(&root.join(path), names))
}

/// Limit less usage, from the files of a control group. File pages not used lately do not count as
/// usage, for the kernel frees them.
fn left(folder: &Path, names: &Names) -> Option<u64> {
    let limit = number(&folder.join(names.limit))?;
    let usage = number(&folder.join(names.usage)).unwrap_or(0);
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let given_up = stat
        .lines()
        .find_map(|line| line.strip_prefix(names.given_up)?.trim().parse().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(usage.saturating_sub(given_up)))
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The other processes on the machine's GPUs, each with its name and its memory, as the rest of a
/// sentence; empty where nobody lists them.
pub fn gpu_processes() -> String {
    others(&listed().unwrap_or_default(), std::process::id())
}

/// Output of `nvidia-smi` about the processes on the machine's GPUs; `None` if the program is
/// missing or takes more than five seconds.
fn listed() -> Option<String> {
    let (said, heard) = mpsc::channel();
    let mut program = Command::new("nvidia-smi");
    program.args([
        "--query-compute-apps=pid,process_name,used_memory",
        "--format=csv,noheader",
    ]);
    thread::Builder::new()
        .spawn(move || said.send(program.output()))
        .ok()?;
    let output = heard.recv_timeout(Duration::from_secs(5)).ok()?.ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The processes of a listing besides `own`.
fn others(listing: &str, own: u32) -> String {
    let mut others = String::new();
    for line in listing.lines() {
        if let [pid, name, memory] = line.split(", ").collect::<Vec<_>>()[..]
            && pid != own.to_string()
        {
            others += &format!("; process {pid} (`{name}`) has {memory} of a GPU here");
        }
    }
    others
}

/// Formats a number of bytes for people.
pub fn text(bytes: u128) -> String {
    let (unit, name) = [
        (1_u128 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ]
    .into_iter()
    .find(|(unit, _)| bytes >= *unit)
    .unwrap_or((1, "bytes"));
    // Rounds tenths up, so that a size slightly above the available memory does not read as equal
    // to it.
    let tenths = bytes.saturating_mul(10).div_ceil(unit);
    if unit == 1 {
        format!("{bytes} {name}")
    } else {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_other_processes() {
        let listing =
            "17, /usr/bin/host, 900 MiB\n4242, /usr/bin/python3, 30123 MiB\nno line of it\n";
        assert_eq!(
            others(listing, 17),
            "; process 4242 (`/usr/bin/python3`) has 30123 MiB of a GPU here"
        );
        assert_eq!(others("", 17), "");
    }

    #[test]
    fn reads_free_memory_from_meminfo() {
        let meminfo =
            "MemTotal:       16000000 kB\nMemAvailable:    1000 kB\nSwapFree:          24 kB\n";
        assert_eq!(free(meminfo), Some(1024 * 1024));
        assert_eq!(free("MemAvailable:    1000 kB\n"), Some(1000 * 1024));
        assert_eq!(free("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn finds_the_tightest_control_group() {
        const NEW: [&str; 2] = ["memory.max", "memory.current"];
        const OLD: [&str; 2] = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
        let job = "0::/slurm/job/step\n";
        // Limits of folders, of which each uses 700 bytes with 100 of files that the kernel gives
        // up.
        let cases = [
            (NEW, &[][..], job, None),
            (NEW, &[("", "1000")], "0::/\n", Some(400)),
            (NEW, &[("slurm/job/step", "100")], job, Some(0)),
            (
                NEW,
                &[("slurm/job/step", "max"), ("slurm", "900")],
                job,
                Some(300),
            ),
            (
                NEW,
                &[
                    ("slurm/job/step", "1000"),
                    ("slurm/job", "800"),
                    ("slurm", "900"),
                ],
                job,
                Some(200),
            ),
            (NEW, &[("other", "800"), ("", "1000")], job, Some(400)),
            (
                OLD,
                &[("memory/a/b", "9223372036854771712"), ("memory/a", "800")],
                "5:cpu:/z\n4:hugetlb,memory:/a/b\n0::/x\n",
                Some(200),
            ),
            (
                OLD,
                &[("memory", "800")],
                "4:memory:/machine/docker\n",
                Some(200),
            ),
        ];
        for (files, limits, groups, expected) in cases {
            let root = tempfile::tempdir().unwrap();
            for (folder, limit) in limits {
                let folder = root.path().join(folder);
                fs::create_dir_all(&folder).unwrap();
                let stat = "anon 600\ninactive_file 100\ntotal_inactive_file 100\nactive_file 5\n";
                let texts = [(files[0], *limit), (files[1], "700"), ("memory.stat", stat)];
                texts
                    .iter()
                    .for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
            }
            assert_eq!(
                tightest(root.path(), groups),
                expected,
                "{limits:?} {groups}"
            );
        }
    }

    #[test]
    fn prints_sizes() {
        assert_eq!(text(12), "12 bytes");
        assert_eq!(text(1536), "1.5 KiB");
        assert_eq!(text((4 << 30) + 1), "4.1 GiB");
        assert_eq!(text(1 << 62), "4194304.0 TiB");
    }
}
