//! A long-running external program, of a reward or an environment: its input lines, its output
//! lines, and its end.

mod parent;

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use capo_plugin::PluginError;
use regex::{Captures, Regex};
use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use parent::Parent;

/// Longest line of an answer, bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Largest number of unread lines. A program that writes without end then blocks, and uses no
/// memory here.
const MOST_LINES: usize = 64;

/// Number of bytes that are kept of the end of standard error.
const KEPT: usize = 2000;

/// Time for a program to end by itself after its input ends.
const GRACE: Duration = Duration::from_secs(1);

/// Time in which a signal to the whole job has reached this process too, after it has ended a
/// program.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// The signals that ask all processes of a job to stop.
const STOPS: [Signal; 5] = [
    Signal::HUP,
    Signal::INT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
];

/// Largest number of processes of one component.
pub const MOST_PROCESSES: usize = 256;

/// Reason why no answer came.
#[derive(Debug)]
pub enum Silence {
    /// The deadline passed.
    Late,
    /// A line is longer than any answer may be.
    TooLong,
    /// The program's output ended.
    Ended,
    /// It ended in the middle of a line, whose beginning may be half of a number.
    EndedInLine,
}

/// A running program. It leads a process group that ends with it.
pub struct Program {
    child: Child,
    input: Option<Sender<Vec<u8>>>,
    /// The pipe to which `input` is written.
    pipe: Option<Arc<ChildStdin>>,
    /// Lines of output. The last one may be the reason why there are no more.
    output: Receiver<Result<String, Silence>>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Disconnected when standard error ends.
    silent: Receiver<()>,
    /// Dropped last, because the program does not outlive it.
    _parent: Parent,
}

impl Program {
    /// Refuses a command that does not name a program.
    ///
    /// # Errors
    ///
    /// The command, and what to give instead.
    pub fn check(command: &[String]) -> Result<(), PluginError> {
        let sentence = match command.first().filter(|name| !name.is_empty()) {
            None => {
                "`command` is empty (give a program and its arguments, `[\"./grade\", \"--fast\"]`)"
                    .to_owned()
            }
            Some(name) if !is_found(name) => format!(
                "`command` names `{name}`, which is not a file that can be run (give its path, or \
                 a name in `PATH`)"
            ),
            _ => return Ok(()),
        };
        Err(PluginError::config(sentence))
    }

    /// Starts the program with this process's environment and working directory.
    ///
    /// # Errors
    ///
    /// When the system cannot start it.
    pub fn start(command: &[String]) -> Result<Self, PluginError> {
        let name = command.first().map_or("", String::as_str);
        Self::spawn(command)
            .map_err(|error| PluginError::failed(format!("`{name}` could not be started: {error}")))
    }

    fn spawn(command: &[String]) -> io::Result<Self> {
        let (name, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(arguments).process_group(0);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (mut child, parent) = parent::start(command)?;
        let (input, lines) = channel();
        let (answers, output) = sync_channel(MOST_LINES);
        let (speaking, silent) = channel();
        let errors = Arc::<Mutex<Vec<u8>>>::default();
        let stdin = Arc::new(child.stdin.take().expect("it is piped"));
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let kept = Arc::clone(&errors);
        let pipe = Arc::clone(&stdin);
        // Each pipe has a thread, so that neither side blocks the other with a full pipe.
        thread::spawn(move || write(&stdin, &lines));
        thread::spawn(move || read(stdout, &answers));
        thread::spawn(move || keep(stderr, &kept, speaking));
        Ok(Self {
            child,
            input: Some(input),
            pipe: Some(pipe),
            output,
            errors,
            silent,
            _parent: parent,
        })
    }

    /// Sends lines to the program. If the program has ended, the next call of `answer` reports it.
    pub fn send(&self, lines: Vec<u8>) {
        if let Some(input) = &self.input {
            let _ = input.send(lines);
        }
    }

    /// A surplus line that arrives by `deadline`, if any.
    pub fn unasked(&self, deadline: Instant) -> Option<String> {
        self.answer(deadline).ok()
    }

    /// True if the program has left more of its input unread than the end of one line.
    pub fn has_unread(&self) -> bool {
        self.pipe
            .as_ref()
            .is_some_and(|pipe| ioctl_fionread(pipe).is_ok_and(|bytes| bytes > 1))
    }

    /// The next line of output.
    ///
    /// # Errors
    ///
    /// When no line comes by the deadline, or it has no end, or is longer than a MiB.
    pub fn answer(&self, deadline: Instant) -> Result<String, Silence> {
        match self
            .output
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => Err(Silence::Late),
            Err(RecvTimeoutError::Disconnected) => Err(Silence::Ended),
        }
    }

    /// Ends the program, and says what it did instead of giving its next answer: how many answers
    /// it gave (`said`), its exit status if it ended by itself, and the end of its standard error.
    pub fn end(mut self, silence: &Silence, said: &str, timeout: f64) -> String {
        // A program may close its output and continue.
        let has_ended =
            matches!(silence, Silence::Ended | Silence::EndedInLine) && self.ends_within(GRACE);
        let status = self.stop();
        // A process that has left the group may still hold the pipe open.
        let _ = self.silent.recv_timeout(GRACE);
        let end = if has_ended {
            "ended"
        } else {
            "closed its output, but did not end,"
        };
        let did = match silence {
            Silence::Late => format!("gave {said} in {timeout} seconds, `timeout`"),
            Silence::Ended => format!("{end} after {said}"),
            Silence::EndedInLine => format!("{end} after {said}, in the middle of a line"),
            Silence::TooLong => {
                format!("wrote a line of more than {MOST_BYTES} bytes after {said}")
            }
        };
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&errors);
        let words = text.trim().lines().collect::<Vec<_>>().join(" | ");
        // A program that this process has killed has a status that says nothing about it.
        let status = has_ended.then(|| status.map_or_else(|error| error.to_string(), told));
        let words = (!words.is_empty()).then(|| format!("its standard error ends with `{words}`"));
        let why: Vec<String> = status.into_iter().chain(words).collect();
        if why.is_empty() {
            did
        } else {
            format!("{did}: {}", why.join("; "))
        }
    }

    /// True if the program has ended, or ends by itself within `patience`.
    fn ends_within(&self, patience: Duration) -> bool {
        let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else {
            return false;
        };
        let begun = Instant::now();
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(id), options), Ok(None)) {
            if begun.elapsed() >= patience {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Closes the program's input, waits a moment, and then ends the whole group.
    fn stop(&mut self) -> io::Result<ExitStatus> {
        self.input = None;
        self.pipe = None;
        self.ends_within(GRACE);
        // The leader is not yet reaped, so no other group can have its group's number.
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(id, Signal::KILL);
        }
        self.child.wait()
    }
}

/// The exit status of a program that has ended by itself. If a signal asked it to stop, this waits
/// until the same signal, sent to the whole job, has reached this process: the caller then knows
/// that the run stops.
fn told(status: ExitStatus) -> String {
    // A shell ends with 128 and the number of the signal that ended its program.
    let number = status
        .signal()
        .or(status.code().and_then(|code| code.checked_sub(128)));
    if STOPS.iter().any(|signal| Some(signal.as_raw()) == number) {
        thread::sleep(SAME_SIGNAL);
    }
    status.to_string()
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn write(mut stdin: &ChildStdin, lines: &Receiver<Vec<u8>>) {
    for lines in lines {
        if stdin
            .write_all(&lines)
            .and_then(|()| stdin.flush())
            .is_err()
        {
            return;
        }
    }
}

/// Sends line after line; a line that is too long, or has no end, ends the output.
fn read(stdout: ChildStdout, answers: &SyncSender<Result<String, Silence>>) {
    let mut stdout = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let count = stdout
            .by_ref()
            .take(MOST_BYTES)
            .read_until(b'\n', &mut line);
        if !matches!(count, Ok(1..)) {
            return;
        }
        let line = match line.last() {
            _ if line.len() as u64 == MOST_BYTES => Err(Silence::TooLong),
            Some(b'\n') => Ok(String::from_utf8_lossy(&line).trim().to_owned()),
            _ => Err(Silence::EndedInLine),
        };
        let is_last = line.is_err();
        if answers.send(line).is_err() || is_last {
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

/// True if the system finds a program with this name.
fn is_found(name: &str) -> bool {
    if name.contains('/') {
        return is_program(Path::new(name));
    }
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| is_program(&folder.join(name)))
    })
}

/// True for a file that can be run.
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The JSON in `line` with U+FFFD in place of each half of a surrogate pair, which Python's
/// `json.dumps` writes for a byte that is not text.
pub fn whole_characters(line: &str) -> Cow<'_, str> {
    static ESCAPE: LazyLock<Regex> = LazyLock::new(|| {
        let pair = r"(?<pair>u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})";
        let half = r"(?<half>u[dD][89a-fA-F][0-9a-fA-F]{2})";
        Regex::new(&format!(r"\\(?:{pair}|{half}|.)")).expect("the pattern is a constant")
    });
    if !line.contains("\\ud") && !line.contains("\\uD") {
        return line.into();
    }
    ESCAPE.replace_all(line, |escape: &Captures<'_>| {
        if escape.name("half").is_some() {
            "\\ufffd".to_owned()
        } else {
            escape[0].to_owned()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_halves_of_surrogate_pairs() {
        for (line, expected) in [
            (r#""caf\udce9""#, r#""caf\ufffd""#),
            (
                r#""\ud83d\ude00 \ud83d\ud83d\ude00 \uDE00""#,
                r#""\ud83d\ude00 \ufffd\ud83d\ude00 \ufffd""#,
            ),
            (r#""\\ud83d \u00e9""#, r#""\\ud83d \u00e9""#),
        ] {
            assert_eq!(whole_characters(line), expected);
        }
    }
}
