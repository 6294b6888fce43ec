//! Episodes of several turns: the model and an environment answer each other while completions are
//! sampled.
//!
//! The sampler's threads hand over turns that have ended and go on with other rows. The thread that
//! called hands all turns that wait to the environment at once, and returns each observation to its
//! row as soon as it is there.

mod line;

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_loader::offer::{Offer, Origin};
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

/// Time between two questions for observations that are not ready.
const PAUSE: Duration = Duration::from_millis(1);

/// Name of the environment's number that counts failed calls: it is a part of
/// `tools/failure_frequency`, and no metric of its own.
const FAILED_CALLS: &str = "failed_calls";

/// The environment of a run.
pub struct Environment {
    component: EnvironmentHandle,
    turns: Turns,
    config: EpisodeConfig,
    /// True if nothing is known to read the environment's rewards.
    is_unread: bool,
    /// Seconds for which an episode waits for an observation; 0 is no limit.
    timeout: u64,
}

/// An episode's messages, reward and calls of tools.
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
    /// True if an observation had no room in the completion, or the last turn has no end token: it
    /// may have gone on, as a number does.
    pub cut: bool,
    /// Number of calls of tools, and of those that could not be made or failed; `None` if there are
    /// no tools.
    pub calls: Option<[usize; 2]>,
    /// The messages as JSON.
    pub json: String,
    /// All that follows the prompt, as the model reads it, without the last turn's end token.
    pub text: String,
    /// Numbers of the environment, until they are recorded.
    pub metrics: Vec<(String, f64)>,
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
    /// Takes the numbers of an observation. Of calls of tools, those that failed are counted.
    fn measured(&mut self, metrics: Vec<(String, f64)>) {
        for (name, value) in metrics {
            match &mut self.calls {
                Some([all, failed]) if name == FAILED_CALLS => {
                    *failed = (*failed + value.max(0.0) as usize).min(*all)
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

/// When and where episodes begin.
#[derive(Debug, Clone, Copy)]
pub struct Stage<'a> {
    pub purpose: Purpose,
    pub step: u64,
    pub max_steps: u64,
    /// The run's seed.
    pub seed: u64,
    /// The number of the prompt of each episode, and its place in its group.
    pub indices: &'a [[u64; 2]],
}

impl Stage<'_> {
    /// Seed of the episodes of a group, of 53 bits, which programs in any language read exactly.
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
        let (episode, timeout) = (own.episode.clone(), config.train.component_timeout);
        // A plugin's reward may read the environment's too.
        let is_built_in = |offer: &&Offer| {
            offer.point == Point::Reward
                && offer.id != reward::OF_ENVIRONMENT
                && offer.origin == Origin::BuiltIn
        };
        let offers = registry.offers();
        let others: Vec<&str> = offers
            .iter()
            .copied()
            .filter(is_built_in)
            .map(|offer| offer.id.as_str())
            .collect();
        let is_unread = config
            .reward
            .iter()
            .all(|reward| others.contains(&reward.id.as_str()));
        Ok(Some(Self {
            component,
            turns,
            config: episode,
            is_unread,
            timeout,
        }))
    }

    /// Warns once of an environment whose rewards are lost.
    pub fn warn_of_reward(&mut self, conversations: &[Conversation]) {
        if self.is_unread
            && conversations
                .iter()
                .any(|conversation| conversation.reward != 0.0)
        {
            self.is_unread = false;
            terminal::warn(&format!(
                "the environment `{}` gives rewards, but no `[[reward]]` reads them (add one with `use = \"{}\"`; with `weight = 0` they are only recorded)",
                self.component.id(),
                reward::OF_ENVIRONMENT
            ));
        }
    }

    pub fn component(&self) -> &EnvironmentHandle {
        &self.component
    }

    pub fn component_mut(&mut self) -> &mut EnvironmentHandle {
        &mut self.component
    }

    /// The text of what follows a prompt, as the model reads it.
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
        (episodes.purpose, episodes.step, episodes.max_steps) =
            (stage.purpose, stage.step, stage.max_steps);
        episodes.max_turns = self.config.max_turns;
        for ((number, example), [group, place]) in (0..).zip(examples).zip(stage.indices) {
            let mut episode = Episode::new(number, &example.prompt);
            (episode.answer, episode.columns) = (&example.answer, &example.columns);
            (episode.group, episode.place, episode.seed) = (*group, *place, stage.seed(*group));
            episodes.episodes.push(episode);
        }
        let openings = self.component.begin(sink, &episodes)?;
        for (pair, groups) in openings.windows(2).zip(stage.indices.windows(2)) {
            ensure!(
                pair[0] == pair[1] || groups[0][0] != groups[1][0],
                "component `{}`: two episodes of prompt {} begin with different texts (those of a group have the same seed: draw the beginning by it)",
                self.component.id(),
                groups[0][0]
            );
        }
        let begun = |(opening, example): (&String, &&Example)| {
            let prompt = self.turns.opened(tokenizer, &example.prompt, opening)?;
            Ok(Conversation {
                prompt,
                calls: self.turns.call_format().map(|_| [0; 2]),
                ..Conversation::default()
            })
        };
        openings.iter().zip(examples).map(begun).collect()
    }

    /// Runs `generate`, which samples completions of at most `longest` tokens with the partners
    /// that it is given, and answers their turns until it returns.
    pub fn converse<T: Send>(
        &mut self,
        sink: &mut dyn Sink,
        tokenizer: &Tokenizer,
        (conversations, longest): (&mut [Conversation], usize),
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
            drop((server, heard));
            let sampled = sampler
                .join()
                .map_err(|_| anyhow!("the sampler panicked"))?;
            answered.and(sampled)
        })?;
        let id = self.component.id();
        for (name, value) in conversations
            .iter_mut()
            .flat_map(|conversation| std::mem::take(&mut conversation.metrics))
        {
            sink.record(id, &name, value);
        }
        if let Some(objection) = sink.objection() {
            bail!("component `{id}`: {objection}");
        }
        for conversation in conversations {
            conversation.json = serde_json::to_string(&conversation.messages)?;
        }
        Ok(sampled)
    }

    /// The reply with at most `max_observation_length` tokens; what was cut is said at its end.
    fn shortened(&self, tokenizer: &Tokenizer, reply: Reply) -> Result<Reply> {
        let limit = self.config.max_observation_length;
        // A token has at least one byte of text, so a short text needs no look.
        if reply.content.len() <= limit {
            return Ok(reply);
        }
        // Nor is the end of a gigabyte looked at.
        let most = reply.content.floor_char_boundary(limit.saturating_mul(64));
        let text = &reply.content[..most];
        let ids = tokenizer.encode(&tokenizer.escaped(text, &[]))?;
        if ids.len() <= limit && most == reply.content.len() {
            return Ok(reply);
        }
        let kept = tokenizer.decode(&ids[..limit.min(ids.len())])?;
        // Not every tokenizer has the characters of a note.
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

/// Answers the turns of one rollout.
struct Server<'a> {
    environment: &'a mut Environment,
    tokenizer: &'a Tokenizer,
    conversations: &'a mut [Conversation],
    /// Longest completion, tokens, with those that the environment adds.
    longest: usize,
    /// Turns without an observation so far, and since when they wait.
    waiting: Vec<(Heard, Instant)>,
}

impl Server<'_> {
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
                // A row that waits holds its line, so none does.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            self.ask(sink, new)?;
        }
    }

    /// Hands `new` turns to the environment, and its observations to their rows.
    fn ask(&mut self, sink: &mut dyn Sink, new: Vec<Heard>) -> Result<()> {
        let texts: Vec<String> = new
            .iter()
            .map(|heard| {
                self.tokenizer
                    .decode(&heard.ids)
                    .context("a sampled turn is not text")
            })
            .collect::<Result<_>>()?;
        let (mut asked, mut refused) = (Vec::new(), Vec::new());
        for (heard, text) in new.iter().zip(&texts) {
            let said = Said {
                role: "assistant".into(),
                name: String::new(),
                content: text.clone(),
            };
            self.conversations[heard.row].messages.push(said);
            let mut turn = Turn::new(heard.row as u64, text);
            (turn.number, turn.is_last) = (heard.number, self.is_last(heard));
            let wrong = self.read_calls(&mut turn, &heard.ids)?;
            // A turn whose calls cannot be made is answered here: the model reads what is wrong
            // with them.
            if wrong.is_empty() || turn.is_last {
                asked.push(turn)
            } else {
                refused.push((heard.row as u64, wrong))
            }
        }
        self.waiting
            .extend(new.into_iter().map(|heard| (heard, Instant::now())));
        for (row, replies) in refused {
            self.answer(row, replies, false)?;
        }
        let observations = self.environment.component.respond(sink, &asked)?;
        for Observation {
            episode,
            messages,
            ended,
            reward,
            metrics,
        } in observations
        {
            let is_awaited = self
                .waiting
                .iter()
                .any(|(heard, _)| heard.row as u64 == episode);
            ensure!(
                is_awaited,
                "component `{}`: an observation of episode {episode}, which waits for none (answer each turn once)",
                self.environment.component.id()
            );
            let conversation = &mut self.conversations[episode as usize];
            if let Some(message) = messages
                .iter()
                .find(|message| !["user", "tool"].contains(&message.role.as_str()))
            {
                bail!(
                    "component `{}`: a message of episode {episode} has the role `{}` (the model reads those of `user` and `tool`)",
                    self.environment.component.id(),
                    message.role
                );
            }
            conversation.reward += reward;
            conversation.measured(metrics);
            let reply = |capo_plugin::Message {
                             role,
                             name,
                             content,
                         }| Reply {
                role,
                name,
                content,
            };
            self.answer(episode, messages.into_iter().map(reply).collect(), ended)?;
        }
        let limit = self.environment.timeout;
        let is_late = |since: &Instant| limit > 0 && since.elapsed() > Duration::from_secs(limit);
        if let Some((heard, _)) = self.waiting.iter().find(|(_, since)| is_late(since)) {
            bail!(
                "component `{}`: turn {} of episode {} has no observation after {limit} seconds (the limit is `train.component_timeout`)",
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

    /// Reads the calls of tools in a turn; returns the replies to those that cannot be made.
    fn read_calls(&mut self, turn: &mut Turn<'_>, ids: &[u32]) -> Result<Vec<Reply>> {
        let (mut calls, mut wrong) = (Vec::new(), Vec::new());
        for call in self.environment.turns.calls(self.tokenizer, ids)? {
            match call {
                Ok(Call { name, arguments }) => calls.push(ToolCall { name, arguments }),
                // Some templates refuse a result without the name of its tool.
                Err(Unmade { tool, error }) => {
                    wrong.push(Reply {
                        role: "tool".into(),
                        name: tool,
                        content: format!("error: {error}"),
                    });
                }
            }
        }
        if let Some([all, failed]) = &mut self.conversations[turn.episode as usize].calls {
            (*all, *failed) = (*all + calls.len() + wrong.len(), *failed + wrong.len());
        }
        turn.calls = calls;
        Ok(wrong)
    }

    /// Hands replies to the row of an episode, or ends the row.
    fn answer(&mut self, episode: u64, replies: Vec<Reply>, ended: bool) -> Result<()> {
        let place = self
            .waiting
            .iter()
            .position(|(heard, _)| heard.row as u64 == episode)
            .context("the row waits")?;
        let (heard, _) = self.waiting.swap_remove(place);
        let environment = &self.environment;
        let conversation = &mut self.conversations[heard.row];
        conversation.ended = ended || replies.is_empty();
        if conversation.ended || heard.truncated || heard.number + 1 == environment.config.max_turns
        {
            conversation.cut = !heard.ended;
            heard.reply(None);
            return Ok(());
        }
        let shortened = replies
            .into_iter()
            .map(|reply| environment.shortened(self.tokenizer, reply));
        let replies = shortened.collect::<Result<Vec<Reply>>>()?;
        let ids = environment
            .turns
            .after(self.tokenizer, heard.ended, &replies);
        let ids = ids.with_context(|| {
            format!(
                "component `{}`: the model cannot read an observation",
                environment.component.id()
            )
        })?;
        // The model needs room for a turn.
        conversation.cut = heard.length + ids.len() >= self.longest;
        if conversation.cut {
            heard.reply(None);
            return Ok(());
        }
        let said = |Reply {
                        role,
                        name,
                        content,
                    }| Said {
            role,
            name,
            content,
        };
        conversation.messages.extend(replies.into_iter().map(said));
        heard.reply(Some(ids));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_calls_are_calls_that_failed() {
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
        assert_eq!(measured(Some([3, 0])), (Some([3, 3]), 2));
        assert_eq!(
            measured(None),
            (None, 4),
            "without tools it is a number like others"
        );
    }
}
