//! The messages of a conversation.

use anyhow::{Context, Result, anyhow, bail, ensure};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::exact::Json;
use crate::lenient;

/// The fields of a message by name, in the order of the file.
type Message = IndexMap<String, Json>;

/// Names of a message's field for the author's reasoning; templates read the first name.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A message that the model reads after its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// `user`, or `tool`.
    pub role: String,
    /// Name of the tool; empty for others.
    pub name: String,
    pub content: String,
}

/// The messages of a conversation, at least one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Messages(Vec<Message>);

impl Messages {
    /// A conversation of one user message.
    pub fn user(text: &str) -> Self {
        Self(vec![message("user", text)])
    }

    /// The messages in a column of a row, which is a JSON object.
    pub fn in_row(line: &[u8], column: &str) -> Result<Self> {
        let row = lenient::exact(line).map_err(|error| anyhow!("not valid JSON: {error}"))?;
        let list = at(&row, column).with_context(|| format!("no column `{column}`"))?;
        let messages = Self::of(list, column)?;
        ensure!(
            messages
                .0
                .last()
                .is_some_and(|last| role(last) != "assistant"),
            "the last message of column `{column}` is the assistant's, whose turn comes next \
             (remove it; a solution has a column of its own)"
        );
        Ok(messages)
    }

    /// The messages in a list; `column` is its name in error messages.
    pub(super) fn of(list: &Json, column: &str) -> Result<Self> {
        let messages = list.list().iter().enumerate().map(|(index, message)| {
            read(message).with_context(|| {
                format!("message {} of column `{column}` cannot be used", index + 1)
            })
        });
        let messages = messages.collect::<Result<Vec<_>>>()?;
        ensure!(
            !messages.is_empty(),
            "column `{column}` has no messages (remove the row or fill it in)"
        );
        Ok(Self(messages))
    }

    /// True if the first message is the system's.
    pub(super) fn have_system(&self) -> bool {
        self.0.first().is_some_and(|first| role(first) == "system")
    }

    /// The conversation with one more message at the beginning.
    pub(super) fn after(&self, role: &str, text: &str) -> Self {
        Self(
            std::iter::once(message(role, text))
                .chain(self.0.iter().cloned())
                .collect(),
        )
    }

    /// The conversation with one more message at the end.
    pub(super) fn and(mut self, role: &str, text: &str) -> Self {
        self.0.push(message(role, text));
        self
    }

    /// The conversation with a message of any fields at the end.
    pub(super) fn and_message(mut self, message: &Json) -> Result<Self> {
        self.0.push(read(message)?);
        Ok(self)
    }

    /// The conversation with a reply at the end.
    pub(super) fn and_reply(mut self, reply: &Reply) -> Self {
        let mut message = message(&reply.role, &reply.content);
        if !reply.name.is_empty() {
            message.insert("name".to_owned(), Json::from(reply.name.as_str()));
        }
        self.0.push(message);
        self
    }

    /// The list of the messages.
    pub(super) fn json(&self) -> Json {
        Json::List(self.0.iter().cloned().map(Json::Object).collect())
    }
}

/// The value of a row's column, or of a nested field if the name has dots.
fn at<'a>(row: &'a Json, column: &str) -> Option<&'a Json> {
    row.get(column).or_else(|| {
        let (first, rest) = column.split_once('.')?;
        at(row.get(first)?, rest)
    })
}

fn message(role: &str, text: &str) -> Message {
    [("role", role), ("content", text)]
        .map(|(key, text)| (key.to_owned(), Json::from(text)))
        .into_iter()
        .collect()
}

fn role(message: &Message) -> &str {
    message.get("role").and_then(Json::text).unwrap_or_default()
}

/// A message without its null fields. Its reasoning appears under every name that a template may
/// use.
fn read(value: &Json) -> Result<Message> {
    let Some(fields) = value.object() else {
        bail!(
            "expected an object with `role` and `content`, found {}",
            value.kind()
        );
    };
    let mut message = fields.clone();
    message.retain(|_, said| *said != Json::Null);
    ensure!(
        !role(&message).is_empty(),
        "it has no `role` (give it as text)"
    );
    let [first, second, _] = REASONING;
    if let Some(reasoning) = REASONING
        .iter()
        .find_map(|name| message.get(*name))
        .cloned()
    {
        if !message.contains_key(second) {
            message.shift_insert(0, second.to_owned(), reasoning.clone());
        }
        message.insert(first.to_owned(), reasoning);
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(row: &str) -> Result<Messages> {
        Messages::in_row(row.as_bytes(), "prompt")
    }

    #[test]
    fn keeps_the_order_of_keys_and_drops_null() {
        let messages = read(
            r#"{"prompt": [{"role": "user", "name": null, "zeta": 1, "content": "a", "alpha": {"c": 1, "b": 2}}]}"#,
        );
        let shown = messages.unwrap().json().to_string();
        assert_eq!(
            shown,
            r#"[{"role":"user","zeta":1,"content":"a","alpha":{"c":1,"b":2}}]"#
        );
    }

    #[test]
    fn dots_lead_into_columns() {
        let row =
            br#"{"extra": {"a": {"messages": [{"role": "user", "content": "q"}]}}, "c": "text"}"#;
        for column in [
            "extra.a.messages",
            "c.messages",
            "d.messages",
            "extra.messages",
        ] {
            let found = Messages::in_row(row, column);
            assert_eq!(
                found.is_ok(),
                column == "extra.a.messages",
                "{column}: {found:?}"
            );
        }
    }

    #[test]
    fn copies_reasoning_to_every_name() {
        let row = r#"{"prompt": [{"role": "assistant", "content": "a", "reasoning": "r"}, {"role": "user", "content": "b"}]}"#;
        let first = Json::Object(read(row).unwrap().0[0].clone());
        assert_eq!(
            first.to_string(),
            r#"{"thinking":"r","role":"assistant","content":"a","reasoning":"r","reasoning_content":"r"}"#
        );
    }

    #[test]
    fn refuses_what_is_not_a_conversation() {
        let error = |row: &str| format!("{:#}", read(row).unwrap_err());
        assert_eq!(
            error(r#"{"prompt": [{"role": "user", "content": "a"}, "b"]}"#),
            "message 2 of column `prompt` cannot be used: expected an object with `role` and `content`, found text"
        );
        assert_eq!(
            error(r#"{"prompt": [{"content": "a"}]}"#),
            "message 1 of column `prompt` cannot be used: it has no `role` (give it as text)"
        );
        assert!(
            error(r#"{"prompt": [{"role": "assistant", "content": "a"}]}"#)
                .contains("whose turn comes next")
        );
    }
}
