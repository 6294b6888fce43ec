//! The last message of a process that ends early: by a signal, by `exit`, or because a call took
//! too long. This may happen during a call or between calls. Without it a plugin that aborts ends a
//! run without a word about who did, and one that calls `exit(0)` ends it as if it were finished.
//!
//! A signal handler may do little more than read atomics and write bytes. So the name of a call and
//! the progress of the run are prepared before it. They are never freed; each
//! [`Watchdog`](crate::watchdog::Watchdog) leaks a few hundred bytes.

use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Once, OnceLock};

use capo_system::signals::{exchange, plain};
use capo_system::terminal::escape;
use libc::{c_int, c_void, siginfo_t};

use crate::place::{Place, Words};

/// Name of the running call, as messages show it; null between calls.
static CALL: AtomicPtr<String> = AtomicPtr::new(null_mut());
/// Progress of the run that the newest watchdog belongs to.
static PLACE: AtomicPtr<Place> = AtomicPtr::new(null_mut());
/// True once the last message is written.
static TOLD: AtomicBool = AtomicBool::new(false);
/// True until the program ends by its own decision.
static AWAITED: AtomicBool = AtomicBool::new(false);

/// The signals of a crash, with their names and meanings.
const SIGNALS: [(c_int, &str); 5] = [
    (libc::SIGILL, "SIGILL: an instruction that does not exist"),
    (
        libc::SIGABRT,
        "SIGABRT: an abort, as of a panic in a library that was built with `panic = \"abort\"`",
    ),
    (libc::SIGBUS, "SIGBUS: memory that is not there"),
    (
        libc::SIGFPE,
        "SIGFPE: arithmetic that the processor refuses",
    ),
    (
        libc::SIGSEGV,
        "SIGSEGV: memory that is not its own, or a stack that is too deep",
    ),
];

/// Action at each of [`SIGNALS`] before this process set its own: the standard library has a
/// handler for stack overflow.
static BEFORE: [OnceLock<libc::sigaction>; SIGNALS.len()] =
    [const { OnceLock::new() }; SIGNALS.len()];

/// A call's name that lives as long as the process.
pub(crate) type Name = &'static String;

/// Name of calls of `method` of `id`, which is a component or a plugin as `kind` says.
pub(crate) fn name(kind: &str, id: &str, method: &str) -> Name {
    Box::leak(Box::new(format!("{kind} `{}`: `{method}`", escape(id))))
}

pub(crate) fn enter(call: Name) {
    CALL.store(from_ref(call).cast_mut(), Ordering::SeqCst);
}

pub(crate) fn leave() {
    CALL.store(null_mut(), Ordering::SeqCst);
}

/// From now on, handles crashes and `exit` for the run whose progress is `place`.
pub(crate) fn listen(place: &Arc<Place>) {
    static ONCE: Once = Once::new();
    PLACE.store(
        Arc::into_raw(Arc::clone(place)).cast_mut(),
        Ordering::SeqCst,
    );
    ONCE.call_once(|| {
        for ((signal, _), before) in SIGNALS.iter().zip(&BEFORE) {
            if let Some(action) = exchange(*signal, &action()) {
                let _ = before.set(action);
            }
        }
        // SAFETY: `at_exit` is a function of this executable, which stays loaded as long as the
        // process lives.
        let _ = unsafe { libc::atexit(at_exit) };
    });
}

/// Ends the process without a last message, by the host's own decision. Exit handlers of libraries
/// do not run: they could hang or change the exit code.
pub fn exit(code: i32) -> ! {
    TOLD.store(true, Ordering::SeqCst);
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Ends the process with a message because an allocation of `bytes` bytes failed. The exit code is
/// 1 in a run and 2 before it. The caller cannot go on; this function allocates nothing.
pub fn no_memory(bytes: usize) -> ! {
    TOLD.store(true, Ordering::SeqCst);
    let runs = begin();
    if let Some(call) = read(&CALL) {
        Stderr.text(call);
        Stderr.text(" was running when ");
    }
    Stderr.text("there was no memory for ");
    Stderr.number(bytes as u64);
    Stderr.text(" bytes more (make the model or the batch smaller, ");
    Stderr.text("or allow the process more, as with `ulimit -v`)\n");
    // SAFETY: ends the process without exit handlers, which may ask for memory.
    unsafe { libc::_exit(if runs { 1 } else { 2 }) }
}

/// A guard that a program's `main` holds. An `exit` before it is dropped is not the program's own:
/// it may come from a plugin's thread.
pub struct End(());

impl End {
    /// Makes the guard; from now on any other end of the process is reported.
    pub fn awaited() -> Self {
        AWAITED.store(true, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        AWAITED.store(false, Ordering::SeqCst);
    }
}

/// Ends the process at once, after its last message.
pub(crate) fn end() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(1) }
}

/// Writes what `happened` to the running call, or, between calls, what happened `beside` all calls.
/// Returns false if there is no message for that, or the last message was written before.
pub(crate) fn tell(happened: &[&str], beside: &[&str]) -> bool {
    let call = read(&CALL);
    if (call.is_none() && beside.is_empty()) || TOLD.swap(true, Ordering::SeqCst) {
        return false;
    }
    begin();
    if let Some(call) = call {
        Stderr.text(call);
        Stderr.text(" ");
    }
    call.map_or(beside, |_| happened)
        .iter()
        .for_each(|part| Stderr.text(part));
    Stderr.text("\n");
    true
}

/// Writes the beginning of a last message. Returns true in a run.
fn begin() -> bool {
    Stderr.text("error: ");
    let runs = read(&PLACE).is_some_and(|place| place.tell(&mut Stderr));
    if runs {
        Stderr.text(": ");
    }
    runs
}

fn read<T>(pointer: &AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: the stored pointer is null or was leaked, and only shared references to it exist.
    unsafe { pointer.load(Ordering::SeqCst).as_ref() }
}

/// The action that this process sets for each signal of [`SIGNALS`].
fn action() -> libc::sigaction {
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = at_signal;
    libc::sigaction {
        // The alternate stack that the standard library has set up: the usual one may have
        // overflowed.
        sa_flags: libc::SA_SIGINFO | libc::SA_ONSTACK,
        ..plain(handler as usize)
    }
}

/// The signal handler. It calls only functions that a handler may call: atomics, `write`,
/// `sigaction`, `raise`.
extern "C" fn at_signal(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    let words = SIGNALS
        .iter()
        .find(|(known, _)| *known == signal)
        .map_or("a signal", |(_, words)| words);
    let beside = [
        "the process was ended by ",
        words,
        " (no call of a component was running: a plugin's own thread, or the host)",
    ];
    tell(
        &["was running when the process was ended by ", words],
        &beside,
    );
    // From here on a crash goes to the earlier handlers: a second handler would not fit on the
    // small stack of the first.
    for ((signal, _), before) in SIGNALS.iter().zip(&BEFORE) {
        if let Some(before) = before.get() {
            exchange(*signal, before);
        }
    }
    // SAFETY: the system passes a whole structure to a handler that is set with `SA_SIGINFO`.
    let is_fault = unsafe { (*info).si_code } > 0;
    if is_fault {
        // The fault occurs again as soon as this handler returns.
        return;
    }
    // A process sent the signal, as `abort` does. Its default action ends this process.
    exchange(signal, &plain(libc::SIG_DFL));
    // SAFETY: the signal goes to this thread, and waits until this handler returns.
    unsafe { libc::raise(signal) };
}

/// Exit handler. A plugin that calls `exit` still ends the process, but with a message and an exit
/// code of failure.
extern "C" fn at_exit() {
    const BESIDE: &str = "something ended the process with `exit` while no call of a component \
                          was running (a plugin's own thread may not)";
    let beside: &[&str] = if AWAITED.load(Ordering::SeqCst) {
        &[BESIDE]
    } else {
        &[]
    };
    if tell(
        &["ended the process with `exit` (return an error in its place)"],
        beside,
    ) {
        end();
    }
}

/// Standard error without a lock or a buffer: the stack on which a handler runs is small.
struct Stderr;

impl Words for Stderr {
    fn text(&mut self, text: &str) {
        // SAFETY: the pointer and the length describe `text`. Bytes that cannot be written are
        // lost.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}
