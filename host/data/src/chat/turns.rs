//! The text that a chat template writes between two turns of the assistant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use capo_system::terminal;
use serde_json::json;

use super::calls::{Call, CallFormat, MARKS, Unmade};
use super::escaped::Special;
use super::thoughts::{Marks, Thoughts};
use super::tools::Tool;
use super::{Chat, Messages, Reply};
use crate::Tokenizer;
use crate::exact::Json;

/// Texts in place of those of a conversation, which are easy to find in what a template writes.
const ANSWER: &str = "Zanswered";
const REPLY: &str = "Zreplied";
const ARGUMENT: &str = "Zargument";
/// A text that some templates drop from turns before the last.
const THOUGHT: &str = "Zthought";

/// Writes the tokens that follow a turn: the replies as a chat template formats them, or without a
/// template their contents.
#[derive(Clone, Debug)]
pub struct Turns {
    chat: Option<Chat>,
    tools: Vec<Tool>,
    /// How the model writes calls; `None` if it has no tools.
    format: Option<CallFormat>,
    /// How the model marks its thoughts.
    thoughts: Thoughts,
    /// The ids with which the template ends a turn, up to its last end token; empty if it writes no
    /// end token.
    end: Vec<u32>,
    /// The lines of text that the template writes before, between and after contents.
    marks: Vec<String>,
    /// The special tokens that the template writes around replies, for each sequence of kinds that
    /// was seen.
    special: Arc<Mutex<BTreeMap<Kinds, Special>>>,
}

/// How a template treats the thoughts of a turn that another turn follows.
#[derive(PartialEq)]
enum Earlier {
    Kept,
    Rewritten,
}

impl Turns {
    /// Checks that the template continues where a turn ends, and that it knows tools, if there are
    /// any. A template that drops the thinking of earlier turns is refused, unless
    /// `keeps_thinking`: the model then reads its earlier thinking.
    pub fn open(
        chat: Option<Chat>,
        tokenizer: &Tokenizer,
        tools: &[Tool],
        keeps_thinking: bool,
    ) -> Result<Self> {
        let thoughts = Thoughts::of(chat.as_ref(), tokenizer);
        let Some(chat) = chat else {
            if let Some(Tool { name, .. }) = tools.first() {
                terminal::warn(&format!(
                    "prompts are plain text, so nothing tells the model of the tool `{name}` \
                     (set `data.format` to `chat`, or have the prompts tell of it; \
                     calls are read as JSON in `<tool_call>`)"
                ));
            }
            return Ok(Self {
                chat: None,
                tools: tools.to_vec(),
                format: (!tools.is_empty()).then_some(CallFormat::Hermes),
                thoughts,
                end: Vec::new(),
                marks: Vec::new(),
                special: Arc::default(),
            });
        };
        let earlier = chat.earlier_thoughts(&thoughts)?;
        let format = match tools {
            [] => None,
            [first, ..] => Some(chat.call_format(first)?),
        };
        // All else fits, so this advice works.
        ensure!(
            earlier == Earlier::Kept || keeps_thinking,
            "the chat template {} leaves the thoughts of earlier turns out, \
             or writes them in another way, but the model has said them already \
             (set `environment.keep_thinking` to true: with that this template works, \
             and the model goes on reading its thoughts)",
            chat.place()
        );
        let end = chat.end_of_turn(tokenizer)?;
        let marks = chat.lines_between(!tools.is_empty())?;
        Ok(Self {
            chat: Some(chat),
            tools: tools.to_vec(),
            format,
            thoughts,
            end,
            marks,
            special: Arc::default(),
        })
    }

    /// The text of the turns and replies with these ids. A chat template marks turns with special
    /// tokens; in plain text these mean nothing.
    pub fn text(&self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<String> {
        if self.chat.is_some() {
            tokenizer.decode_with_special(ids)
        } else {
            tokenizer.decode(ids)
        }
    }

    /// How the model writes calls; `None` if it has no tools.
    pub fn call_format(&self) -> Option<CallFormat> {
        self.format
    }

    /// The calls in a turn, in their order; none without tools.
    pub fn calls(&self, tokenizer: &Tokenizer, turn: &[u32]) -> Result<Vec<Result<Call, Unmade>>> {
        let Some(format) = self.format else {
            return Ok(Vec::new());
        };
        let kept: Vec<&str> = MARKS.into_iter().chain(self.thoughts.words()).collect();
        Ok(format.calls(
            &tokenizer.decode_with(turn, &kept)?,
            &self.tools,
            &self.thoughts,
        ))
    }

    /// A prompt with `opening` at its end, or in its last message if it is a conversation.
    pub fn opened(&self, tokenizer: &Tokenizer, prompt: &str, opening: &str) -> Result<String> {
        if opening.is_empty() {
            return Ok(prompt.to_owned());
        }
        let (before, end) = self.split(prompt)?;
        // A prompt that cannot be encoded is an error where it is encoded.
        let own = tokenizer
            .ids(prompt)
            .map(|ids| tokenizer.special_among(&ids))
            .unwrap_or_default();
        unforged(&own, tokenizer, |escape| {
            let whole = format!("{before}{}{end}", escape(opening, &self.marks));
            let ids = tokenizer.ids(&whole).unwrap_or_default();
            Ok((whole, ids))
        })
    }

    /// The prompt up to the end of its last message, and the rest.
    fn split<'a>(&self, prompt: &'a str) -> Result<(&'a str, &'a str)> {
        let Some(chat) = &self.chat else {
            return Ok((prompt, ""));
        };
        let asked = chat.prompt(&Messages::user(REPLY))?;
        let (_, end) = asked
            .rsplit_once(REPLY)
            .context("the chat template leaves the user's text out")?;
        let before = prompt.strip_suffix(end).with_context(|| {
            format!(
                "the chat template {} writes the end of this prompt in another way than that \
                 of a user's message (a prompt that an environment goes on with ends with one)",
                chat.place()
            )
        })?;
        Ok((before, &prompt[before.len()..]))
    }

    /// Token ids that follow a turn with these replies. `ended` is true if the turn has its end
    /// token.
    pub fn after(&self, tokenizer: &Tokenizer, ended: bool, replies: &[Reply]) -> Result<Vec<u32>> {
        let own = self.own_special(tokenizer, replies)?;
        let ids = unforged(&own, tokenizer, |escape| {
            let ids = self.written(tokenizer, replies, &|text| escape(text, &self.marks))?;
            Ok((ids.clone(), ids))
        })?;
        if !ended {
            return Ok(ids);
        }
        // The turn ends with a token that the template writes too.
        let rest = match ids.strip_prefix(&self.end[..]) {
            Some(rest) if !self.end.is_empty() => rest,
            _ => match ids.split_first() {
                Some((first, rest)) if tokenizer.eos_ids().contains(first) => rest,
                _ => &ids[..],
            },
        };
        Ok(rest.to_vec())
    }

    /// Token ids that are written between two turns for these replies, whose texts are escaped.
    fn written(
        &self,
        tokenizer: &Tokenizer,
        replies: &[Reply],
        escape: &dyn Fn(&str) -> String,
    ) -> Result<Vec<u32>> {
        let Some(chat) = &self.chat else {
            // Two contents may make a token together.
            let text = escape(
                &replies
                    .iter()
                    .map(|reply| reply.content.as_str())
                    .collect::<String>(),
            );
            return if text.is_empty() {
                Ok(Vec::new())
            } else {
                tokenizer.encode_after(&text)
            };
        };
        let mut replies = replies.to_vec();
        for reply in &mut replies {
            reply.content = escape(&reply.content);
            // The model knows its tools by their names.
            if !self.tools.iter().any(|tool| tool.name == reply.name) {
                reply.name = escape(&reply.name);
            }
        }
        let whole = chat.answered(&Messages::user("asked"), ANSWER, &replies)?;
        let (_, after) = whole
            .split_once(ANSWER)
            .context("the chat template leaves the assistant's text out")?;
        tokenizer.encode_after(after)
    }

    /// The special tokens that the template itself writes around replies like these.
    fn own_special(&self, tokenizer: &Tokenizer, replies: &[Reply]) -> Result<Special> {
        if self.chat.is_none() {
            return Ok(Special::new());
        }
        let kinds: Kinds = replies
            .iter()
            .map(|reply| (reply.role.clone(), !reply.name.is_empty()))
            .collect();
        let mut known = self.special.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = known.get(&kinds) {
            return Ok(own.clone());
        }
        let mut plain: Vec<Reply> = Vec::with_capacity(kinds.len());
        for (role, is_named) in &kinds {
            let mut reply = reply(role);
            if !is_named {
                reply.name.clear();
            }
            plain.push(reply);
        }
        let own = tokenizer.special_among(&self.written(tokenizer, &plain, &str::to_owned)?);
        known.insert(kinds, own.clone());
        Ok(own)
    }
}

/// The roles of some replies, and whether each has a name.
type Kinds = Vec<(String, bool)>;

/// The result of `write`, which escapes texts and also returns the ids of what it wrote. A template
/// or a tokenizer may change a text after it was escaped. If that makes a special token, more of
/// them than in `own`, the texts are spelled out.
fn unforged<T>(
    own: &Special,
    tokenizer: &Tokenizer,
    write: impl Fn(&dyn Fn(&str, &[String]) -> String) -> Result<(T, Vec<u32>)>,
) -> Result<T> {
    let (written, ids) = write(&|text, marks| tokenizer.escaped(text, marks))?;
    if tokenizer.forged(&ids, own).is_none() {
        return Ok(written);
    }
    let (written, ids) = write(&|text, marks| tokenizer.spelled_out(text, marks))?;
    match tokenizer.forged(&ids, own) {
        None => Ok(written),
        Some(token) => bail!(
            "the chat template or the tokenizer makes the special token `{token}` of its text, \
             which would end the environment's message (give a template \
             with `data.chat_template` that leaves contents as they are)"
        ),
    }
}

/// The lines of a text without its contents.
fn lines(text: &str) -> Vec<String> {
    text.split(REPLY)
        .flat_map(str::lines)
        .map(|line| line.trim().to_owned())
        .collect()
}

fn reply(role: &str) -> Reply {
    Reply {
        role: role.to_owned(),
        name: "tool".into(),
        content: REPLY.into(),
    }
}

impl Chat {
    /// The text of `messages`, the assistant's `answer` and `replies`. With replies it prompts for
    /// the next answer.
    fn answered(&self, messages: &Messages, answer: &str, replies: &[Reply]) -> Result<String> {
        let mut answered = self.begun(messages).and("assistant", answer);
        for reply in replies {
            answered = answered.and_reply(reply);
        }
        self.write(&answered, !replies.is_empty())
    }

    /// Checks that the template leaves a turn as it was said once a reply follows, and finds what
    /// it does with a turn's thoughts.
    fn earlier_thoughts(&self, thoughts: &Thoughts) -> Result<Earlier> {
        let place = self.place();
        let asked = Messages::user("asked");
        let prompt = self.prompt(&asked)?;
        // If the prompt begins a thought, a turn has only the rest of it. If the prompt has a whole
        // thought, a turn has none.
        let (_, prompted) = prompt.rsplit_once("asked").unwrap_or_default();
        let is_done = !thoughts.is_open() && thoughts.words().any(|mark| prompted.contains(mark));
        let mut tried = Vec::new();
        if !thoughts.is_open() {
            tried.push(String::new());
        }
        if !is_done {
            for Marks { open, close } in thoughts.marks() {
                let begin = match thoughts.is_open() {
                    true => String::new(),
                    false => format!("{open}\n"),
                };
                tried.push(format!("{begin}{THOUGHT}\n{close}\n\n"));
            }
        }
        let mut earlier = Earlier::Kept;
        for thought in tried {
            let twice = self.answered(&asked, &(thought.clone() + ANSWER), &[reply("user")])?;
            let Some((before, after)) = twice.split_once(ANSWER) else {
                bail!("the chat template {place} leaves the assistant's text out");
            };
            ensure!(
                after.contains(REPLY),
                "the chat template {place} leaves out what is said after the assistant's turn"
            );
            let written = before.strip_prefix(prompt.trim_end()).map(str::trim);
            // A turn without a thought gets an empty one from some templates.
            let is_kept = written.is_some_and(|written| {
                written == thought.trim() || (thought.is_empty() && thoughts.is_blank(written))
            });
            ensure!(
                is_kept || !thought.is_empty() || is_done,
                "the chat template {place} writes a turn in another way once it is answered, \
                 but the model has said it already \
                 (give one with `data.chat_template` that leaves earlier turns as they are)"
            );
            if !is_kept {
                earlier = Earlier::Rewritten;
            }
        }
        Ok(earlier)
    }

    /// The ids with which the template ends a turn, up to its last end token: a model that ends
    /// draws the end token once. Source: `_get_tool_suffix_ids` of TRL's `GRPOTrainer`.
    fn end_of_turn(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
        // Some templates refuse a conversation that the assistant ends.
        let Ok(whole) = self.answered(&Messages::user("asked"), ANSWER, &[]) else {
            return Ok(Vec::new());
        };
        let Some((_, end)) = whole.split_once(ANSWER).filter(|(_, end)| !end.is_empty()) else {
            return Ok(Vec::new());
        };
        let mut ids = tokenizer.encode_after(end)?;
        let last = ids.iter().rposition(|id| tokenizer.eos_ids().contains(id));
        ids.truncate(last.map_or(0, |last| last + 1));
        Ok(ids)
    }

    /// The lines of text that the template writes before, between and after contents.
    fn lines_between(&self, has_tools: bool) -> Result<Vec<String>> {
        let asked = Messages::user("asked");
        let twice = self.answered(&asked, ANSWER, &[reply("user")])?;
        let mut marks = twice
            .split_once(ANSWER)
            .map_or(Vec::new(), |(_, after)| lines(after));
        if let Ok(twice) = self.answered(&asked, ANSWER, &[reply("tool"), reply("tool")])
            && let Some((_, after)) = twice.split_once(ANSWER).filter(|_| has_tools)
        {
            marks.extend(lines(after));
        }
        // Some templates refuse a message of the system.
        if let Ok(begun) = self.prompt(&Messages::user(ANSWER).after("system", REPLY))
            && let Some((before, _)) = begun.split_once(ANSWER)
        {
            // Lines of a tool's schema begin no turn, and results may have their like.
            marks.extend(
                lines(before)
                    .into_iter()
                    .filter(|line| !line.starts_with(['"', '{', '}', ']'])),
            );
        }
        Ok(marks)
    }

    /// The format in which the template writes calls of `tool`.
    fn call_format(&self, tool: &Tool) -> Result<CallFormat> {
        let mend = "(give one with `data.chat_template` that has tools)";
        let place = self.place();
        let prompt = self.prompt(&Messages::user("asked"))?;
        ensure!(
            prompt.contains(&tool.name),
            "the chat template {place} does not tell the model of the tool `{}` {mend}",
            tool.name
        );
        let arguments = json!({"argument": ARGUMENT});
        let function = json!({"name": tool.name, "arguments": arguments});
        let call = json!({"type": "function", "function": function});
        let messages = json!([
            {"role": "user", "content": "asked"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": tool.name, "content": REPLY},
        ]);
        let text = self.write(
            &Messages::of(&Json::parse(&messages.to_string())?, "messages")?,
            true,
        )?;
        ensure!(
            text.contains(REPLY),
            "the chat template {place} leaves out the results of tools {mend}"
        );
        // The template may name the markers of a call in its description of the tools too.
        let called = text
            .split_once(ARGUMENT)
            .and_then(|(before, _)| CallFormat::of(before));
        called.with_context(|| {
            format!(
                "the chat template {place} writes calls of tools in a format that is not known \
                 (those of Hermes, Qwen and Llama 3 are) {mend}"
            )
        })
    }
}
