//! Checks of a component's behaviour towards its process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use capo_plugin::PluginError;
use capo_plugin::testing::check::{Check, Subject, Verdict, failed, skipped, success, warning};
use rustix::time::{ClockId, clock_gettime};

/// The check that no thread is left behind.
pub const THREADS: &str = "threads";
/// The check that nothing is written to standard output.
pub const STDOUT_QUIET: &str = "stdout-quiet";
/// The check that measures a step.
pub const CALL_TIME: &str = "call-time";
/// Number of times that idle threads are counted after their component is dropped.
const LOOKS: u32 = 100;
/// The pause between two counts.
const PAUSE: Duration = Duration::from_millis(5);
/// Largest CPU time of such threads before they count as left behind.
const GRACE: Duration = Duration::from_millis(500);

/// The checks, in order.
pub static ALL: [Check; 3] = [
    Check::new(THREADS, "no thread is left behind", threads),
    Check::new(
        STDOUT_QUIET,
        "nothing is written to standard output",
        stdout_quiet,
    ),
    Check::new(
        CALL_TIME,
        "how much work one step on a small batch is",
        call_time,
    ),
];

/// Number of threads of this process before the checks of the current component.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// Counts the threads that do not belong to the component whose checks follow.
pub fn count_threads_from_here() {
    BEFORE.store(count_threads().unwrap_or(0), Ordering::Relaxed);
}

/// Runs two instances' whole lives, one after another, and checks for threads that remain.
fn threads(subject: &Subject<'_>) -> Verdict {
    if count_threads().is_none() {
        return skipped("this system does not list threads in `/proc/self/task`");
    }
    let before = BEFORE.load(Ordering::Relaxed);
    let first = left_by_an_instance(subject, before)?;
    let last = left_by_an_instance(subject, before)?;
    if last == 0 {
        success("none is left")
    } else if last > first {
        failed(format!(
            "threads left: {first} after one instance, {last} after two (join them in `drop`)"
        ))
    } else {
        warning(format!(
            "threads left: {last}, however many instances there were (a pool of the library)"
        ))
    }
}

/// Number of threads beyond `before` after the life of an instance.
fn left_by_an_instance(subject: &Subject<'_>, before: usize) -> Result<usize, PluginError> {
    let mut instance = subject.create()?;
    for step in 0..2 {
        instance.step(&subject.stream(step))?;
    }
    drop(instance);
    Ok(settle(before).saturating_sub(before))
}

/// Number of threads of this process; `None` if the system does not say.
fn count_threads() -> Option<usize> {
    std::fs::read_dir("/proc/self/task")
        .ok()
        .map(Iterator::count)
}

/// CPU time of this process, over all its threads; other processes do not affect it.
pub fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// Number of threads, once it has fallen to `wanted`, or once all remaining threads have been idle
/// or working for a while.
fn settle(wanted: usize) -> usize {
    let start = cpu_time();
    let mut looks = 0;
    loop {
        let now = count_threads().unwrap_or(0);
        if now <= wanted || looks == LOOKS || cpu_time().saturating_sub(start) > GRACE {
            return now;
        }
        // A thread that is about to end and waits for its turn does not count as left.
        looks = if running() > 1 { 0 } else { looks + 1 };
        std::thread::sleep(PAUSE);
    }
}

/// Number of threads that run or wait for their turn, this one included.
fn running() -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return 0;
    };
    tasks
        .flatten()
        .filter(|task| {
            let status = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            status
                .rsplit_once(") ")
                .is_some_and(|(_, rest)| rest.starts_with('R'))
        })
        .count()
}

/// Runs a whole life; the parent reads the output.
fn stdout_quiet(subject: &Subject<'_>) -> Verdict {
    let mut instance = subject.create()?;
    for step in 0..3 {
        instance.step(&subject.stream(step))?;
    }
    let state = instance.save()?;
    subject.create()?.load(&state)?;
    success("nothing was written to standard output")
}

/// Measures the CPU time of one step on a batch of usual size, the least of several runs; it never
/// fails.
fn call_time(subject: &Subject<'_>) -> Verdict {
    let mut instance = subject.create()?;
    let mut least = Duration::MAX;
    for step in 0..5 {
        let input = subject.usual(step);
        let start = cpu_time();
        instance.step(&input)?;
        least = least.min(cpu_time().saturating_sub(start));
    }
    let what = if subject.point.sees_text() {
        "16 completions"
    } else {
        "16 completions of 32 tokens"
    };
    success(format!(
        "a step is {:.3} ms of work for {what}",
        1e3 * least.as_secs_f64()
    ))
}
