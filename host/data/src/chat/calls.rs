//! Calls of tools in a model's turn, in the format of its chat template.

use std::sync::LazyLock;

use indexmap::IndexMap;
use regex::Regex;

use super::thoughts::{Mark, Thoughts};
use super::tools::Tool;
use crate::exact::Json;

/// The format in which a chat template writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, any number of times: Hermes, Qwen.
    Hermes,
    /// A text that is an object `{"name": .., "parameters": {..}}`, or several: Llama 3.
    Llama3,
}

/// A call that can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// The arguments, a JSON object on one line.
    pub arguments: String,
}

/// A call that cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmade {
    /// The tool that the error seems to come from: the tool that the call names, or else the first
    /// tool.
    pub tool: String,
    /// The sentence that the model reads.
    pub error: String,
}

/// A call as the model wrote it, or what is wrong with its JSON.
type Written = Result<Json, String>;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const PYTHON: &str = "<|python_tag|>";
/// The names of a call's arguments in the two formats. Models write either in both.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
/// Longest text that an error quotes, in characters.
const QUOTED: usize = 40;

/// The texts round a call, which are special tokens of some tokenizers.
pub(super) const MARKS: [&str; 3] = [OPEN, CLOSE, PYTHON];

impl CallFormat {
    /// The format of a template, from the text that it makes of a call up to the call's only
    /// argument; `None` if that is in no known one.
    pub(super) fn of(written: &str) -> Option<Self> {
        // The description of the tools may have the same words.
        let call = &written[written.floor_char_boundary(written.len().saturating_sub(200))..];
        let arguments = call.rfind("\"arguments\"");
        let parameters = call.rfind("\"parameters\"");
        if arguments > parameters {
            return call.contains(OPEN).then_some(Self::Hermes);
        }
        (parameters.is_some() && call.contains("\"name\"")).then_some(Self::Llama3)
    }

    /// The calls of these tools in a turn, in order. Thoughts are not searched.
    pub fn calls(
        self,
        turn: &str,
        tools: &[Tool],
        thoughts: &Thoughts,
    ) -> Vec<Result<Call, Unmade>> {
        let written = match self {
            Self::Hermes => hermes(turn, thoughts),
            Self::Llama3 => llama3(turn, tools, thoughts),
        };
        let key = match self {
            Self::Hermes => ARGUMENTS[0],
            Self::Llama3 => ARGUMENTS[1],
        };
        written
            .into_iter()
            .map(|call| made(call, key, tools))
            .collect()
    }
}

fn hermes(turn: &str, thoughts: &Thoughts) -> Vec<Written> {
    let mut calls = Vec::new();
    let mut has_thought = thoughts.is_open();
    let Some(mut rest) = thoughts.after_open(turn) else {
        return calls;
    };
    loop {
        match (rest.find(OPEN), thoughts.first(rest)) {
            (None, None) => return calls,
            (Some(call), mark) if mark.as_ref().is_none_or(|(place, ..)| call < *place) => {
                let written;
                (written, rest) = tagged(&rest[call + OPEN.len()..]);
                calls.push(written);
            }
            (_, Some((_, Mark::Open { close }, inside))) => {
                has_thought = true;
                let Some((_, after)) = inside.split_once(close) else {
                    return calls;
                };
                rest = after;
            }
            (_, Some((_, Mark::Close, after))) => {
                // The thought that ends here had no beginning, so all before it was thought.
                if !has_thought {
                    calls.clear();
                }
                has_thought = true;
                rest = after;
            }
            (Some(_), None) => unreachable!("a call without a mark is the first of both"),
        }
    }
}

/// The call behind a tag, and what follows it. JSON may have tags in its texts, so it ends where it
/// ends as JSON.
fn tagged(text: &str) -> (Written, &str) {
    match Json::first(text) {
        Ok((call, rest)) => {
            let rest = rest.trim_start();
            let after = if rest.starts_with(OPEN) || rest.is_empty() {
                Some(rest)
            } else {
                rest.strip_prefix(CLOSE)
            };
            after.map_or_else(
                || (Err(goes_on(rest)), behind_tag(rest)),
                |after| (Ok(call), after),
            )
        }
        Err(error) => (Err(no_json(&error)), behind_tag(text)),
    }
}

/// Text behind a call whose JSON has no end: from its closing tag, or from the next opening one.
fn behind_tag(text: &str) -> &str {
    let close = text.find(CLOSE).map(|place| place + CLOSE.len());
    let end = close.into_iter().chain(text.find(OPEN)).min();
    &text[end.unwrap_or(text.len())..]
}

fn llama3(turn: &str, tools: &[Tool], thoughts: &Thoughts) -> Vec<Written> {
    let whole = thoughts
        .after_all(turn)
        .trim()
        .trim_start_matches(PYTHON)
        .trim();
    let mut written = Vec::new();
    let mut rest = whole;
    let mut is_call = false;
    while rest.starts_with('{') {
        match Json::first(rest) {
            Ok((value, after)) => {
                is_call |= names_a_call(&value, tools);
                written.push(Ok(value));
                rest = after
                    .trim_start_matches(|c: char| c == ';' || c.is_whitespace())
                    .trim_start_matches(PYTHON);
            }
            Err(error) => {
                is_call |= looks_like_a_call(rest, tools);
                written.push(Err(no_json(&error)));
                rest = "";
            }
        }
    }
    if !rest.is_empty() {
        written.push(Err(goes_on(rest)));
    }
    // An object may be the answer.
    if is_call { written } else { Vec::new() }
}

fn names_a_call(value: &Json, tools: &[Tool]) -> bool {
    let Some(name) = value.get("name").and_then(Json::text) else {
        return false;
    };
    ARGUMENTS.iter().any(|key| value.get(key).is_some())
        || tools.iter().any(|tool| tool.name == name)
}

/// True for a text that is not JSON, but has the keys of a call.
fn looks_like_a_call(text: &str, tools: &[Tool]) -> bool {
    static NAME: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#""name"\s*:\s*"([^"]*)""#).expect("the pattern is a constant")
    });
    let has_arguments = ARGUMENTS
        .iter()
        .any(|key| text.contains(&format!("\"{key}\"")));
    NAME.captures(text)
        .is_some_and(|name| has_arguments || tools.iter().any(|tool| tool.name == name[1]))
}

fn no_json(error: &serde_json::Error) -> String {
    format!("the call is not valid JSON: {error}")
}

fn goes_on(rest: &str) -> String {
    let rest = rest.split(CLOSE).next().unwrap_or(rest).trim_end();
    let rest: String = rest.chars().take(QUOTED).collect();
    format!("the call is not valid JSON: behind its end stands `{rest}`")
}

/// The call, if it can be made. `key` is the name of the arguments in the template's format.
fn made(written: Written, key: &str, tools: &[Tool]) -> Result<Call, Unmade> {
    let (call, tool) = named(written, tools).map_err(|error| Unmade {
        tool: tools.first().map_or("", |tool| &tool.name).to_owned(),
        error,
    })?;
    let name = tool.name.clone();
    match checked(call, tool, key) {
        Ok(arguments) => Ok(Call { name, arguments }),
        Err(error) => Err(Unmade { tool: name, error }),
    }
}

/// What a call has beside its name, and the tool that it names.
fn named(written: Written, tools: &[Tool]) -> Result<(IndexMap<String, Json>, &Tool), String> {
    let Json::Object(mut call) = written? else {
        return Err("the call is not a JSON object".into());
    };
    let Some(Json::Text(name)) = call.shift_remove("name") else {
        return Err("the call has no `name`".into());
    };
    let Some(tool) = tools.iter().find(|tool| tool.name == name) else {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        return Err(format!(
            "there is no tool `{name}` (there are: {})",
            names.join(", ")
        ));
    };
    Ok((call, tool))
}

/// The arguments of a call, which fit the tool's schema.
fn checked(call: IndexMap<String, Json>, tool: &Tool, key: &str) -> Result<String, String> {
    let name = &tool.name;
    let arguments = arguments(call, name, key)?;
    tool.check(&arguments)
        .map_err(|error| format!("`{name}`: {error}"))?;
    Ok(arguments.to_string())
}

/// The arguments in what a call has beside its name.
fn arguments(mut call: IndexMap<String, Json>, name: &str, key: &str) -> Result<Json, String> {
    let given = ARGUMENTS.map(|key| call.shift_remove(key).map(|value| (key, value)));
    let arguments = match given {
        [Some(_), Some(_)] => {
            return Err(format!(
                "the call of `{name}` has `arguments` and `parameters` (write one)"
            ));
        }
        [Some((_, Json::Null)), None] | [None, Some((_, Json::Null))] | [None, None] => {
            Json::Object(IndexMap::new())
        }
        [Some((_, arguments @ Json::Object(_))), None]
        | [None, Some((_, arguments @ Json::Object(_)))] => arguments,
        [Some((key, _)), None] | [None, Some((key, _))] => {
            return Err(format!("`{key}` of `{name}` is not a JSON object"));
        }
    };
    // Some models write keys that an API's client adds to a call. They mean nothing here.
    call.retain(|key, value| !(key == "id" || key == "type" && value.text() == Some("function")));
    match call.keys().next() {
        Some(unknown) => Err(format!(
            "a call has no key `{unknown}` (that of `{name}` has `name` and `{key}`)"
        )),
        None => Ok(arguments),
    }
}

#[cfg(test)]
mod tests;
