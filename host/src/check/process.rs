//! The process that makes the checks of a library: it gets a task, answers, and gets the next. This
//! is the parent's side, with a time limit for each answer.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::task::{Reply, Setup, Task};

/// Number of the signal of an abort.
const ABORT: i32 = 6;
/// Largest part of a check's output that is kept, in bytes.
const MOST_OUTPUT: usize = 64 << 10;
/// Longest time between two looks whether the process is still there: a process of its own may hold
/// its socket open.
const LOOK: Duration = Duration::from_millis(50);
/// Longest time for reading the rest of the output, after an answer.
const REST: Duration = Duration::from_secs(1);

/// The process of a library. It is ended when this is dropped.
pub struct Worker {
    child: Child,
    socket: UnixStream,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// What has come through the socket and is not a whole line.
    unread: Vec<u8>,
}

/// What became of a task.
pub struct Answer {
    pub end: End,
    /// Number of the random case that ran last.
    pub case: Option<u64>,
    /// Beginning of what the process wrote to standard output meanwhile.
    pub stdout: String,
    /// Beginning of what it wrote to standard error.
    pub stderr: String,
    /// Duration in seconds.
    pub seconds: f64,
}

pub enum End {
    Reply(Reply),
    /// The process ended before it answered.
    Exit(ExitStatus),
    /// There was no answer within the time limit.
    Timeout,
}

/// The parts of an answer while it is awaited.
#[derive(Default)]
struct Awaited {
    case: Option<u64>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Worker {
    /// Starts a process that loads a library.
    pub fn start(setup: &Setup) -> Result<Self> {
        let (socket, theirs) = UnixStream::pair().context("cannot make a socket")?;
        let program = std::env::current_exe().context("this executable has no path")?;
        let mut child = Command::new(program)
            .args(["check", "--work"])
            .arg(serde_json::to_string(setup)?)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a process for checks")?;
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        Ok(Self {
            child,
            socket,
            stdout,
            stderr,
            unread: Vec::new(),
        })
    }

    /// Passes a task to the process and waits at most `limit` for the answer, and for each random
    /// case before it.
    pub fn ask(&mut self, task: &Task, limit: Duration) -> Result<Answer> {
        let begun = Instant::now();
        let line = serde_json::to_string(task)? + "\n";
        // If the process has ended, that is the answer, which comes below.
        let _ = self.socket.write_all(line.as_bytes());
        let mut awaited = Awaited::default();
        let end = self.end(limit, &mut awaited)?;
        // The process wrote its output before it answered, so that all of it is there. A thread
        // that it left behind may write on for ever.
        let answered = Instant::now();
        while answered.elapsed() < REST && self.listen(Duration::ZERO, &mut awaited)? {}
        Ok(Answer {
            end,
            case: awaited.case,
            stdout: String::from_utf8_lossy(&awaited.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&awaited.stderr).into_owned(),
            seconds: begun.elapsed().as_secs_f64(),
        })
    }

    fn end(&mut self, limit: Duration, awaited: &mut Awaited) -> Result<End> {
        let mut begun = Instant::now();
        loop {
            let exit = self.child.try_wait().context("cannot wait for a check")?;
            let left = limit.saturating_sub(begun.elapsed());
            let wait = if exit.is_some() { Duration::ZERO } else { LOOK };
            let heard = self.listen(wait.min(left), awaited)?;
            while let Some(reply) = self.reply() {
                match reply {
                    Reply::Case(case) => {
                        awaited.case = Some(case);
                        begun = Instant::now();
                    }
                    reply => return Ok(End::Reply(reply)),
                }
            }
            match exit {
                Some(exit) if !heard => return Ok(End::Exit(exit)),
                None if left.is_zero() => return Ok(End::Timeout),
                _ => {}
            }
        }
    }

    /// The next whole line of the socket, as a reply.
    fn reply(&mut self) -> Option<Reply> {
        let end = self.unread.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.unread.drain(..=end).collect();
        serde_json::from_slice(&line).ok()
    }

    /// Reads what the process has written, for which it waits at most so long. Returns false if
    /// there is nothing.
    fn listen(&mut self, wait: Duration, awaited: &mut Awaited) -> Result<bool> {
        let mut piece = [0; 1 << 13];
        let mut heard = false;
        if is_ready(&self.socket, Duration::ZERO)? {
            let read = self.socket.read(&mut piece).unwrap_or(0);
            self.unread.extend_from_slice(&piece[..read]);
            heard |= read > 0;
        }
        heard |= take(&mut self.stdout, &mut awaited.stdout, &mut piece)?;
        heard |= take(&mut self.stderr, &mut awaited.stderr, &mut piece)?;
        if !heard && !wait.is_zero() {
            self.wait_for_any(wait)?;
        }
        Ok(heard)
    }

    /// Waits until the process has written something, or has closed everything.
    fn wait_for_any(&self, wait: Duration) -> Result<()> {
        let all = [
            Some(self.socket.as_fd()),
            self.stdout.as_ref().map(AsFd::as_fd),
            self.stderr.as_ref().map(AsFd::as_fd),
        ];
        let mut all: Vec<PollFd<'_>> = all
            .iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        await_any(&mut all, wait).map(drop)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads once from a pipe if something is there, and keeps the beginning. A pipe that was closed
/// becomes `None`.
fn take<P: Read + AsFd>(
    pipe: &mut Option<P>,
    kept: &mut Vec<u8>,
    piece: &mut [u8],
) -> Result<bool> {
    let Some(open) = pipe else { return Ok(false) };
    if !is_ready(&*open, Duration::ZERO)? {
        return Ok(false);
    }
    // Output that cannot be read counts as not written.
    let read = open.read(piece).unwrap_or(0);
    if read == 0 {
        *pipe = None;
    }
    let room = MOST_OUTPUT - kept.len();
    kept.extend_from_slice(&piece[..read.min(room)]);
    Ok(read > 0)
}

fn is_ready(fd: impl AsFd, wait: Duration) -> Result<bool> {
    await_any(&mut [PollFd::new(&fd, PollFlags::IN)], wait)
}

/// Waits until one of the files can be read, or was closed at its other end.
fn await_any(fds: &mut [PollFd<'_>], wait: Duration) -> Result<bool> {
    let wait = Timespec {
        tv_sec: wait.as_secs() as i64,
        tv_nsec: wait.subsec_nanos().into(),
    };
    match poll(fds, Some(&wait)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error).context("cannot wait for a check"),
    }
}

/// Description of the end of a process that should have answered and exited with 0; `stderr` is its
/// output.
pub fn describe(exit: ExitStatus, stderr: &str) -> String {
    let Some(signal) = exit.signal() else {
        return format!(
            "its process ended with exit code {} before the check was over",
            exit.code().unwrap_or(-1)
        );
    };
    // A second panic, while the first unwinds, aborts too.
    let panics: Vec<&str> = stderr.split(" panicked at ").skip(1).collect();
    if let (ABORT, [panic]) = (signal, &panics[..]) {
        let words = panic.lines().nth(1).unwrap_or_default();
        return format!(
            "a panic ended its process, as of a library built with `panic = \"abort\"`: {words}"
        );
    }
    let name = match signal {
        4 => " (SIGILL)",
        ABORT => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        _ => "",
    };
    format!("its process was ended by signal {signal}{name}")
}
