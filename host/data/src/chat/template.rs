//! A chat template and its output for conversations, in the template's own process.

use std::collections::BTreeMap;

use anyhow::{Context, Error, Result, anyhow, ensure};
use capo_system::contain::contain;
use minijinja::{Environment, ErrorKind, Value};
use serde::{Deserialize, Serialize};

use super::environment::{self, NAME, Refused};
use super::value::value;
use super::{Date, Messages};
use crate::exact::Json;
use crate::quote::cut;

/// Longest text of a conversation in bytes: longer than any model reads.
const LONGEST: usize = 8 << 20;
/// Longest error message of a template or its engine, in characters.
const SAID: usize = 200;

/// A template and its variables other than the messages.
#[derive(Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) text: String,
    /// Origin of the template, for messages.
    pub(super) place: String,
    /// The date that the template takes as today.
    pub(super) date: Date,
    pub(super) known: BTreeMap<String, Json>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) messages: Messages,
    pub(super) add_generation_prompt: bool,
}

pub(super) struct Template {
    environment: Environment<'static>,
    known: BTreeMap<String, Value>,
    place: String,
}

impl Template {
    pub(super) fn open(
        Job {
            text,
            place,
            date,
            known,
        }: Job,
    ) -> Result<Self> {
        let environment = environment::with_template(&text, date).map_err(|error| {
            anyhow!(
                "the chat template {place} cannot be read: {}",
                reason(&error)
            )
        })?;
        let known = known
            .iter()
            .map(|(name, json)| (name.clone(), value(json)))
            .collect();
        Ok(Self {
            environment,
            known,
            place,
        })
    }

    pub(super) fn write(&self, request: &Request) -> Result<String> {
        let mut known = self.known.clone();
        known.insert("messages".to_owned(), value(&request.messages.json()));
        known.insert(
            "add_generation_prompt".to_owned(),
            Value::from(request.add_generation_prompt),
        );
        let text = contain(|| {
            self.environment
                .get_template(NAME)?
                .render(Value::from(known))
        })
        .with_context(|| format!("the chat template {}", self.place))?;
        let text = text.map_err(|error| self.failed(&error))?;
        let length = text.len();
        ensure!(
            length <= LONGEST,
            "the chat template {} makes a text of {length} bytes \
             (at most {LONGEST}; shorten the conversation)",
            self.place
        );
        Ok(text)
    }

    fn failed(&self, error: &minijinja::Error) -> Error {
        let place = &self.place;
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(cause) = source {
            if let Some(Refused(message)) = cause.downcast_ref() {
                return anyhow!(
                    "the chat template {place} refuses it: {}",
                    cut(message, SAID)
                );
            }
            source = cause.source();
        }
        match error.kind() {
            ErrorKind::OutOfFuel => anyhow!(
                "the chat template {place} comes to no end within {} steps \
                 (mend it, or shorten the conversation)",
                environment::STEPS
            ),
            _ => anyhow!("the chat template {place} fails: {}", reason(error)),
        }
    }
}

/// Message of the template engine's error, with its line.
fn reason(error: &minijinja::Error) -> String {
    let what = error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned);
    let line = error
        .line()
        .map(|line| format!(" (line {line} of the template)"));
    cut(&what, SAID) + &line.unwrap_or_default()
}
