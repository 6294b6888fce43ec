//! Formats conversations as prompts with a model's chat template, as transformers does.

mod calls;
mod date;
mod environment;
mod escaped;
mod json;
mod messages;
mod methods;
mod source;
mod tags;
mod template;
mod thoughts;
mod tools;
mod turns;
mod value;
mod worker;

use std::sync::{Arc, Once};

use anyhow::{Context, Result, ensure};
use capo_system::NamedFiles;
use capo_system::terminal;

pub use calls::{Call, CallFormat, Unmade};
pub use date::Date;
pub(crate) use json::python_float;
pub use messages::{Messages, Reply};
pub use source::{TEMPLATE_FILE, TOOL_USE_FILE};
pub use tools::Tool;
pub use turns::Turns;
pub use worker::serve;

use super::Tokenizer;
use super::quote::quote;
use crate::exact::Json;
use template::{Job, Request};
use worker::Workers;

/// Options for formatting conversations, besides the model's files.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    /// System prompt: first message of conversations that have no system message.
    pub system_prompt: Option<String>,
    /// Value of `enable_thinking` for the template; `None` leaves the variable undefined.
    pub enable_thinking: Option<bool>,
    /// The date that templates take as today.
    pub date: Date,
    /// True if answers are formatted too, as training targets.
    pub teaches: bool,
    /// Tools that the model may call.
    pub tools: Vec<Tool>,
}

/// Formats conversations as the text that a model reads.
#[derive(Clone, Debug)]
pub struct Chat {
    workers: Arc<Workers>,
    system_prompt: Option<String>,
    teaches: bool,
    /// Origin of the template, for messages.
    place: String,
    /// Tags in the template's text that speak of thoughts.
    tags: Vec<String>,
}

impl Chat {
    /// Opens the chat template among the files of a model.
    pub fn open(files: &dyn NamedFiles, options: ChatOptions) -> Result<Self> {
        let (text, place) = source::find(files, !options.tools.is_empty())?;
        let mut known = source::special_tokens(files)?;
        known.extend(["tools", "documents"].map(|key| (key.to_owned(), Json::Null)));
        if !options.tools.is_empty() {
            let schemas = options
                .tools
                .iter()
                .map(|tool| tool.schema().clone())
                .collect();
            known.insert("tools".to_owned(), Json::List(schemas));
        }
        known.extend(
            options
                .enable_thinking
                .map(|think| ("enable_thinking".to_owned(), Json::Bool(think))),
        );
        let ChatOptions {
            system_prompt,
            teaches,
            date,
            ..
        } = options;
        let tags = tags::tags(&text);
        let workers = Workers::open(&Job {
            text,
            place: place.clone(),
            date,
            known,
        })?;
        Ok(Self {
            workers: Arc::new(workers),
            system_prompt,
            teaches,
            place,
            tags,
        })
    }

    /// Origin of the template, for messages.
    fn place(&self) -> &str {
        &self.place
    }

    /// True if answers are formatted too, as training targets.
    pub(super) fn teaches(&self) -> bool {
        self.teaches
    }

    /// The text that prompts the model for the answer to `messages`.
    pub fn prompt(&self, messages: &Messages) -> Result<String> {
        self.write(&self.begun(messages), true)
    }

    /// The assistant's `answer` and its end, as the template formats them after `prompt`, the text
    /// of `messages`.
    pub fn reply(&self, messages: &Messages, prompt: &str, answer: &str) -> Result<String> {
        let whole = self.write(&self.begun(messages).and("assistant", answer), false)?;
        let reply = whole.strip_prefix(prompt).with_context(|| {
            let same = whole
                .bytes()
                .zip(prompt.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            format!(
                "the chat template {} writes the messages in another way once they are answered: \
                 `{}` where the prompt has `{}` \
                 (give one with `data.chat_template` that goes on where the prompt ends)",
                self.place,
                quote(&whole[whole.floor_char_boundary(same)..]),
                quote(&prompt[prompt.floor_char_boundary(same)..])
            )
        })?;
        ensure!(
            !reply.is_empty(),
            "the chat template {} leaves the answer out",
            self.place
        );
        Ok(reply.to_owned())
    }

    /// Warns once of a template that ends an answer with a special token at which no completion
    /// ends.
    pub fn warn_of_end(&self, tokenizer: &Tokenizer) {
        const ANSWER: &str = "answered";
        static WARNED: Once = Once::new();
        // A template may refuse this conversation and still accept others.
        let whole = self.write(
            &self
                .begun(&Messages::user("asked"))
                .and("assistant", ANSWER),
            false,
        );
        let end = whole
            .ok()
            .and_then(|whole| tokenizer.unending(whole.rsplit_once(ANSWER)?.1));
        if let Some(end) = end {
            WARNED.call_once(|| {
                terminal::warn(&format!(
                    "the chat template {} ends answers with `{end}`, at which no completion ends \
                     (set `data.eos_token` to `{end}`; of `host generate`, `--eos-token`)",
                    self.place
                ));
            });
        }
    }

    /// The messages, with the system prompt first.
    fn begun(&self, messages: &Messages) -> Messages {
        match &self.system_prompt {
            Some(text) if !messages.have_system() => messages.after("system", text),
            _ => messages.clone(),
        }
    }

    fn write(&self, messages: &Messages, add_generation_prompt: bool) -> Result<String> {
        self.workers.write(&Request {
            messages: messages.clone(),
            add_generation_prompt,
        })
    }
}

#[cfg(test)]
mod tests;
