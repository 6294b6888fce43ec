//! Checks of how a component behaves towards the process that it lives in, which is the check's own.

use std::sync::OnceLock;
use std::time::Duration;

use capo_plugin::testing::check::{Check, Subject, Verdict, failed, skipped, success, warning};
use capo_plugin::{PluginError, Point};
use rustix::time::{ClockId, clock_gettime};

/// The check of what is written to standard output.
pub const STDOUT_QUIET: &str = "stdout-quiet";
/// How often threads are looked at that are left after their component is gone, and do nothing.
const LOOKS: u32 = 100;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// How much work such threads may do before they count as left.
const GRACE: Duration = Duration::from_millis(500);

/// The checks, in order.
pub static ALL: [Check; 3] = [
    Check::new("threads", "no thread is left behind", threads),
    Check::new(STDOUT_QUIET, "nothing is written to standard output", stdout_quiet),
    Check::new("call-time", "how much work one step on a small batch is", call_time),
];

/// Threads of this process before the library was loaded.
static BEFORE: OnceLock<usize> = OnceLock::new();

/// Counts the threads that are no library's.
pub fn remember_threads() {
    BEFORE.get_or_init(|| count_threads().unwrap_or(0));
}

/// Two instances' lives, one after another; the threads that are left.
fn threads(subject: &Subject<'_>) -> Verdict {
    if count_threads().is_none() {
        return skipped("this system does not list threads in `/proc/self/task`");
    }
    let before = BEFORE.get().copied().unwrap_or(0);
    let left = || -> Result<usize, PluginError> {
        let mut instance = subject.create()?;
        for step in 0..2 {
            instance.step(&subject.stream(step))?;
        }
        drop(instance);
        Ok(settle(before).saturating_sub(before))
    };
    match (left()?, left()?) {
        (_, 0) => success("none is left"),
        (first, last) if last > first => {
            failed(format!("threads left: {first} after one instance, {last} after two (join them in `drop`)"))
        }
        (_, last) => {
            warning(format!("threads left: {last}, however many instances there were (a pool of the library)"))
        }
    }
}

/// Threads of this process, where the system says.
fn count_threads() -> Option<usize> {
    std::fs::read_dir("/proc/self/task").ok().map(Iterator::count)
}

/// The time that this process has worked, all its threads together: other processes do not make it longer.
pub fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// The number of threads, once it has fallen to `wanted`, or all that are left have rested or worked for a while.
fn settle(wanted: usize) -> usize {
    let (start, mut looks) = (cpu_time(), 0);
    loop {
        let now = count_threads().unwrap_or(0);
        if now <= wanted || looks == LOOKS || cpu_time().saturating_sub(start) > GRACE {
            return now;
        }
        // One that is about to end, and waits for its turn, is not left.
        looks = if running() > 1 { 0 } else { looks + 1 };
        std::thread::sleep(PAUSE);
    }
}

/// Threads that run or wait for their turn, this one among them.
fn running() -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let runs = |task: &std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
    };
    tasks.flatten().filter(runs).count()
}

/// A whole life; the parent reads what was written meanwhile.
fn stdout_quiet(subject: &Subject<'_>) -> Verdict {
    let mut instance = subject.create()?;
    for step in 0..3 {
        instance.step(&subject.stream(step))?;
    }
    let state = instance.save()?;
    subject.create()?.load(&state)?;
    success("nothing was written to standard output")
}

/// The work of one step on a batch of a usual size, the least of several. It only informs.
fn call_time(subject: &Subject<'_>) -> Verdict {
    let mut instance = subject.create()?;
    let mut least = Duration::MAX;
    for step in 0..5 {
        let input = subject.usual(step);
        let start = cpu_time();
        instance.step(&input)?;
        least = least.min(cpu_time().saturating_sub(start));
    }
    let what = if subject.point == Point::Reward { "16 completions" } else { "16 completions of 32 tokens" };
    success(format!("a step is {:.3} ms of work for {what}", 1e3 * least.as_secs_f64()))
}
