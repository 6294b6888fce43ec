//! A reward's view: completions as text, with the dataset's columns for their prompts.

use abi_stable::StableAbi;
use serde::de::DeserializeOwned;

use crate::{PluginError, nearest, plain};

/// Purpose of the sampled completions. The set of values may grow, so this is an integer.
#[repr(transparent)]
#[derive(StableAbi, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Purpose(pub u32);

impl Purpose {
    /// The completions train the policy in the coming optimizer steps.
    pub const TRAINING: Self = Self(0);
    /// The completions measure the policy on held-out prompts. A component's state must not change,
    /// so that evaluation changes no run.
    pub const EVALUATION: Self = Self(1);
}

/// One sampled completion.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Completion<'a> {
    /// Text of the prompt, as in the dataset.
    pub prompt: &'a str,
    /// Text of the completion, without special tokens; of an episode of several turns, that of the
    /// last turn.
    pub text: &'a str,
    /// An episode of several turns: its messages after the prompt, as a JSON list of objects with
    /// `role` and `content`. Empty otherwise.
    pub messages: &'a str,
    /// Sum of the rewards that the environment gave in an episode, reward units; 0 otherwise.
    pub environment_reward: f32,
    /// Token ids of the completion, up to and including the end token; of an episode, with those
    /// that the environment added.
    pub ids: &'a [u32],
    /// True if the length limit cut the completion off.
    pub truncated: bool,
    /// The dataset's answer as text, from the column that the run's settings name (else its worked
    /// solution).
    pub answer: &'a str,
    /// All columns of the prompt's row except the prompt, the answer included: a JSON object.
    pub columns: &'a str,
}

impl<'a> Completion<'a> {
    /// A completion that ended by itself, with an empty row. Hosts and tests then fill in the other
    /// fields.
    pub fn new(prompt: &'a str, text: &'a str) -> Self {
        Self {
            prompt,
            text,
            messages: "",
            environment_reward: 0.0,
            ids: &[],
            truncated: false,
            answer: "",
            columns: "{}",
        }
    }

    /// Column `name` of the prompt's row, read as a `T`:
    /// `completion.column::<Vec<String>>("tests")`.
    ///
    /// # Errors
    ///
    /// When the row has no such column, or another type in it.
    pub fn column<T: DeserializeOwned>(&self, name: &str) -> Result<T, PluginError> {
        let mut row: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(self.columns).map_err(|error| {
                PluginError::failed(format!(
                    "the prompt's row is not a JSON object: {}",
                    plain::json(&error)
                ))
            })?;
        let Some(value) = row.remove(name) else {
            let columns: Vec<&str> = row.keys().map(String::as_str).collect();
            let hint = match nearest(name, columns.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None if row.is_empty() => "the row has no columns".into(),
                None => format!("the row has `{}`", columns.join("`, `")),
            };
            return Err(PluginError::failed(format!(
                "a prompt's row has no column `{name}` ({hint})"
            )));
        };
        serde_json::from_value(value).map_err(|error| {
            PluginError::failed(format!(
                "column `{name}` of a prompt's row: {}",
                plain::json(&error)
            ))
        })
    }
}

/// The completions of one rollout, or a part of a held-out set.
///
/// Groups are consecutive: completions `g·G .. (g+1)·G` answer one prompt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Rollout<'a> {
    /// Purpose of the completions.
    pub purpose: Purpose,
    /// Optimizer steps done when the completions were sampled.
    pub step: u64,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
    /// The run's seed; derive every random draw from it and `step`.
    pub seed: u64,
    /// G: completions per prompt.
    pub group_size: usize,
    /// Limit on completion length, tokens.
    pub max_completion_length: usize,
    /// `[B]`: the completions, group by group.
    pub completions: Vec<Completion<'a>>,
}

impl<'a> Rollout<'a> {
    /// Training completions at step 0, one per prompt. Hosts and tests then fill in the other
    /// fields.
    pub fn new(completions: Vec<Completion<'a>>) -> Self {
        let max_completion_length = completions
            .iter()
            .map(|completion| completion.ids.len())
            .max()
            .unwrap_or(0);
        Self {
            purpose: Purpose::TRAINING,
            step: 0,
            max_steps: 1,
            seed: 0,
            group_size: 1,
            max_completion_length,
            completions,
        }
    }
}
