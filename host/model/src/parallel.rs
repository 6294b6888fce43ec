//! Parallel work: independent items with one thread each, or one work whose operations use all
//! threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use anyhow::{Result, anyhow};
use rayon::{ThreadPool, ThreadPoolBuilder, Yield};

/// Most threads that stay awake for the operations of one thread. More threads would only get into
/// each other's way.
const AWAKE: usize = 8;

/// The results of `work` on every item, in order.
///
/// Each item runs in a pool of one thread, so rayon's operations and candle's matrix products never
/// wait for another thread. On a busy machine, small products on two threads are slower than on
/// one, because each waits for the thread that was descheduled. A single item may use all threads,
/// but runs on one of them: work that arrives from a thread outside the pool puts that thread to
/// sleep at every operation.
pub(super) fn side_by_side<T: Send, R: Send>(
    items: Vec<T>,
    work: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let threads = rayon::current_num_threads().min(items.len());
    if threads <= 1 {
        return items
            .into_iter()
            .map(|item| on_all_threads(|| work(item)))
            .collect();
    }
    let results: Vec<Mutex<Option<Result<R>>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let queue = Mutex::new(items.into_iter().zip(&results));
    let drain = || {
        while let Some((item, result)) = queue.lock().ok().and_then(|mut queue| queue.next()) {
            let done = work(item);
            if let Ok(mut slot) = result.lock() {
                *slot = Some(done);
            }
        }
    };
    let pools = pools()?;
    std::thread::scope(|scope| {
        for pool in pools.iter().take(threads) {
            // If the system cannot start another thread, this thread does the work.
            if std::thread::Builder::new()
                .spawn_scoped(scope, || pool.install(drain))
                .is_err()
            {
                pool.install(drain);
            }
        }
    });
    results.into_iter().map(into_result).collect()
}

/// The result of an item, which is missing if its thread panicked.
fn into_result<R>(slot: Mutex<Option<Result<R>>>) -> Result<R> {
    match slot.into_inner() {
        Ok(Some(result)) => result,
        Ok(None) | Err(_) => Err(anyhow!("a worker thread panicked")),
    }
}

/// Runs `work` on the first of rayon's threads. The other threads stay awake for its parallel
/// operations, because a thread that falls asleep between two of them wakes 40 to 70 µs late. They
/// yield to whatever else wants to run.
///
/// `work` always runs on the same thread, because the allocator gives memory that another thread
/// frees back to the thread that allocated it.
pub(super) fn on_all_threads<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    /// Lets the other threads go when it is dropped, also after a panic.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    let work = Mutex::new(Some(work));
    let results = rayon::broadcast(|thread| {
        if thread.index() == 0 {
            let _done = Done(&done);
            let work = work.lock().ok()?.take()?;
            return Some(work());
        }
        while thread.index() < AWAKE && !done.load(Ordering::Relaxed) {
            if rayon::yield_now() != Some(Yield::Executed) {
                std::thread::yield_now();
            }
        }
        None
    });
    results
        .into_iter()
        .flatten()
        .next()
        .expect("the first thread has run the work")
}

/// Pools of one thread each, as many as rayon's threads.
fn pools() -> Result<&'static [ThreadPool]> {
    static POOLS: OnceLock<Vec<ThreadPool>> = OnceLock::new();
    if let Some(pools) = POOLS.get() {
        return Ok(pools);
    }
    let pools = (0..rayon::current_num_threads())
        .map(|_| ThreadPoolBuilder::new().num_threads(1).build())
        .collect::<Result<_, _>>()?;
    Ok(POOLS.get_or_init(|| pools))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_results_in_order_or_the_first_error() {
        let square = |x: u64| Ok(x * x);
        assert_eq!(
            side_by_side((0..50).collect(), square).unwrap(),
            (0..50).map(|x| x * x).collect::<Vec<_>>()
        );
        let picky = |x: u64| {
            if x % 10 == 7 {
                Err(anyhow!("{x} is refused"))
            } else {
                Ok(x)
            }
        };
        assert_eq!(
            side_by_side((0..50).collect(), picky)
                .unwrap_err()
                .to_string(),
            "7 is refused"
        );
        assert!(side_by_side(Vec::<u64>::new(), square).unwrap().is_empty());
    }

    #[test]
    fn returns_the_result_of_work_and_passes_on_its_panic() {
        use rayon::prelude::*;

        let pool = ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let sum =
            |count: u64| on_all_threads(|| (0..count).into_par_iter().map(|x| x % 7).sum::<u64>());
        for count in 0..300 {
            assert_eq!(
                pool.install(|| sum(count)),
                (0..count).map(|x| x % 7).sum::<u64>()
            );
        }
        let panics = || on_all_threads(|| (0..9_u32).into_par_iter().for_each(|x| assert!(x < 8)));
        assert!(pool.install(|| std::panic::catch_unwind(panics)).is_err());
    }

    #[test]
    fn gives_each_item_one_thread() {
        let threads = side_by_side(vec![(); 8], |()| Ok(rayon::current_num_threads())).unwrap();
        let all = rayon::current_num_threads();
        assert!(threads.iter().all(|count| *count == 1 || all == 1));
    }
}
