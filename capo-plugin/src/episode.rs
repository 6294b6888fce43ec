//! An environment's view: episodes, the turns of a model, and what the model reads after them.

use std::fmt::Display;

use crate::Purpose;

/// One episode: a conversation between a model and an environment, which begins with the prompt of
/// a row.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Episode<'a> {
    /// Number of the episode, which its turns and observations name. A rollout uses no number
    /// twice.
    pub number: u64,
    /// Text of the prompt, as in the dataset.
    pub prompt: &'a str,
    /// The dataset's answer as text, from the column that the run's settings name (else its worked
    /// solution).
    pub answer: &'a str,
    /// All columns of the prompt's row except the prompt, the answer included: a JSON object.
    pub columns: &'a str,
    /// Number of the prompt in the run. Episodes of one group have the same.
    pub group: u64,
    /// Place of the episode in its group, from 0.
    pub place: u64,
    /// Seed for every random draw of the episode. Episodes of a group have the same, so that they
    /// begin alike.
    pub seed: u64,
}

impl<'a> Episode<'a> {
    /// An episode of an empty row. Hosts and tests then fill in the other fields.
    pub fn new(number: u64, prompt: &'a str) -> Self {
        Self {
            number,
            prompt,
            answer: "",
            columns: "{}",
            group: number,
            place: 0,
            seed: number,
        }
    }
}

/// The episodes that begin together.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Episodes<'a> {
    /// Purpose of the episodes. Evaluations must not change a component's state.
    pub purpose: Purpose,
    /// Optimizer steps done.
    pub step: u64,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
    /// Most turns of a model in one episode.
    pub max_turns: usize,
    /// The episodes, group by group.
    pub episodes: Vec<Episode<'a>>,
}

impl<'a> Episodes<'a> {
    /// Training episodes at step 0 with up to 8 turns. Hosts and tests then fill in the other
    /// fields.
    pub fn new(episodes: Vec<Episode<'a>>) -> Self {
        Self {
            purpose: Purpose::TRAINING,
            step: 0,
            max_steps: 1,
            max_turns: 8,
            episodes,
        }
    }
}

/// A call of a tool in a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// The arguments, a JSON object. The host has compared them with the tool's schema.
    pub arguments: String,
}

/// A turn of the model that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Turn<'a> {
    /// Number of the episode.
    pub episode: u64,
    /// Number of the turn in its episode, from 0.
    pub number: usize,
    /// What the model has said, without special tokens.
    pub text: &'a str,
    /// The calls of offered tools in it.
    pub calls: Vec<ToolCall>,
    /// True if the model cannot read an answer: a limit ends the episode. The observation may still
    /// have a reward.
    pub is_last: bool,
}

impl<'a> Turn<'a> {
    /// A first turn without calls. Hosts and tests then fill in the other fields.
    pub fn new(episode: u64, text: &'a str) -> Self {
        Self {
            episode,
            number: 0,
            text,
            calls: Vec::new(),
            is_last: false,
        }
    }
}

/// One message that the model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `user`, or `tool`.
    pub role: String,
    /// Name of the tool; empty for others.
    pub name: String,
    /// What is said.
    pub content: String,
}

/// An environment's answer to a turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Number of the episode.
    pub episode: u64,
    /// What the model reads before its next turn; none if the episode has ended.
    pub messages: Vec<Message>,
    /// True if the episode has ended.
    pub ended: bool,
    /// Reward of the turn, reward units. The reward `environment` adds up those of an episode.
    pub reward: f32,
    /// Numbers for metrics, `environment/ID/NAME`: means over the observations that have them. With
    /// tools, `failed_calls` is instead the number of calls that failed, a part of
    /// `tools/failure_frequency`.
    pub metrics: Vec<(String, f64)>,
}

impl Observation {
    /// The episode goes on, without a message so far.
    pub fn of(turn: &Turn<'_>) -> Self {
        Self {
            episode: turn.episode,
            messages: Vec::new(),
            ended: false,
            reward: 0.0,
            metrics: Vec::new(),
        }
    }

    /// Ends the episode.
    #[must_use]
    pub fn end(self) -> Self {
        Self {
            ended: true,
            ..self
        }
    }

    /// Adds a message of the user.
    #[must_use]
    pub fn say(self, content: impl Display) -> Self {
        self.message("user", "", content)
    }

    /// Adds the result of the tool `name`.
    #[must_use]
    pub fn result(self, name: &str, content: impl Display) -> Self {
        self.message("tool", name, content)
    }

    fn message(mut self, role: &str, name: &str, content: impl Display) -> Self {
        self.messages.push(Message {
            role: role.to_owned(),
            name: name.to_owned(),
            content: content.to_string(),
        });
        self
    }

    /// Sets the reward of the turn, reward units.
    #[must_use]
    pub fn reward(self, reward: f32) -> Self {
        Self { reward, ..self }
    }

    /// Adds a number for metrics.
    #[must_use]
    pub fn metric(mut self, name: &str, value: f64) -> Self {
        self.metrics.push((name.to_owned(), value));
        self
    }
}
