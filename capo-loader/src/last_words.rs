//! The last words of a process that ends before its time: in the middle of a plugin's call or beside all of them, by a signal, by `exit`, or because
//! a call took too long.
//!
//! A signal's handler may do little more than read atomics and write bytes. So what it needs to say lies ready: every call's name, and where
//! the run stands. These are never freed; there are a few hundred bytes of them for each [`Watchdog`](crate::watchdog::Watchdog).

use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Once, OnceLock};

use libc::{c_int, c_void, siginfo_t};

use crate::place::{Place, Words};
use crate::terminal::escape;

/// The name of the call that is running, as it stands in sentences; null between calls.
static CALL: AtomicPtr<String> = AtomicPtr::new(null_mut());
/// Where the run stands that the newest watchdog watches over.
static PLACE: AtomicPtr<Place> = AtomicPtr::new(null_mut());
/// Set once the last words are spoken.
static TOLD: AtomicBool = AtomicBool::new(false);
/// True until the program comes to its own end.
static AWAITED: AtomicBool = AtomicBool::new(false);

/// The signals of a crash, with their names and what they mean.
const SIGNALS: [(c_int, &str); 5] = [
    (libc::SIGILL, "SIGILL: an instruction that does not exist"),
    (libc::SIGABRT, "SIGABRT: an abort, as of a panic in a library that was built with `panic = \"abort\"`"),
    (libc::SIGBUS, "SIGBUS: memory that is not there"),
    (libc::SIGFPE, "SIGFPE: arithmetic that the processor refuses"),
    (libc::SIGSEGV, "SIGSEGV: memory that is not its own, or a stack that is too deep"),
];

/// Action at each of [`SIGNALS`] before this process listened: the standard library has a handler for stacks that overflow.
static BEFORE: [OnceLock<libc::sigaction>; SIGNALS.len()] = [const { OnceLock::new() }; SIGNALS.len()];

/// A call's name that outlives the process.
pub(crate) type Name = &'static String;

/// The name of calls of `method` of the `kind` `id`: a component, or a plugin.
pub(crate) fn name(kind: &str, id: &str, method: &str) -> Name {
    Box::leak(Box::new(format!("{kind} `{}`: `{method}`", escape(id))))
}

/// The call of this name begins.
pub(crate) fn enter(call: Name) {
    CALL.store(from_ref(call).cast_mut(), Ordering::SeqCst);
}

/// The call has come back.
pub(crate) fn leave() {
    CALL.store(null_mut(), Ordering::SeqCst);
}

/// Listens to crashes and to `exit` from now on, in the run that stands at `place`.
pub(crate) fn listen(place: &Arc<Place>) {
    static ONCE: Once = Once::new();
    PLACE.store(Arc::into_raw(Arc::clone(place)).cast_mut(), Ordering::SeqCst);
    ONCE.call_once(|| {
        for ((signal, _), before) in SIGNALS.iter().zip(&BEFORE) {
            if let Some(action) = exchange(*signal, &action()) {
                let _ = before.set(action);
            }
        }
        // SAFETY: `at_exit` is a function of this executable, which is there as long as the process.
        let _ = unsafe { libc::atexit(at_exit) };
        #[cfg(target_os = "linux")]
        // SAFETY: as above.
        let _ = unsafe { at_quick_exit(at_exit) };
    });
}

#[cfg(target_os = "linux")]
unsafe extern "C" {
    /// As `atexit`, for `quick_exit`; the crate of libc's functions has it not.
    fn at_quick_exit(function: extern "C" fn()) -> c_int;
}

/// Ends the process without last words: for ends that are the host's own. Exit handlers of libraries do not run: they could hang, or change
/// the exit code.
pub fn exit(code: i32) -> ! {
    TOLD.store(true, Ordering::SeqCst);
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Ends the process with a sentence because `bytes` of memory were asked for and not given: exit code 1 in a run, 2 before it. Whoever asked cannot go on,
/// and nothing here asks for any.
pub fn no_memory(bytes: usize) -> ! {
    TOLD.store(true, Ordering::SeqCst);
    Stderr.text("error: ");
    let runs = read(&PLACE).is_some_and(|place| place.tell(&mut Stderr));
    if runs {
        Stderr.text(": ");
    }
    if let Some(call) = read(&CALL) {
        Stderr.text(call);
        Stderr.text(" was running when ");
    }
    Stderr.text("there was no memory for ");
    Stderr.number(bytes as u64);
    Stderr.text(" bytes more (make the model or the batch smaller, or allow the process more, as with `ulimit -v`)\n");
    // SAFETY: ends the process without exit handlers, which may ask for memory.
    unsafe { libc::_exit(if runs { 1 } else { 2 }) }
}

/// From now on a file that grows beyond `ulimit -f` is an error of whoever writes it, and no signal that ends the process.
pub fn survive_file_limit() {
    let mut ignore = action();
    ignore.sa_sigaction = libc::SIG_IGN;
    ignore.sa_flags = 0;
    exchange(libc::SIGXFSZ, &ignore);
}

/// To be held by a program's `main`: an `exit` before this is dropped is none of its own, such as one of a plugin's thread.
pub struct End(());

impl End {
    /// From now on the program's end is its own.
    #[must_use]
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

/// Ends the process at once, after last words.
pub(crate) fn end() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(1) }
}

/// Says what `happened` to the call that is running, or what happened `beside` all calls. False where there is nothing to say of that, or
/// the last words are spoken.
pub(crate) fn tell(happened: &[&str], beside: &[&str]) -> bool {
    let call = read(&CALL);
    if (call.is_none() && beside.is_empty()) || TOLD.swap(true, Ordering::SeqCst) {
        return false;
    }
    Stderr.text("error: ");
    if read(&PLACE).is_some_and(|place| place.tell(&mut Stderr)) {
        Stderr.text(": ");
    }
    if let Some(call) = call {
        Stderr.text(call);
        Stderr.text(" ");
    }
    call.map_or(beside, |_| happened).iter().for_each(|part| Stderr.text(part));
    Stderr.text("\n");
    true
}

fn read<T>(pointer: &AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: what is stored is null or was leaked, and is shared alone.
    unsafe { pointer.load(Ordering::SeqCst).as_ref() }
}

/// The action at a signal of [`SIGNALS`].
fn action() -> libc::sigaction {
    // SAFETY: all zeros is a value of this structure of numbers and an optional pointer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = at_signal;
    action.sa_sigaction = handler as usize;
    // On the stack that the standard library has set aside, for the usual one may be used up.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    action
}

/// Does `new` at `signal` from now on; what was done before.
fn exchange(signal: c_int, new: &libc::sigaction) -> Option<libc::sigaction> {
    let mut old = action();
    // SAFETY: both point to whole structures; the system refuses what it does not like.
    let done = unsafe { libc::sigaction(signal, new, &raw mut old) } == 0;
    done.then_some(old)
}

/// Calls only what a handler may: atomics, `write`, `sigaction`, `raise`.
extern "C" fn at_signal(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    let words = SIGNALS.iter().find(|(known, _)| *known == signal).map_or("a signal", |(_, words)| words);
    let beside = [
        "the process was ended by ",
        words,
        " (no call of a component was running: a plugin's own thread, or the host)",
    ];
    tell(&["was running when the process was ended by ", words], &beside);
    // From here on a crash is for those who listened before: a second handler would not fit on the small stack of the first.
    for ((signal, _), before) in SIGNALS.iter().zip(&BEFORE) {
        if let Some(before) = before.get() {
            exchange(*signal, before);
        }
    }
    // SAFETY: the system gives a whole structure to a handler that is set with `SA_SIGINFO`.
    let is_fault = unsafe { (*info).si_code } > 0;
    if is_fault {
        // It happens again as soon as this handler is done.
        return;
    }
    // Somebody has sent it, as `abort` does: it ends the process.
    let mut default = action();
    default.sa_sigaction = libc::SIG_DFL;
    default.sa_flags = 0;
    exchange(signal, &default);
    // SAFETY: a signal is sent to the own thread, and waits until this handler is done.
    unsafe { libc::raise(signal) };
}

/// A plugin that calls `exit` ends the process, but not in silence and not as if all were well.
extern "C" fn at_exit() {
    const BESIDE: &str = "something ended the process with `exit` while no call of a component was running (a plugin's own thread may not)";
    let beside: &[&str] = if AWAITED.load(Ordering::SeqCst) { &[BESIDE] } else { &[] };
    if tell(&["ended the process with `exit` (return an error in its place)"], beside) {
        end();
    }
}

/// Standard error, without a lock or a buffer: the stack on which a handler runs is small.
struct Stderr;

impl Words for Stderr {
    fn text(&mut self, text: &str) {
        // SAFETY: the bytes are there. Bytes that cannot be written are lost.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }
}
