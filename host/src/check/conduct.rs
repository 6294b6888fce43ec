//! Checks of how a component behaves towards the process that it lives in.

use std::time::Duration;

use capo_plugin::testing::{Fixture, RolloutFixture};
use capo_plugin::{Inputs, Point};
use rustix::time::{ClockId, clock_gettime};

use super::input::Input;
use super::instance::is_panic;
use super::outcome::{Outcome, Verdict};
use super::subject::Subject;

/// How often threads are looked at that are left after their component is gone, and do nothing.
const LOOKS: u32 = 100;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// How much work such threads may do before they count as left.
const GRACE: Duration = Duration::from_millis(500);

/// Calls that no host makes: without completions, with columns that are no JSON; without tokens, or an input that was asked
/// for.
fn odd_calls(subject: &Subject<'_>, asked: Inputs) -> Vec<(String, Input, Inputs)> {
    if subject.point == Point::Reward {
        let empty = Input::Rollout(RolloutFixture::new(&[]));
        let garbled = Input::Rollout(RolloutFixture::new(&["4", "5"]).columns(&["{\"answer\": ", "no JSON"]));
        return vec![
            ("on a rollout without completions".to_owned(), empty, asked),
            ("on columns that are no JSON".to_owned(), garbled, asked),
        ];
    }
    let mut calls = vec![("on a batch without tokens".to_owned(), Fixture::new(2, 0).into(), asked)];
    for flag in (0..Inputs::KNOWN.0.count_ones()).map(|bit| Inputs(1 << bit)).filter(|flag| asked.contains(*flag)) {
        let what = format!("without input {:#x}, which it asked for", flag.0);
        calls.push((what, subject.stream(0), Inputs(asked.0 & !flag.0)));
    }
    calls
}

/// Whether a panic in calls that no host makes is contained.
pub fn panics_contained(subject: &Subject<'_>) -> Verdict {
    let asked = subject.create()?.inputs();
    for (what, input, inputs) in odd_calls(subject, asked) {
        let mut instance = subject.create()?;
        let Err(error) = instance.step_with(&input, inputs).map(drop) else { continue };
        if is_panic(&error) {
            if instance.step(&subject.stream(0)).is_ok() {
                return Ok(Outcome::failed(format!(
                    "after a panic {what} the instance goes on as if nothing had happened"
                )));
            }
            return Ok(Outcome::warning(format!("{what}: {error} (contained; return an error)")));
        }
    }
    // Its last act is to be dropped, where a panic has no answer; the parent reads of it.
    Ok(Outcome::success("calls that no host makes do not make it panic"))
}

/// Three instances' lives, one after another; the threads that are left.
pub fn threads(subject: &Subject<'_>) -> Verdict {
    let Some(_) = count_threads() else {
        return Ok(Outcome::skipped("this system does not list threads in `/proc/self/task`"));
    };
    let mut left = Vec::new();
    for _ in 0..2 {
        let mut instance = subject.create()?;
        for step in 0..2 {
            instance.step(&subject.stream(step))?;
        }
        drop(instance);
        left.push(settle(subject.threads).saturating_sub(subject.threads));
    }
    Ok(match left[..] {
        [_, 0] => Outcome::success("none is left"),
        [first, last] if last > first => {
            Outcome::failed(format!("threads left: {first} after one instance, {last} after two (join them in `drop`)"))
        }
        [.., last] => {
            Outcome::warning(format!("threads left: {last}, however many instances there were (a pool of the library)"))
        }
        [] => Outcome::skipped("nothing was counted"),
    })
}

/// Threads of this process, where the system says.
pub fn count_threads() -> Option<usize> {
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
pub fn stdout_quiet(subject: &Subject<'_>) -> Verdict {
    let mut instance = subject.create()?;
    for step in 0..3 {
        instance.step(&subject.stream(step))?;
    }
    let state = instance.save()?;
    subject.create()?.load(&state)?;
    Ok(Outcome::success("nothing was written to standard output"))
}

/// The work of one step on a batch of a usual size, the least of several. It only informs.
pub fn call_time(subject: &Subject<'_>) -> Verdict {
    let mut instance = subject.create()?;
    let mut least = Duration::MAX;
    for step in 0..5 {
        let input = subject.usual(step);
        let start = cpu_time();
        instance.step(&input)?;
        least = least.min(cpu_time().saturating_sub(start));
    }
    let what = if subject.point == Point::Reward { "16 completions" } else { "16 completions of 32 tokens" };
    Ok(Outcome::success(format!("a step is {:.3} ms of work for {what}", 1e3 * least.as_secs_f64())))
}
