//! Signals that ask a process to stop, or tell it of a limit.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

/// The signals that end a process, from its terminal or from whoever runs it.
const ENDS: [c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
/// The signals with which batch systems warn a job of its end, as `--signal` of Slurm and submitit
/// ask for them.
const WARNINGS: [c_int; 2] = [libc::SIGUSR1, libc::SIGUSR2];

/// True if a signal of [`WARNINGS`] has come, until it is taken.
static WARNED: AtomicBool = AtomicBool::new(false);

/// From now on a file that grows beyond `ulimit -f` gives its writer an error, instead of a signal
/// that ends the process.
pub fn survive_file_limit() {
    exchange(libc::SIGXFSZ, &plain(libc::SIG_IGN));
}

/// From now on this process goes on at all signals that ask it to stop.
pub fn ignore_stops() {
    for signal in [&ENDS[..], &WARNINGS].concat() {
        exchange(signal, &plain(libc::SIG_IGN));
    }
}

/// From now on SIGUSR1 and SIGUSR2 come as SIGTERM, and [`take_user_signal`] tells them apart. A
/// signal that is ignored stays ignored.
pub fn terminate_at_user_signals() {
    let handler: extern "C" fn(c_int) = at_warning;
    for signal in WARNINGS {
        // System calls that wait go on after the signal.
        let action = libc::sigaction {
            sa_flags: libc::SA_RESTART,
            ..plain(handler as usize)
        };
        if let Some(before) = exchange(signal, &action)
            && before.sa_sigaction == libc::SIG_IGN
        {
            exchange(signal, &before);
        }
    }
}

/// True if a user's signal has come since the last call.
pub fn take_user_signal() -> bool {
    WARNED.swap(false, Ordering::SeqCst)
}

/// The handler of [`WARNINGS`].
extern "C" fn at_warning(_: c_int) {
    WARNED.store(true, Ordering::SeqCst);
    // SAFETY: a handler may call `raise`.
    unsafe { libc::raise(libc::SIGTERM) };
}

/// Calls `set`, which sets handlers of signals. A signal that is ignored stays ignored: `nohup`
/// ignores the hang-up of the terminal for this process, and a script ignores Ctrl-C for what it
/// starts with `&`.
pub fn keeping_ignored<T>(set: impl FnOnce() -> T) -> T {
    let before = ENDS.map(|signal| (signal, exchange(signal, &plain(libc::SIG_IGN))));
    let done = set();
    for (signal, action) in before {
        if let Some(action) = action.filter(|action| action.sa_sigaction == libc::SIG_IGN) {
            exchange(signal, &action);
        }
    }
    done
}

/// An action without flags: a handler, `SIG_DFL` or `SIG_IGN`.
pub fn plain(handler: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: all zeros is a valid value of this structure of numbers and an optional pointer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action
}

/// Sets the action `new` for `signal` and returns the previous action; `None` if the system
/// refuses.
pub fn exchange(signal: c_int, new: &libc::sigaction) -> Option<libc::sigaction> {
    let mut old = plain(libc::SIG_DFL);
    // SAFETY: both pointers refer to whole structures; the system refuses invalid values.
    let done = unsafe { libc::sigaction(signal, new, &raw mut old) } == 0;
    done.then_some(old)
}
