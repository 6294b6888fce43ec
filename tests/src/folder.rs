//! A fresh folder in which `host` runs, and the outcome of a run.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use host_data::Tokenizer;
use serde_json::Value;
use tempfile::TempDir;

use crate::artifacts;
use crate::run_dir::RunDir;

/// Variables that would affect `host`. Without a home, no plugin is installed.
const NOT_INHERITED: &str = "LD_LIBRARY_PATH CAPO_PLUGIN_PATH XDG_DATA_HOME HOME MISBEHAVE_OFF RAYON_NUM_THREADS \
    CANDLE_NUM_THREADS HF_TOKEN HUGGING_FACE_HUB_TOKEN http_proxy HTTP_PROXY https_proxy HTTPS_PROXY all_proxy ALL_PROXY";

/// A fresh folder; deleted when dropped.
pub struct Folder {
    path: PathBuf,
    _guard: TempDir,
    env: Vec<(String, String)>,
    program: PathBuf,
}

/// Result of a `host` process that ended.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error, with errors and warnings.
    pub stderr: String,
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    /// Makes the folder.
    pub fn new() -> Self {
        let guard = tempfile::tempdir().expect("a temporary folder");
        let path = guard.path().canonicalize().expect("its path");
        Self {
            path,
            _guard: guard,
            env: Vec::new(),
            program: artifacts::file("host"),
        }
    }

    /// Sets an environment variable for every later process.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env
            .push((name.into(), value.as_ref().to_string_lossy().into_owned()));
        self
    }

    /// Runs another executable instead of `host`.
    #[must_use]
    pub fn program(mut self, program: PathBuf) -> Self {
        self.program = program;
        self
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into the folder, and returns its name.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> String {
        let path = self.path.join(name);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        std::fs::write(path, contents).expect("a file is written");
        name.to_owned()
    }

    /// The bytes of the file `name`.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path.join(name)).expect("a file")
    }

    /// The text of the file `name`.
    pub fn text(&self, name: &str) -> String {
        text(&self.path.join(name))
    }

    /// The JSON value in the file `name`.
    pub fn json(&self, name: &str) -> Value {
        json(&self.path.join(name))
    }

    /// The JSON values on the lines of the file `name`.
    pub fn json_lines(&self, name: &str) -> Vec<Value> {
        json_lines(&self.text(name))
    }

    /// Replaces `from`, which the file `name` must hold, by `to`.
    pub fn replace(&self, name: &str, from: &str, to: &str) {
        let text = self.text(name);
        assert!(text.contains(from), "no `{from}` in {text}");
        self.write(name, text.replace(from, to));
    }

    /// Writes the files of the embedded tokenizer into the folder `name`.
    pub fn write_tokenizer(&self, name: &str) {
        for (file, bytes) in Tokenizer::TINY_ARITHMETIC {
            self.write(&format!("{name}/{file}"), bytes);
        }
    }

    /// The process `host ARGS`, not yet started. Words of `args` are separated by blanks.
    pub fn command(&self, args: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args.split_whitespace())
            .current_dir(&self.path)
            .stdin(Stdio::null());
        for name in NOT_INHERITED.split(' ') {
            command.env_remove(name);
        }
        command
            .env("RUST_BACKTRACE", "0")
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs `host ARGS` to its end.
    #[must_use]
    pub fn host(&self, args: &str) -> Outcome {
        self.outcome(self.command(args).output().expect("`host` starts"))
    }

    /// Standard output of `host ARGS`, which must succeed.
    pub fn said(&self, args: &str) -> String {
        self.host(args).succeeded().stdout
    }

    /// The error message of `host ARGS`, which must be refused and leave nothing new in the folder.
    pub fn refused(&self, args: &str) -> String {
        let before = names(&self.path);
        let sentence = self.host(args).refused();
        assert_eq!(
            names(&self.path),
            before,
            "what is refused leaves nothing behind: {sentence}"
        );
        sentence
    }

    /// Runs `host ARGS` to its end, after the command `before` in the same shell.
    #[must_use]
    pub fn host_after(&self, before: &str, args: &str) -> Outcome {
        let host = self.command(args);
        let words = [host.get_program()]
            .into_iter()
            .chain(host.get_args())
            .map(|word| word.to_string_lossy());
        let line = words
            .map(|word| format!("'{word}'"))
            .collect::<Vec<_>>()
            .join(" ");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &format!("{before}; exec {line}")])
            .current_dir(&self.path);
        self.outcome(shell.output().expect("a shell starts"))
    }

    /// Result of a process that [`command`](Self::command) made.
    pub fn outcome(&self, output: Output) -> Outcome {
        let text =
            |bytes: Vec<u8>| self.normal(&String::from_utf8(bytes).expect("`host` prints UTF-8"));
        Outcome {
            code: output.status.code(),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }

    /// Trains into the folder `name`, and accepts any outcome.
    pub fn attempt(&self, name: &str, args: &str) -> Outcome {
        self.host(&format!("train --output-dir {name} {args}"))
    }

    /// Trains into the folder `name` and expects success.
    pub fn train(&self, name: &str, args: &str) -> RunDir {
        let _ = self.attempt(name, args).succeeded();
        self.run_dir(name)
    }

    /// Resumes the run in the folder `name` and expects success.
    pub fn resume(&self, name: &str) -> RunDir {
        self.said(&format!("train --resume {name}"));
        self.run_dir(name)
    }

    /// Trains with `args` once whole, and once for each of `steps` stopped there and resumed. All
    /// must end with equal files. Returns the whole run.
    pub fn assert_resumes(&self, args: &str, steps: impl IntoIterator<Item = u64>) -> RunDir {
        let whole = self.train("whole", args);
        for step in steps {
            let name = format!("stopped-{step}");
            let _ = self.train(&name, &format!("{args} --stop-after {step}"));
            self.resume(&name).assert_same_files(&whole);
        }
        whole
    }

    /// The run in the folder `name`.
    pub fn run_dir(&self, name: &str) -> RunDir {
        RunDir::new(self.path.join(name))
    }

    /// The text with paths and hashes replaced by words, so that it is equal on every machine.
    fn normal(&self, text: &str) -> String {
        let text = text
            .replace(&*self.path.to_string_lossy(), "FOLDER")
            .replace(&*artifacts::folder().to_string_lossy(), "BUILD");
        text.split('\n')
            .map(|line| line.split(' ').map(unhash).collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// The names in a folder.
///
/// # Panics
///
/// If it cannot be listed.
pub fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name());
    entries
        .map(|name| name.into_string().expect("UTF-8"))
        .collect()
}

/// The text of a file.
///
/// # Panics
///
/// If the file is not text.
pub fn text(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a text file")
}

/// The JSON value in a file.
///
/// # Panics
///
/// If the file does not hold a JSON value.
pub fn json(path: &Path) -> Value {
    serde_json::from_str(&text(path)).expect("a file of JSON")
}

/// A text with one of the JSON values on each line.
pub fn to_json_lines(values: impl IntoIterator<Item = Value>) -> String {
    values
        .into_iter()
        .map(|value| format!("{value}\n"))
        .collect()
}

/// The JSON values on the lines of `text`.
///
/// # Panics
///
/// If a line is not JSON.
pub fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

/// The word with `HASH` in place of a SHA-256 at its end.
fn unhash(word: &str) -> String {
    let digits = word.trim_end_matches(',');
    let start = digits
        .trim_end_matches(|c: char| c.is_ascii_hexdigit())
        .len();
    if digits.len() - start == 64 {
        format!("{}HASH", &word[..start])
    } else {
        word.to_owned()
    }
}

impl Outcome {
    /// Expects exit code 0.
    pub fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self
    }

    /// Expects exit code 2, bad input, and returns the error message.
    pub fn refused(&self) -> String {
        assert!(!self.stderr.contains("panicked at"), "{self:#?}");
        self.sentence(2)
    }

    /// Expects exit code 1, a run that failed, and returns the error message.
    pub fn failed(&self) -> String {
        self.sentence(1)
    }

    /// Expects `code` and one error, and returns the error message.
    pub fn sentence(&self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        let (_, sentence) = self
            .stderr
            .split_once("error: ")
            .unwrap_or_else(|| panic!("no sentence: {self:#?}"));
        sentence.trim_end().to_owned()
    }
}
