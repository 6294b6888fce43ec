//! Conversations as prompts: the chat template of a model, applied as transformers applies it.

mod date;
mod environment;
mod json;
mod messages;
mod methods;
mod source;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow, ensure};
use minijinja::{Environment, ErrorKind, Value};
use rayon::ThreadPool;

pub use date::Date;
pub use messages::Messages;
pub use source::TEMPLATE_FILE;

use super::contain::contain;
use super::quote::{cut, quote};
use crate::model::ModelFiles;
use environment::{NAME, Refused};

/// Longest text of a conversation, bytes: no model reads as much.
const LONGEST: usize = 8 << 20;
/// Longest message of a template or its engine in a sentence, characters.
const SAID: usize = 200;
/// Stack of a thread that templates run on, bytes: values may hold one another as deeply as a template's work allows.
const STACK: usize = 256 << 20;

/// How conversations are written, besides what the model's files say.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// The first message of conversations that have no system message.
    pub system_prompt: Option<String>,
    /// What templates know as `enable_thinking`; where it is none, they know nothing of it.
    pub enable_thinking: Option<bool>,
    /// The day that templates take for today.
    pub date: Date,
    /// Whether answers are written too, to be taught.
    pub teaches: bool,
}

/// Writes conversations as the text that a model reads.
#[derive(Clone)]
pub struct Chat {
    environment: Arc<Environment<'static>>,
    /// What the template knows besides the messages.
    known: BTreeMap<String, Value>,
    system_prompt: Option<String>,
    teaches: bool,
    /// Where the template is from, for sentences.
    place: String,
    threads: Arc<ThreadPool>,
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chat").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Chat {
    /// The chat template among the files of a model.
    ///
    /// # Errors
    ///
    /// No template, one that cannot be read or is none, and a damaged file beside it.
    pub fn open(files: &ModelFiles, options: ChatOptions) -> Result<Self> {
        let source = source::find(files)?;
        let place = source.place;
        let environment = environment::with_template(&source.text, options.date)
            .map_err(|error| anyhow!("the chat template {place} cannot be read: {}", reason(&error)))?;
        let mut known = source::special_tokens(files)?;
        known.extend(
            [("tools", Value::from(())), ("documents", Value::from(()))].map(|(key, value)| (key.into(), value)),
        );
        known.extend(options.enable_thinking.map(|think| ("enable_thinking".to_owned(), Value::from(think))));
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(rayon::current_num_threads())
            .stack_size(STACK)
            .build()
            .context("no threads can be started for chat templates")?;
        let (environment, threads) = (Arc::new(environment), Arc::new(threads));
        let ChatOptions { system_prompt, teaches, .. } = options;
        Ok(Self { environment, known, system_prompt, teaches, place, threads })
    }

    /// Whether answers are written too, to be taught.
    pub(super) fn teaches(&self) -> bool {
        self.teaches
    }

    /// Does `work` on the threads that templates run on, so that many conversations are written at a time.
    pub fn on_threads<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.threads.install(work)
    }

    /// The text that asks for the answer to `messages`.
    ///
    /// # Errors
    ///
    /// What the template refuses or fails at, with the template's name.
    pub fn prompt(&self, messages: &Messages) -> Result<String> {
        self.write(&self.begun(messages), true)
    }

    /// What follows `prompt`, the text of `messages`, where the assistant says `answer`: the answer and its end.
    ///
    /// # Errors
    ///
    /// As [`prompt`](Self::prompt), and a template that writes the messages in another way once they are answered.
    pub fn reply(&self, messages: &Messages, prompt: &str, answer: &str) -> Result<String> {
        let whole = self.write(&self.begun(messages).and("assistant", answer), false)?;
        let reply = whole.strip_prefix(prompt).with_context(|| {
            let same = whole.bytes().zip(prompt.bytes()).take_while(|(a, b)| a == b).count();
            let from = |text: &str| quote(&text[text.floor_char_boundary(same)..]);
            format!(
                "the chat template {} writes the messages in another way once they are answered: `{}` where the prompt has `{}` (give one with `data.chat_template` that goes on where the prompt ends)",
                self.place,
                from(&whole),
                from(prompt)
            )
        })?;
        ensure!(!reply.is_empty(), "the chat template {} leaves the answer out", self.place);
        Ok(reply.to_owned())
    }

    /// The messages, the system prompt first.
    fn begun(&self, messages: &Messages) -> Messages {
        match &self.system_prompt {
            Some(text) if !messages.have_system() => messages.after("system", text),
            _ => messages.clone(),
        }
    }

    fn write(&self, messages: &Messages, add_generation_prompt: bool) -> Result<String> {
        let mut known = self.known.clone();
        known.insert("messages".to_owned(), messages.value());
        known.insert("add_generation_prompt".to_owned(), Value::from(add_generation_prompt));
        let render = || contain(|| self.environment.get_template(NAME)?.render(Value::from(known)));
        let text = self.threads.install(render).with_context(|| format!("the chat template {}", self.place))?;
        let text = text.map_err(|error| self.failed(&error))?;
        let length = text.len();
        ensure!(
            length <= LONGEST,
            "the chat template {} makes a text of {length} bytes (at most {LONGEST}; shorten the conversation)",
            self.place
        );
        Ok(text)
    }

    fn failed(&self, error: &minijinja::Error) -> Error {
        let place = &self.place;
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(cause) = source {
            if let Some(Refused(message)) = cause.downcast_ref() {
                return anyhow!("the chat template {place} refuses it: {}", cut(message, SAID));
            }
            source = cause.source();
        }
        match error.kind() {
            ErrorKind::OutOfFuel => anyhow!(
                "the chat template {place} comes to no end within {} steps (mend it, or shorten the conversation)",
                environment::STEPS
            ),
            _ => anyhow!("the chat template {place} fails: {}", reason(error)),
        }
    }
}

/// What an error of the template engine says, with its line.
fn reason(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let line = error.line().map(|line| format!(" (line {line} of the template)"));
    cut(&what, SAID) + &line.unwrap_or_default()
}

#[cfg(test)]
mod tests;
