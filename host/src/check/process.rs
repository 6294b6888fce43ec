//! The parent's side of a check: a child process, its output, and a time limit.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::task::{Reply, Task};

/// Number of the signal of an abort.
const ABORT: i32 = 6;
/// Largest part of a child's output that is kept, in bytes.
const MOST_OUTPUT: u64 = 64 << 10;

/// Result of a child process.
pub struct End {
    /// Exit status; `None` if the child exceeded the time limit and was ended.
    pub exit: Option<ExitStatus>,
    /// The child's answers, in the order of the task's checks.
    pub replies: Vec<Reply>,
    /// Beginning of the child's standard output.
    pub stdout: String,
    /// Beginning of the child's standard error.
    pub stderr: String,
    /// Duration of the child, in seconds.
    pub seconds: f64,
}

/// Runs `task` in a child process, for at most `limit`.
pub fn run(mut task: Task, limit: Duration) -> Result<End> {
    let file = tempfile::NamedTempFile::new().context("cannot make a temporary file")?;
    task.reply = file.path().to_owned();
    let program = std::env::current_exe().context("this executable has no path")?;
    let mut command = Command::new(program);
    command
        .args(["check", "--run-one"])
        .arg(serde_json::to_string(&task)?);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let start = Instant::now();
    let mut child = command
        .spawn()
        .context("cannot start a process for a check")?;
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let exit = wait(&mut child, limit)?;
    let seconds = start.elapsed().as_secs_f64();
    let answers = std::fs::read_to_string(file.path()).unwrap_or_default();
    // A child that crashes may leave half a line.
    let replies = answers
        .lines()
        .map_while(|line| serde_json::from_str(line).ok())
        .collect();
    Ok(End {
        exit,
        replies,
        stdout: text(&stdout),
        stderr: text(&stderr),
        seconds,
    })
}

/// Reads to the end in the background, so that the child never waits for a reader.
fn drain(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let Some(mut pipe) = pipe else { return };
        let mut kept = Vec::new();
        // Output that cannot be read counts as not written.
        let _ = pipe.by_ref().take(MOST_OUTPUT).read_to_end(&mut kept);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        let _ = sender.send(kept);
    });
    receiver
}

/// The output that was read. It does not wait for a grandchild that holds the pipe open.
fn text(output: &Receiver<Vec<u8>>) -> String {
    let bytes = output
        .recv_timeout(Duration::from_secs(10))
        .unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(exit) = child.try_wait().context("cannot wait for a check")? {
            return Ok(Some(exit));
        }
        if start.elapsed() >= limit {
            child.kill().context("cannot end a check")?;
            child.wait().context("cannot wait for a check")?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(2));
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
    if let (ABORT, [_, panic]) = (
        signal,
        &stderr.split(" panicked at ").collect::<Vec<_>>()[..],
    ) {
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
