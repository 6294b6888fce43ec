//! The JSON lines that an external program reads and writes, one per completion.

use capo_plugin::{Completion, Purpose, Rollout};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::program::whole_characters;

/// A line for the program to read.
#[derive(Serialize)]
struct Question<'a> {
    /// Index of the completion in the rollout.
    id: usize,
    /// Index of the completion's prompt, which all completions of a group share.
    group: usize,
    /// Number of lines of this rollout that the process gets.
    count: usize,
    step: u64,
    purpose: &'static str,
    prompt: &'a str,
    completion: &'a str,
    /// The messages of an episode of several turns; nothing otherwise.
    #[serde(skip_serializing_if = "Value::is_null")]
    messages: Value,
    completion_ids: &'a [u32],
    truncated: bool,
    /// Null if the row has no answer.
    answer: Option<&'a str>,
    columns: Value,
}

/// A line that the program writes.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    /// Null says that the program does not judge this completion: it adds nothing to the sum, as
    /// `None` in TRL.
    Number(Option<f64>),
    Object {
        id: Option<usize>,
        #[serde(deserialize_with = "Option::deserialize")]
        reward: Option<f64>,
    },
}

/// The lines for `completions`, the first of which has index `first`.
pub(super) fn questions(
    rollout: &Rollout<'_>,
    first: usize,
    completions: &[Completion<'_>],
) -> Vec<u8> {
    let purpose = if rollout.purpose == Purpose::EVALUATION {
        "evaluation"
    } else {
        "training"
    };
    let mut lines = Vec::new();
    for (id, completion) in (first..).zip(completions) {
        let question = Question {
            id,
            group: id / rollout.group_size.max(1),
            count: completions.len(),
            step: rollout.step,
            purpose,
            prompt: completion.prompt,
            completion: completion.text,
            messages: serde_json::from_str(completion.messages).unwrap_or_default(),
            completion_ids: completion.ids,
            truncated: completion.truncated,
            answer: (!completion.answer.is_empty()).then_some(completion.answer),
            columns: serde_json::from_str(completion.columns).unwrap_or_default(),
        };
        // Text and numbers always have a JSON form, so this cannot fail.
        let _ = serde_json::to_writer(&mut lines, &question);
        lines.push(b'\n');
    }
    lines
}

/// Index of the completion and its reward in `line`. Without an `id` the index is `next`.
pub(super) fn answer(line: &str, next: usize) -> Result<(usize, f32), String> {
    let shown: String = line.chars().take(200).collect();
    let (id, reward) = match serde_json::from_str(&whole_characters(line)) {
        Ok(Answer::Number(reward)) => (next, reward.unwrap_or(0.0)),
        Ok(Answer::Object { id, reward }) => (id.unwrap_or(next), reward.unwrap_or(0.0)),
        Err(_) => {
            return Err(format!(
                "is `{shown}` (it must be a number, or an object with `reward` and perhaps `id`)"
            ));
        }
    };
    let narrow = reward as f32;
    if narrow.is_finite() {
        return Ok((id, narrow));
    }
    Err(format!(
        "is `{shown}` (a reward lies between {:e} and {:e})",
        f32::MIN,
        f32::MAX
    ))
}
