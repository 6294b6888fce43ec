//! Processes that apply a chat template, which is code of a downloaded model. The system ends one
//! that takes too much time or memory.
//!
//! The engine counts its own instructions, but one comparison, filter or print may never end, and a
//! thread cannot be killed.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Error, Result, anyhow};
use capo_system::signals;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::template::{Job, Request, Template};

/// The subcommand of this executable that starts such a process.
const COMMAND: &str = "apply-chat-template";
/// Largest CPU time for one conversation, in seconds.
const MOST_SECONDS: u64 = 2;
/// Largest memory of a process beyond its size at start, in bytes.
const MOST_BYTES: u64 = 512 << 20;
/// Longest text of a conversation, in bytes: the tokenizer takes hundreds of bytes of memory for
/// each byte.
const MOST_TEXT: usize = 2 << 20;
/// Longest error message, in characters: a template chooses the text of its own refusals.
const MOST_WORDS: usize = 4000;
/// Stack of the thread that runs templates, in bytes: values may be nested as deeply as the work
/// limit allows.
const STACK: usize = 256 << 20;
/// The signal of a process that exceeds its CPU time.
const OUT_OF_TIME: i32 = 24;
/// The exit code of a process, outside of a run, that is refused more memory.
const NO_MEMORY: i32 = 2;

/// A process's reply about a template or a conversation: its text, or an error message.
type Reply = Result<String, String>;

/// The processes of one template, one for each conversation that is formatted at a time.
#[derive(Debug)]
pub(super) struct Workers {
    /// The [`Job`] as a line of JSON.
    job: String,
    place: String,
    idle: Mutex<Vec<Worker>>,
}

impl Workers {
    pub(super) fn open(job: &Job) -> Result<Self> {
        let workers = Self {
            job: line(job)?,
            place: job.place.clone(),
            idle: Mutex::default(),
        };
        if !cfg!(test) {
            let worker = workers.start()?;
            workers.rest(worker);
        } else if let Some(reply) = workers.here("")? {
            reply.map_err(Error::msg)?;
        }
        Ok(workers)
    }

    pub(super) fn write(&self, request: &Request) -> Result<String> {
        let request = line(request)?;
        if cfg!(test) {
            return self
                .here(&request)?
                .context("a conversation has a text")?
                .map_err(Error::msg);
        }
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut worker = idle.map_or_else(|| self.start(), Ok)?;
        let reply = worker
            .ask(&request)
            .map_err(|error| self.ended(worker.end(), &error))?;
        self.rest(worker);
        reply.map_err(Error::msg)
    }

    fn start(&self) -> Result<Worker> {
        let mut worker = Worker::start().context("no process can be started for chat templates")?;
        let reply = worker
            .ask(&self.job)
            .map_err(|error| self.ended(worker.end(), &error))?;
        reply.map(|_| worker).map_err(Error::msg)
    }

    fn rest(&self, worker: Worker) {
        self.idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(worker);
    }

    /// The last reply to the job and a request, computed in this process: the executable of a unit
    /// test cannot be a worker.
    fn here(&self, request: &str) -> Result<Option<Reply>> {
        let lines = format!("{}{request}", self.job);
        let mut replies = Vec::new();
        deep(|| answer(lines.as_bytes().lines(), &mut replies, || Ok(())))??;
        let replies = String::from_utf8(replies)?;
        Ok(replies
            .lines()
            .last()
            .map(serde_json::from_str)
            .transpose()?)
    }

    /// Error about a process that ended instead of answering.
    fn ended(&self, status: io::Result<std::process::ExitStatus>, error: &io::Error) -> Error {
        let place = &self.place;
        let mend = "(mend it, or shorten the conversation)";
        match status.map(|status| (status.signal(), status.code())) {
            Ok((Some(OUT_OF_TIME), _)) => {
                anyhow!(
                    "the chat template {place} comes to no end \
                     within {MOST_SECONDS} s of work {mend}"
                )
            }
            // A failed allocation ends the process, and a stack overflow aborts it.
            Ok((Some(_), _) | (_, Some(NO_MEMORY))) => anyhow!(
                "the chat template {place} takes more than {} MiB of memory, \
                 or nests values too deeply {mend}",
                MOST_BYTES >> 20
            ),
            Ok(_) | Err(_) => {
                anyhow!("the process that applies the chat template {place} has ended: {error}")
            }
        }
    }
}

/// Path of this executable. Its file may be rebuilt during a run, so the path is that of the
/// running process's own file.
fn program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        Ok("/proc/self/exe".into())
    } else {
        std::env::current_exe()
    }
}

#[derive(Debug)]
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start() -> io::Result<Self> {
        let mut child = Command::new(program()?)
            .arg(COMMAND)
            // Ctrl-C is meant for the trainer, which may continue for a while.
            .process_group(0)
            // Address space that the allocator reserves would count against the limit.
            .env("MIMALLOC_ARENA_RESERVE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    fn ask(&mut self, line: &str) -> io::Result<Reply> {
        self.input.write_all(line.as_bytes())?;
        let mut reply = String::new();
        self.output.read_line(&mut reply)?;
        Ok(serde_json::from_str(&reply)?)
    }

    /// Ends the process if it is still running, and returns its exit status.
    fn end(&mut self) -> io::Result<std::process::ExitStatus> {
        let _ = self.child.kill();
        self.child.wait()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn line<T: serde::Serialize>(value: &T) -> Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

/// Answers the lines of standard input until it ends. This is the process of
/// `host apply-chat-template`.
pub fn serve() -> Result<()> {
    // A signal to the whole job is meant for the trainer, which ends this process with its input.
    signals::ignore_stops();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| {
        line.strip_prefix("VmSize:")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    limit(
        Resource::As,
        (size.unwrap_or(0_u64) << 10) + STACK as u64 + MOST_BYTES,
    )?;
    limit(Resource::Core, 0)?;
    deep(|| answer(io::stdin().lock().lines(), io::stdout().lock(), more_time))?
}

/// Raises the CPU limit by the time that one conversation may take.
fn more_time() -> Result<()> {
    let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec.unsigned_abs();
    limit(Resource::Cpu, used + 1 + MOST_SECONDS)
}

/// Limits a resource to `most`, or to its present limit if that is lower.
fn limit(resource: Resource, most: u64) -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(resource);
    let current = Some(maximum.map_or(most, |maximum| maximum.min(most)));
    setrlimit(resource, Rlimit { current, maximum }).context("the system refuses a limit")
}

/// Runs `work` on a thread with a large stack.
fn deep<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, work);
        let thread = thread.context("no thread can be started for chat templates")?;
        thread
            .join()
            .map_err(|_| anyhow!("a thread for chat templates has ended"))
    })
}

/// Replies to a job and then to requests; calls `before` ahead of each.
fn answer(
    mut lines: impl Iterator<Item = io::Result<String>>,
    mut replies: impl Write,
    before: impl Fn() -> Result<()>,
) -> Result<()> {
    let mut reply = |reply: Result<String>| -> Result<()> {
        let reply: Reply = match reply {
            Ok(text) if text.len() > MOST_TEXT => {
                let bytes = text.len();
                Err(format!(
                    "the chat template makes a text of {bytes} bytes, \
                     at most {MOST_TEXT} are taken (shorten the conversation)"
                ))
            }
            Ok(text) => Ok(text),
            Err(error) => Err(format!("{error:#}").chars().take(MOST_WORDS).collect()),
        };
        replies.write_all(line(&reply)?.as_bytes())?;
        Ok(replies.flush()?)
    };
    let Some(job) = lines.next().transpose()? else {
        return Ok(());
    };
    before()?;
    let template = match Template::open(serde_json::from_str(&job)?) {
        Ok(template) => template,
        Err(error) => return reply(Err(error)),
    };
    reply(Ok(String::new()))?;
    for request in lines {
        before()?;
        let request: Request = serde_json::from_str(&request?)?;
        reply(template.write(&request))?;
    }
    Ok(())
}
