//! Episodes of several turns: the model and an environment answer each other while completions are sampled.
//!
//! The sampler's threads hand over turns that have ended and go on with other rows. The thread that called hands all turns that wait to the
//! environment at once, and returns each observation to its row as soon as it is there.

mod line;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_plugin::{EnvironmentHandle, Episode, Episodes, Observation, Purpose, Sink, Turn};

use crate::config::EnvironmentConfig;
use crate::data::{Call, Chat, Example, Reply, Tokenizer, Tool, Turns};
use line::{Heard, Line};

/// Time between two questions for observations that are not ready.
const PAUSE: Duration = Duration::from_millis(1);

/// The environment of a run.
pub struct Environment {
    component: EnvironmentHandle,
    tools: Vec<Tool>,
    turns: Turns,
    config: EnvironmentConfig,
}

/// What an episode was, besides its tokens.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Text that the environment added to the prompt.
    pub opening: String,
    /// The messages after the prompt.
    pub messages: Vec<Said>,
    /// Sum of the environment's rewards, reward units.
    pub reward: f32,
    /// True if the environment ended the episode.
    pub ended: bool,
    /// Number of calls of tools, and of those that could not be made.
    pub calls: [usize; 2],
    /// Numbers for metrics, in the order of the observations.
    pub metrics: Vec<(String, f64)>,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Said {
    pub role: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub content: String,
}

/// Where and when episodes begin.
#[derive(Debug, Clone, Copy)]
pub struct Stage {
    pub purpose: Purpose,
    pub step: u64,
    pub max_steps: u64,
    /// Longest completion, tokens, with those that the environment adds.
    pub max_completion_length: usize,
}

impl Environment {
    pub fn new(component: EnvironmentHandle, tools: Vec<Tool>, chat: Option<Chat>, config: EnvironmentConfig) -> Result<Self> {
        let turns = Turns::open(chat, &tools, config.keep_thinking)?;
        Ok(Self { component, tools, turns, config })
    }

    /// The schemas of a component's tools.
    pub fn tools(component: &EnvironmentHandle) -> Result<Vec<Tool>> {
        let mut tools: Vec<Tool> = Vec::new();
        for (number, text) in component.tools()?.iter().enumerate() {
            let tool = Tool::parse(text)
                .map_err(|error| anyhow!("component `{}`: the schema of tool {}: {error}", component.id(), number + 1))?;
            ensure!(
                tools.iter().all(|other| other.name != tool.name),
                "component `{}`: two tools have the name `{}` (give each its own)",
                component.id(),
                tool.name
            );
            tools.push(tool);
        }
        Ok(tools)
    }

    pub fn component(&self) -> &EnvironmentHandle {
        &self.component
    }

    pub fn component_mut(&mut self) -> &mut EnvironmentHandle {
        &mut self.component
    }

    /// Begins an episode for each example. `indices` are the number of the prompt of each, and its place in its group.
    pub fn begin(
        &mut self,
        sink: &mut dyn Sink,
        examples: &[&Example],
        indices: &[[u64; 2]],
        seed: impl Fn(u64) -> u64,
        stage: Stage,
    ) -> Result<Vec<Conversation>> {
        let mut episodes = Episodes::new(Vec::with_capacity(examples.len()));
        (episodes.purpose, episodes.step, episodes.max_steps) = (stage.purpose, stage.step, stage.max_steps);
        episodes.max_turns = self.config.max_turns;
        for (number, (example, [group, place])) in examples.iter().zip(indices).enumerate() {
            let mut episode = Episode::new(number as u64, &example.prompt);
            (episode.answer, episode.columns) = (&example.answer, &example.columns);
            (episode.group, episode.place, episode.seed) = (*group, *place, seed(*group));
            episodes.episodes.push(episode);
        }
        let openings = self.component.begin(sink, &episodes)?;
        Ok(openings.into_iter().map(|opening| Conversation { opening, ..Conversation::default() }).collect())
    }

    /// Runs `generate`, which samples completions with the partners that it is given, and answers their turns until it returns.
    pub fn converse<T: Send>(
        &mut self,
        sink: &mut dyn Sink,
        tokenizer: &Tokenizer,
        conversations: &mut [Conversation],
        stage: Stage,
        generate: impl FnOnce(&line::Lines) -> Result<T> + Send,
    ) -> Result<T> {
        let (lines, heard) = line::lines();
        std::thread::scope(|scope| {
            let sampler = scope.spawn(move || {
                // A GPU's context belongs to the threads of the pool.
                let sampled = rayon::scope(|_| generate(&lines));
                drop(lines);
                sampled
            });
            let answered = Server { environment: self, tokenizer, conversations, stage, waiting: Vec::new() }.serve(sink, &heard);
            // The sampler ends at once where nobody listens.
            drop(heard);
            let sampled = sampler.join().map_err(|_| anyhow!("the sampler panicked"))?;
            answered?;
            sampled
        })
    }
}

/// Answers the turns of one rollout.
struct Server<'a> {
    environment: &'a mut Environment,
    tokenizer: &'a Tokenizer,
    conversations: &'a mut [Conversation],
    stage: Stage,
    /// Turns without an observation so far, and since when they wait.
    waiting: Vec<(Heard, Instant)>,
}

impl Server<'_> {
    fn serve(mut self, sink: &mut dyn Sink, heard: &Receiver<Heard>) -> Result<()> {
        loop {
            let first = match self.waiting.is_empty() {
                true => heard.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => heard.recv_timeout(PAUSE),
            };
            let new: Vec<Heard> = match first {
                Ok(first) => std::iter::once(first).chain(heard.try_iter()).collect(),
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                // Whoever waits for an observation holds its line, so nobody waits.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            self.ask(sink, new)?;
        }
    }

    /// Hands `new` turns to the environment, and its observations to their rows.
    fn ask(&mut self, sink: &mut dyn Sink, new: Vec<Heard>) -> Result<()> {
        let mut texts = Vec::with_capacity(new.len());
        for heard in &new {
            texts.push(self.tokenizer.decode(&heard.ids).context("a sampled turn is not text")?);
        }
        let mut turns = Vec::with_capacity(new.len());
        for (heard, text) in new.iter().zip(&texts) {
            let conversation = &mut self.conversations[heard.row];
            conversation.messages.push(Said { role: "assistant".into(), name: String::new(), content: text.clone() });
            let mut turn = Turn::new(heard.row as u64, text);
            turn.number = heard.number;
            turn.is_last = heard.truncated || heard.number + 1 == self.environment.config.max_turns;
            turns.push(turn);
        }
        let mut refused = Vec::new();
        self.read_calls(&mut turns, &mut refused);
        let now = Instant::now();
        self.waiting.extend(new.into_iter().map(|heard| (heard, now)));
        // A turn whose calls cannot be made is answered here: the model reads what is wrong with them.
        let asked: Vec<Turn<'_>> = turns.into_iter().filter(|turn| refused.iter().all(|(row, _)| *row != turn.episode)).collect();
        for (row, replies) in refused {
            self.answer(row, replies, false)?;
        }
        let observations = self.environment.component.respond(sink, &asked)?;
        for Observation { episode, messages, ended, reward, metrics } in observations {
            let conversation = usize::try_from(episode).ok().and_then(|row| self.conversations.get_mut(row));
            let is_awaited = self.waiting.iter().any(|(heard, _)| heard.row as u64 == episode);
            let Some(conversation) = conversation.filter(|_| is_awaited) else {
                bail!(
                    "component `{}`: an observation of episode {episode}, which waits for none (answer each turn once)",
                    self.environment.component.id()
                );
            };
            conversation.reward += reward;
            conversation.metrics.extend(metrics);
            let replies = messages.into_iter().map(|message| Reply { role: message.role, name: message.name, content: message.content });
            self.answer(episode, replies.collect(), ended)?;
        }
        let limit = self.environment.config.timeout;
        if let Some((heard, _)) = self.waiting.iter().find(|(_, since)| limit > 0.0 && since.elapsed().as_secs_f64() > limit) {
            bail!(
                "component `{}`: turn {} of episode {} has no observation after {limit} s (the limit is `environment.timeout`; 0 waits without one)",
                self.environment.component.id(),
                heard.number + 1,
                heard.row
            );
        }
        Ok(())
    }

    /// Reads the calls of tools in `turns`. Those that cannot be made become replies, in `refused`.
    fn read_calls(&mut self, turns: &mut [Turn<'_>], refused: &mut Vec<(u64, Vec<Reply>)>) {
        let Some(format) = self.environment.turns.call_format() else { return };
        for turn in turns {
            let calls: Vec<Call> = format.calls(turn.text, &self.environment.tools);
            let wrong: Vec<&String> = calls.iter().filter_map(|call| call.as_ref().err()).collect();
            let [all, failed] = &mut self.conversations[turn.episode as usize].calls;
            (*all, *failed) = (*all + calls.len(), *failed + wrong.len());
            let reply = |error: &&String| Reply { role: "tool".into(), name: String::new(), content: format!("error: {error}") };
            if !wrong.is_empty() && !turn.is_last {
                refused.push((turn.episode, wrong.iter().map(reply).collect()));
            }
            let made = calls.into_iter().filter_map(Result::ok);
            let call = |(name, arguments): (String, serde_json::Map<_, _>)| capo_plugin::ToolCall {
                name,
                arguments: serde_json::Value::Object(arguments).to_string(),
            };
            turn.calls = made.map(call).collect();
        }
    }

    /// Hands replies to the row of an episode, cut to the longest observation, or ends the row.
    fn answer(&mut self, episode: u64, replies: Vec<Reply>, ended: bool) -> Result<()> {
        let place = self.waiting.iter().position(|(heard, _)| heard.row as u64 == episode).context("the row waits")?;
        let (heard, _) = self.waiting.swap_remove(place);
        let config = &self.environment.config;
        let conversation = &mut self.conversations[heard.row];
        conversation.ended = ended;
        let is_last = ended || heard.truncated || heard.number + 1 == config.max_turns || replies.is_empty();
        if is_last {
            return Ok(heard.reply(None));
        }
        let replies: Vec<Reply> = replies.into_iter().map(|reply| self.environment.cut(self.tokenizer, reply)).collect::<Result<_>>()?;
        let ids = self.environment.turns.after(self.tokenizer, heard.ended, &replies)?;
        // The model needs room for a turn.
        if heard.length + ids.len() >= self.stage.max_completion_length {
            return Ok(heard.reply(None));
        }
        let said = |reply: Reply| Said { role: reply.role, name: reply.name, content: reply.content };
        conversation.messages.extend(replies.into_iter().map(said));
        Ok(heard.reply(Some(ids)))
    }
}

impl Environment {
    /// The reply with at most `max_observation_length` tokens of content; what was cut is said at its end.
    fn cut(&self, tokenizer: &Tokenizer, reply: Reply) -> Result<Reply> {
        let limit = self.config.max_observation_length;
        // No token is longer than its text, so a short text needs no look.
        if reply.content.len() <= limit || reply.content.is_empty() {
            return Ok(reply);
        }
        let ids = tokenizer.encode(&tokenizer.escaped(&reply.content))?;
        if ids.len() <= limit {
            return Ok(reply);
        }
        let kept = tokenizer.decode(&ids[..limit])?;
        let content = format!("{kept} [cut: {limit} of {} tokens]", ids.len());
        Ok(Reply { content, ..reply })
    }
}
