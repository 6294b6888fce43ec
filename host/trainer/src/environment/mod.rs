//! Episodes of several turns: the model and an environment answer each other while completions are
//! sampled.
//!
//! The sampler's threads hand over turns that have ended, and go on with other rows. The calling
//! thread hands all waiting turns to the environment at once, and passes each observation to its
//! row as soon as it arrives.

mod line;

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_loader::offer::Origin;
use capo_loader::registry::Registry;
use capo_loader::watchdog::Watchdog;
use capo_plugin::{
    EnvironmentHandle, Episode, Episodes, Observation, Point, Purpose, Sink, ToolCall, Turn,
};
use capo_system::terminal;
use host_data::{Call, Example, Reply, Tokenizer, Tool, Turns, Unmade};
use host_model::ModelFiles;
use serde::Serialize;

use crate::config::{Config, EpisodeConfig};
use crate::reward;
use line::{Heard, Lines};

/// Pause before the environment is asked again for observations that were not ready.
const PAUSE: Duration = Duration::from_millis(1);

/// Name of the number by which an environment counts failed calls. It becomes a part of
/// `tools/failure_frequency`, and not a metric of its own.
const FAILED_CALLS: &str = "failed_calls";

/// The environment of a run.
pub struct Environment {
    component: EnvironmentHandle,
    turns: Turns,
    config: EpisodeConfig,
    /// True if all rewards of the run are known not to read the environment's rewards.
    is_unread: bool,
    /// Seconds for which an episode waits for an observation; 0 is no limit.
    timeout: u64,
}

/// One episode: its messages, reward and tool calls.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The prompt, with what the environment added to it.
    pub prompt: String,
    /// The messages after the prompt.
    pub messages: Vec<Said>,
    /// Sum of the environment's rewards, reward units.
    pub reward: f32,
    /// True if the environment ended the episode.
    pub ended: bool,
    /// True if an observation did not fit into the completion, or the last turn has no end token,
    /// so that it may be only the beginning of one.
    pub cut: bool,
    /// The tool calls; `None` if there are no tools.
    pub calls: Option<CallCount>,
    /// The messages as JSON.
    pub json: String,
    /// The text after the prompt, as the model reads it, without the last turn's end token.
    pub text: String,
    /// Numbers that the environment measured, until they are recorded.
    pub metrics: Vec<(String, f64)>,
}

/// The number of tool calls in an episode.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallCount {
    /// All calls, failed ones included.
    pub all: usize,
    /// Calls that could not be made, or that failed.
    pub failed: usize,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Said {
    pub role: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    pub content: String,
}

impl Conversation {
    /// Takes the numbers of an observation. The number of failed tool calls is counted, and the
    /// others become metrics.
    fn measured(&mut self, metrics: Vec<(String, f64)>) {
        for (name, value) in metrics {
            match &mut self.calls {
                Some(calls) if name == FAILED_CALLS => {
                    let failed = calls.failed + value.max(0.0) as usize;
                    calls.failed = failed.min(calls.all);
                }
                _ => self.metrics.push((name, value)),
            }
        }
    }

    /// The model's turns.
    pub fn turns(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.messages
            .iter()
            .filter(|said| said.role == "assistant")
            .map(|said| said.content.as_str())
    }
}

/// Where some episodes stand in a run.
#[derive(Debug, Clone, Copy)]
pub struct Stage<'a> {
    pub purpose: Purpose,
    pub step: u64,
    pub max_steps: u64,
    /// The run's seed.
    pub seed: u64,
    /// For each episode, the number of its prompt and its place in its group.
    pub indices: &'a [[u64; 2]],
}

impl Stage<'_> {
    /// Seed of the episodes of a group. It has 53 bits, so that programs in every language read it
    /// exactly.
    fn seed(&self, group: u64) -> u64 {
        let stream = if self.purpose == Purpose::TRAINING {
            "environment.episode"
        } else {
            "environment.evaluation"
        };
        host_rng::below(&mut host_rng::stream(self.seed, stream, &[group]), 1 << 53)
    }
}

impl Environment {
    /// Opens the environment of `config`, if it has one, and puts its tools into the prompts.
    pub fn open(
        config: &mut Config,
        registry: &Registry,
        files: &ModelFiles,
        tokenizer: &Tokenizer,
        watchdog: &Watchdog,
    ) -> Result<Option<Self>> {
        let Some(own) = &config.environment else {
            return Ok(None);
        };
        let mut component: EnvironmentHandle = registry.create(&own.component, watchdog)?;
        let schemas = watchdog.watch(&own.component.id, "tools", || component.tools())?;
        let tools =
            Tool::parse_all(&schemas).with_context(|| format!("component `{}`", component.id()))?;
        config.data.tools.clone_from(&tools);
        let chat = config
            .data
            .chat(files, host_data::Purpose::Measuring, tokenizer)?;
        let turns = Turns::open(chat, tokenizer, &tools, own.episode.keep_thinking)?;
        let config_of_episodes = own.episode.clone();
        let is_unread = config
            .reward
            .iter()
            .all(|reward| is_known_not_to_read(&reward.id, registry));
        Ok(Some(Self {
            component,
            turns,
            config: config_of_episodes,
            is_unread,
            timeout: config.train.component_timeout,
        }))
    }

    /// Warns once if the environment gives rewards that no reward component reads.
    pub fn warn_of_reward(&mut self, conversations: &[Conversation]) {
        let has_rewards = conversations.iter().any(|one| one.reward != 0.0);
        if !(self.is_unread && has_rewards) {
            return;
        }
        self.is_unread = false;
        terminal::warn(&format!(
            "the environment `{}` gives rewards, but no `[[reward]]` reads them (add one with \
             `use = \"{}\"`; with `weight = 0` they are only recorded)",
            self.component.id(),
            reward::OF_ENVIRONMENT
        ));
    }

    pub fn component(&self) -> &EnvironmentHandle {
        &self.component
    }

    pub fn component_mut(&mut self) -> &mut EnvironmentHandle {
        &mut self.component
    }

    /// The text of the tokens `ids` that follow a prompt, as the model reads it.
    pub fn text(&self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<String> {
        self.turns.text(tokenizer, ids)
    }

    /// Longest turn of the model, tokens; 0 is no limit.
    pub fn max_turn_length(&self) -> usize {
        self.config.max_turn_length
    }

    /// Begins an episode for each example.
    pub fn begin(
        &mut self,
        sink: &mut dyn Sink,
        tokenizer: &Tokenizer,
        examples: &[&Example],
        stage: &Stage<'_>,
    ) -> Result<Vec<Conversation>> {
        let mut episodes = Episodes::new(Vec::with_capacity(examples.len()));
        episodes.purpose = stage.purpose;
        episodes.step = stage.step;
        episodes.max_steps = stage.max_steps;
        episodes.max_turns = self.config.max_turns;
        for ((number, example), [group, place]) in (0..).zip(examples).zip(stage.indices) {
            let mut episode = Episode::new(number, &example.prompt);
            episode.answer = &example.answer;
            episode.columns = &example.columns;
            episode.group = *group;
            episode.place = *place;
            episode.seed = stage.seed(*group);
            episodes.episodes.push(episode);
        }
        let openings = self.component.begin(sink, &episodes)?;
        for (pair, groups) in openings.windows(2).zip(stage.indices.windows(2)) {
            ensure!(
                pair[0] == pair[1] || groups[0][0] != groups[1][0],
                "component `{}`: two episodes of prompt {} begin with different texts (the \
                 episodes of a group have the same seed: draw the beginning by it)",
                self.component.id(),
                groups[0][0]
            );
        }
        let mut conversations = Vec::new();
        for (opening, example) in openings.iter().zip(examples) {
            conversations.push(Conversation {
                prompt: self.turns.opened(tokenizer, &example.prompt, opening)?,
                calls: self.turns.call_format().map(|_| CallCount::default()),
                ..Conversation::default()
            });
        }
        Ok(conversations)
    }

    /// Runs `generate`, which samples completions of at most `longest` tokens, and answers the
    /// turns that come over its lines until it returns.
    pub fn converse<T: Send>(
        &mut self,
        sink: &mut dyn Sink,
        tokenizer: &Tokenizer,
        conversations: &mut [Conversation],
        longest: usize,
        generate: impl FnOnce(&Lines) -> Result<T> + Send,
    ) -> Result<T> {
        let (lines, heard) = line::lines(tokenizer.eos_ids());
        let sampled = std::thread::scope(|scope| {
            // The lines end with the closure.
            let sampler = scope.spawn(move || generate(&lines));
            let mut server = Server {
                environment: self,
                tokenizer,
                conversations,
                longest,
                waiting: Vec::new(),
            };
            let answered = server.serve(sink, &heard);
            // This ends the lines of rows that still wait for an answer.
            drop((server, heard));
            let sampled = sampler
                .join()
                .map_err(|_| anyhow!("the sampler panicked"))?;
            answered.and(sampled)
        })?;
        let id = self.component.id();
        for conversation in conversations.iter_mut() {
            for (name, value) in std::mem::take(&mut conversation.metrics) {
                sink.record(id, &name, value);
            }
        }
        if let Some(objection) = sink.objection() {
            bail!("component `{id}`: {objection}");
        }
        for conversation in conversations {
            conversation.json = serde_json::to_string(&conversation.messages)?;
        }
        Ok(sampled)
    }

    /// The reply, cut to `max_observation_length` tokens. A note at its end says that it was cut.
    fn shortened(&self, tokenizer: &Tokenizer, reply: Reply) -> Result<Reply> {
        let limit = self.config.max_observation_length;
        // A token has at least one byte of text, so this text is short enough.
        if reply.content.len() <= limit {
            return Ok(reply);
        }
        // Only the beginning of a very long text is encoded.
        let most = reply.content.floor_char_boundary(limit.saturating_mul(64));
        let text = &reply.content[..most];
        let ids = tokenizer.encode(&tokenizer.escaped(text, &[]))?;
        if ids.len() <= limit && most == reply.content.len() {
            return Ok(reply);
        }
        let kept = tokenizer.decode(&ids[..limit.min(ids.len())])?;
        // Some tokenizers lack the characters of a note, so there are two.
        let notes = [format!(" [cut after {limit} tokens]"), "...".to_owned()];
        let note = notes
            .into_iter()
            .find(|note| tokenizer.encode(note).is_ok())
            .unwrap_or_default();
        Ok(Reply {
            content: kept + &note,
            ..reply
        })
    }
}

/// True for a built-in reward, unless it is the one that reads the environment's. A plugin's reward
/// may read the environment's too.
fn is_known_not_to_read(id: &str, registry: &Registry) -> bool {
    id != reward::OF_ENVIRONMENT
        && registry.offers().iter().any(|offer| {
            offer.id == id && offer.point == Point::Reward && offer.origin == Origin::BuiltIn
        })
}

/// Answers the turns of one rollout.
struct Server<'a> {
    environment: &'a mut Environment,
    tokenizer: &'a Tokenizer,
    conversations: &'a mut [Conversation],
    /// Most tokens of a completion, including those that the environment adds.
    longest: usize,
    /// Turns that have no observation yet, each with the time since which it waits.
    waiting: Vec<(Heard, Instant)>,
}

impl Server<'_> {
    /// Answers turns until the sampler has no more.
    fn serve(&mut self, sink: &mut dyn Sink, heard: &Receiver<Heard>) -> Result<()> {
        loop {
            let first = if self.waiting.is_empty() {
                heard.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                heard.recv_timeout(PAUSE)
            };
            let new: Vec<Heard> = match first {
                Ok(first) => std::iter::once(first).chain(heard.try_iter()).collect(),
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                // A waiting row holds its line, so no row waits.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            self.ask(sink, new)?;
            self.check_time()?;
        }
    }

    /// Hands `new` turns to the environment, and its observations to their rows.
    fn ask(&mut self, sink: &mut dyn Sink, new: Vec<Heard>) -> Result<()> {
        let texts = self.texts(&new)?;
        let mut asked = Vec::new();
        let mut refused = Vec::new();
        for (heard, text) in new.iter().zip(&texts) {
            self.conversations[heard.row].messages.push(Said {
                role: "assistant".into(),
                name: String::new(),
                content: text.clone(),
            });
            let mut turn = Turn::new(heard.row as u64, text);
            turn.number = heard.number;
            turn.is_last = self.is_last(heard);
            let errors = self.read_calls(&mut turn, &heard.ids)?;
            // If some call cannot be made, the environment does not see the turn. The model reads
            // the errors instead.
            if errors.is_empty() || turn.is_last {
                asked.push(turn);
            } else {
                refused.push((heard.row as u64, errors));
            }
        }
        self.waiting
            .extend(new.into_iter().map(|heard| (heard, Instant::now())));
        for (row, errors) in refused {
            self.answer(row, errors, false)?;
        }
        for observation in self.environment.component.respond(sink, &asked)? {
            self.observe(observation)?;
        }
        Ok(())
    }

    fn texts(&self, turns: &[Heard]) -> Result<Vec<String>> {
        let mut texts = Vec::new();
        for turn in turns {
            let text = self.tokenizer.decode(&turn.ids);
            texts.push(text.context("a sampled turn is not text")?);
        }
        Ok(texts)
    }

    /// Takes an observation of the environment, and hands its messages to the row of its episode.
    fn observe(&mut self, observation: Observation) -> Result<()> {
        let Observation {
            episode,
            messages,
            ended,
            reward,
            metrics,
        } = observation;
        let id = self.environment.component.id();
        ensure!(
            self.position(episode).is_some(),
            "component `{id}`: an observation of episode {episode}, which waits for none (answer \
             each turn once)"
        );
        let mut replies = Vec::new();
        for capo_plugin::Message {
            role,
            name,
            content,
        } in messages
        {
            ensure!(
                ["user", "tool"].contains(&role.as_str()),
                "component `{id}`: a message of episode {episode} has the role `{role}` (the model \
                 reads those of `user` and `tool`)"
            );
            replies.push(Reply {
                role,
                name,
                content,
            });
        }
        let conversation = &mut self.conversations[episode as usize];
        conversation.reward += reward;
        conversation.measured(metrics);
        self.answer(episode, replies, ended)
    }

    /// Refuses to wait for an observation longer than `train.component_timeout`.
    fn check_time(&self) -> Result<()> {
        let limit = self.environment.timeout;
        for (heard, since) in &self.waiting {
            ensure!(
                limit == 0 || since.elapsed() <= Duration::from_secs(limit),
                "component `{}`: turn {} of episode {} has no observation after {limit} seconds \
                 (the limit is `train.component_timeout`)",
                self.environment.component.id(),
                heard.number + 1,
                heard.row
            );
        }
        Ok(())
    }

    /// True if a limit ends the episode after this turn.
    fn is_last(&self, heard: &Heard) -> bool {
        heard.truncated || heard.number + 1 == self.environment.config.max_turns
    }

    /// Index in `waiting` of the turn of an episode.
    fn position(&self, episode: u64) -> Option<usize> {
        self.waiting
            .iter()
            .position(|(heard, _)| heard.row as u64 == episode)
    }

    /// Reads the tool calls of a turn. Returns an error message for each call that cannot be made.
    fn read_calls(&mut self, turn: &mut Turn<'_>, ids: &[u32]) -> Result<Vec<Reply>> {
        let mut calls = Vec::new();
        let mut errors = Vec::new();
        for call in self.environment.turns.calls(self.tokenizer, ids)? {
            match call {
                Ok(Call { name, arguments }) => calls.push(ToolCall { name, arguments }),
                // Some templates refuse a result without the name of its tool.
                Err(Unmade { tool, error }) => errors.push(Reply {
                    role: "tool".into(),
                    name: tool,
                    content: format!("error: {error}"),
                }),
            }
        }
        if let Some(count) = &mut self.conversations[turn.episode as usize].calls {
            count.all += calls.len() + errors.len();
            count.failed += errors.len();
        }
        turn.calls = calls;
        Ok(errors)
    }

    /// Hands replies to the row of an episode, or ends the row.
    fn answer(&mut self, episode: u64, replies: Vec<Reply>, ended: bool) -> Result<()> {
        let position = self.position(episode).context("the row waits")?;
        let (heard, _) = self.waiting.swap_remove(position);
        let is_last = self.is_last(&heard);
        let environment = &self.environment;
        let conversation = &mut self.conversations[heard.row];
        conversation.ended = ended || replies.is_empty();
        if conversation.ended || is_last {
            conversation.cut = !heard.ended;
            heard.reply(None);
            return Ok(());
        }
        let mut shortened = Vec::new();
        for reply in replies {
            shortened.push(environment.shortened(self.tokenizer, reply)?);
        }
        let ids = environment
            .turns
            .after(self.tokenizer, heard.ended, &shortened)
            .with_context(|| {
                let id = environment.component.id();
                format!("component `{id}`: the model cannot read an observation")
            })?;
        // After the observation, the model needs room for a turn.
        conversation.cut = heard.length + ids.len() >= self.longest;
        if conversation.cut {
            heard.reply(None);
            return Ok(());
        }
        for Reply {
            role,
            name,
            content,
        } in shortened
        {
            conversation.messages.push(Said {
                role,
                name,
                content,
            });
        }
        heard.reply(Some(ids));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_failed_calls_only_with_tools() {
        let measured = |calls| {
            let mut conversation = Conversation {
                calls,
                ..Conversation::default()
            };
            for failed in [1.0, f64::from(1 << 20)] {
                conversation.measured(vec![
                    (FAILED_CALLS.to_owned(), failed),
                    ("won".to_owned(), 1.0),
                ]);
            }
            (conversation.calls, conversation.metrics.len())
        };
        let calls = |all, failed| Some(CallCount { all, failed });
        assert_eq!(measured(calls(3, 0)), (calls(3, 3), 2));
        assert_eq!(
            measured(None),
            (None, 4),
            "without tools it is a metric like others"
        );
    }
}
