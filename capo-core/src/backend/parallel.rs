//! Work on several threads that exist only for its duration, so that no thread remains in the
//! process.
//!
//! The result of a task depends neither on the number of threads nor on the thread that runs it.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Number of elements below which starting threads costs more than it saves.
const WORTH_A_THREAD: usize = 1 << 21;

/// Number of threads, of at most `threads`, that `elements` multiplications are worth.
pub(crate) fn threads_for(elements: usize, threads: usize) -> usize {
    threads.min(elements / WORTH_A_THREAD).max(1)
}

/// Runs `work` on every task, in any order.
pub(crate) fn for_each<T: Send>(threads: usize, tasks: Vec<T>, work: impl Fn(T) + Sync) {
    if threads <= 1 || tasks.len() <= 1 {
        return tasks.into_iter().for_each(work);
    }
    let others = threads.min(tasks.len()) - 1;
    let queue = Mutex::new(tasks.into_iter());
    let drain = || {
        while let Some(task) = next(&queue) {
            work(task);
        }
    };
    thread::scope(|scope| {
        for _ in 0..others {
            // If the system has no more threads, this one does all the work.
            if thread::Builder::new().spawn_scoped(scope, drain).is_err() {
                break;
            }
        }
        drain();
    });
}

fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// Runs `work` on consecutive parts of `0..length`, of at most `most` each; returns the results in
/// order. `elements` is the total amount of work.
pub(crate) fn map_parts<T: Send>(
    threads: usize,
    length: usize,
    most: usize,
    elements: usize,
    work: impl Fn(Range<usize>) -> T + Sync,
) -> Vec<T> {
    let threads = threads_for(elements, threads);
    let parts = if threads == 1 { 1 } else { 4 * threads };
    let part = length.div_ceil(parts).min(most).max(1);
    let parts: Vec<_> = (0..length)
        .step_by(part)
        .map(|start| start..(start + part).min(length))
        .collect();
    let mut results: Vec<Option<T>> = parts.iter().map(|_| None).collect();
    for_each(
        threads,
        parts.into_iter().zip(&mut results).collect(),
        |(part, result)| *result = Some(work(part)),
    );
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_in_order_whatever_the_threads() {
        for threads in [1, 2, 3, 7] {
            for length in [0, 1, 5, 1000] {
                for most in [usize::MAX, 3] {
                    let parts = map_parts(threads, length, most, usize::MAX, |part| {
                        part.collect::<Vec<_>>()
                    });
                    assert_eq!(
                        parts.concat(),
                        (0..length).collect::<Vec<_>>(),
                        "{threads} threads"
                    );
                    assert!(parts.iter().all(|part| part.len() <= most));
                }
            }
        }
    }
}
