//! Starts a program that the system ends as soon as this process has ended, even by `kill -9`: one
//! that hangs would stay for ever.
#![allow(unsafe_code)]

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// The thread that started a program, which ends when this is dropped. The system watches this
/// thread, and not the process as a whole.
pub(super) struct Parent {
    _lives: Sender<()>,
}

/// Starts `command`. The program is ended with its parent, so drop the parent after it.
pub(super) fn start(mut command: Command) -> io::Result<(Child, Parent)> {
    ends_with_parent(&mut command);
    let (lives, ended) = channel();
    let (born, child) = channel();
    thread::Builder::new().spawn(move || {
        let _ = born.send(command.spawn());
        // Nothing is ever sent: this waits until the sender is dropped.
        let _ = ended.recv();
    })?;
    let child = child
        .recv()
        .map_err(|_| io::Error::other("the thread that starts it has ended"))??;
    Ok((child, Parent { _lives: lives }))
}

#[cfg(target_os = "linux")]
fn ends_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    use rustix::io::Errno;
    use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

    let parent = getpid();
    // SAFETY: between `fork` and `exec` the closure makes system calls alone: it takes no memory
    // and no lock.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the system was asked.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(Errno::SRCH.into())
            }
        })
    };
}

#[cfg(not(target_os = "linux"))]
fn ends_with_parent(_: &mut Command) {}
