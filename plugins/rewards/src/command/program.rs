//! A long-running external program: its input lines, its output lines, and its end.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// Longest line of an answer, bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Largest number of unread lines. A program that writes without end then blocks, and uses no memory here.
const MOST_LINES: usize = 64;

/// Number of bytes that are kept of the end of standard error.
const KEPT: usize = 2000;

/// Time for a program to end by itself after its input ends.
const GRACE: Duration = Duration::from_secs(1);

/// Reason why no answer came.
pub(super) enum Silence {
    /// The deadline passed.
    Late,
    /// The program's output ended.
    Ended,
}

/// A running program. It leads a process group that ends with it.
pub(super) struct Program {
    child: Child,
    input: Option<Sender<Vec<u8>>>,
    /// The pipe to which `input` is written.
    pipe: Option<Arc<ChildStdin>>,
    output: Receiver<String>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Disconnected when standard error ends.
    silent: Receiver<()>,
}

impl Program {
    /// Starts the program with this process's environment and working directory.
    pub(super) fn start(command: &[String]) -> io::Result<Self> {
        let (name, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = Command::new(name)
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (input, lines) = channel();
        let (answers, output) = sync_channel(MOST_LINES);
        let (speaking, silent) = channel();
        let errors = Arc::<Mutex<Vec<u8>>>::default();
        let stdin = Arc::new(child.stdin.take().expect("it is piped"));
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let (kept, pipe) = (Arc::clone(&errors), Arc::clone(&stdin));
        // Each pipe has a thread, so that neither side blocks the other with a full pipe.
        thread::spawn(move || write(&stdin, &lines));
        thread::spawn(move || read(stdout, &answers));
        thread::spawn(move || keep(stderr, &kept, speaking));
        Ok(Self { child, input: Some(input), pipe: Some(pipe), output, errors, silent })
    }

    /// Sends lines to the program. If the program has ended, the next call of `answer` reports it.
    pub(super) fn send(&self, lines: Vec<u8>) {
        if let Some(input) = &self.input {
            let _ = input.send(lines);
        }
    }

    /// A surplus line that arrives by `deadline`, if any.
    pub(super) fn unasked(&self, deadline: Instant) -> Option<String> {
        self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// True if the program has left more of its input unread than the end of one line.
    pub(super) fn has_unread(&self) -> bool {
        self.pipe.as_ref().is_some_and(|pipe| ioctl_fionread(pipe).is_ok_and(|bytes| bytes > 1))
    }

    /// The next line of output.
    pub(super) fn answer(&self, deadline: Instant) -> Result<String, Silence> {
        self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())).map_err(|error| match error {
            RecvTimeoutError::Timeout => Silence::Late,
            RecvTimeoutError::Disconnected => Silence::Ended,
        })
    }

    /// Ends the program; returns its exit status and the end of its standard error.
    pub(super) fn end(mut self) -> String {
        let status = self.stop().map_or_else(|error| error.to_string(), |status| status.to_string());
        // A process that has left the group may still hold the pipe open.
        let _ = self.silent.recv_timeout(GRACE);
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&errors);
        let said = text.trim().lines().collect::<Vec<_>>().join(" | ");
        if said.is_empty() { status } else { format!("{status}; its standard error ends with `{said}`") }
    }

    /// Closes the program's input, waits a moment, and then ends the whole group.
    fn stop(&mut self) -> io::Result<std::process::ExitStatus> {
        (self.input, self.pipe) = (None, None);
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(id) = id {
            let begun = Instant::now();
            // The leader is not yet reaped, so no other group can have its group's number.
            let exited =
                || waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT);
            while matches!(exited(), Ok(None)) && begun.elapsed() < GRACE {
                thread::sleep(Duration::from_millis(5));
            }
            let _ = kill_process_group(id, Signal::KILL);
        }
        self.child.wait()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn write(mut stdin: &ChildStdin, lines: &Receiver<Vec<u8>>) {
    for lines in lines {
        if stdin.write_all(&lines).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

/// Sends line after line; a line that is too long ends the output.
fn read(stdout: ChildStdout, answers: &SyncSender<String>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let count = stdout.by_ref().take(MOST_BYTES).read_until(b'\n', &mut line);
        if !matches!(count, Ok(1..)) || line.len() as u64 == MOST_BYTES {
            return;
        }
        if answers.send(String::from_utf8_lossy(&line).trim().to_owned()).is_err() {
            return;
        }
    }
}

/// Stores the end of the stream; drops `_speaking` when the stream ends.
fn keep(mut stderr: ChildStderr, kept: &Mutex<Vec<u8>>, _speaking: Sender<()>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stderr.read(&mut buffer) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(&buffer[..count]);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
}
