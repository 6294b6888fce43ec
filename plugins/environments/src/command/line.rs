//! The JSON lines that an external program reads and writes. docs/environments.md describes them.

use std::collections::BTreeMap;

use capo_plugin::{Episode, Episodes, Message, Observation, Purpose, Turn, plain};
use capo_rewards::program::whole_characters;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The question for a copy's tools.
pub(super) const TOOLS: &str = "{\"ask\":\"tools\"}\n";

/// The answer about tools.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tools {
    #[serde(deserialize_with = "or_default")]
    tools: Vec<Box<RawValue>>,
}

/// An answer about an episode. A null field counts as left out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    pub(super) episode: u64,
    /// The text that follows the prompt; only where an episode begins.
    pub(super) message: Option<String>,
    pub(super) turn: Option<usize>,
    #[serde(default, deserialize_with = "or_default")]
    messages: Vec<Words>,
    #[serde(default, deserialize_with = "or_default")]
    ended: bool,
    #[serde(default, deserialize_with = "or_default")]
    reward: f64,
    #[serde(default, deserialize_with = "or_default")]
    metrics: BTreeMap<String, Option<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Words {
    #[serde(default)]
    role: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    name: String,
    content: String,
}

/// The value, or the type's default for null.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    value: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

/// A call of a tool in a line about a turn. The arguments keep the digits of their numbers.
#[derive(Serialize)]
struct Call<'a> {
    arguments: Box<RawValue>,
    name: &'a str,
}

/// The line that begins an episode.
pub(super) fn begin(episodes: &Episodes<'_>, episode: &Episode<'_>) -> Vec<u8> {
    let Episode {
        number,
        prompt,
        answer,
        columns,
        group,
        place,
        seed,
        ..
    } = *episode;
    let is_evaluation = episodes.purpose == Purpose::EVALUATION;
    line(&json!({
        "ask": "begin",
        "episode": number,
        "group": group,
        "place": place,
        "seed": seed,
        "step": episodes.step,
        "max_turns": episodes.max_turns,
        "purpose": if is_evaluation { "evaluation" } else { "training" },
        "prompt": prompt,
        "answer": (!answer.is_empty()).then_some(answer),
        "columns": serde_json::from_str::<Value>(columns).unwrap_or_default(),
    }))
}

/// The line about a turn.
pub(super) fn respond(turn: &Turn<'_>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Asked<'a> {
        ask: &'a str,
        calls: Vec<Call<'a>>,
        episode: u64,
        is_last: bool,
        text: &'a str,
        turn: usize,
    }
    let calls = turn
        .calls
        .iter()
        .map(|call| Call {
            arguments: raw(&call.arguments),
            name: &call.name,
        })
        .collect();
    line(&Asked {
        ask: "respond",
        calls,
        episode: turn.episode,
        is_last: turn.is_last,
        text: turn.text,
        turn: turn.number,
    })
}

/// JSON as it was written, on one line; null if the text is not JSON.
fn raw(json: &str) -> Box<RawValue> {
    // A line break in JSON is a space between two values, because texts have none.
    let json = json.replace(['\n', '\r'], " ");
    RawValue::from_string(json).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn line(value: &impl Serialize) -> Vec<u8> {
    // Texts, numbers and JSON always have a JSON form, so this cannot fail.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The schemas in an answer about tools.
pub(super) fn tools(line: &str) -> Result<Vec<String>, String> {
    let Tools { tools } = serde_json::from_str(&whole_characters(line))
        .map_err(|error| format!("is {}: {}", shown(line), plain::json(&error)))?;
    Ok(tools.iter().map(|schema| schema.get().to_owned()).collect())
}

/// The answer in `line`.
pub(super) fn answer(line: &str) -> Result<Answer, String> {
    let answer: Answer = serde_json::from_str(&whole_characters(line))
        .map_err(|error| format!("is {}: {}", shown(line), plain::json(&error)))?;
    if (answer.reward as f32).is_finite() {
        return Ok(answer);
    }
    let [least, most] = [f32::MIN, f32::MAX];
    Err(format!(
        "is {} (a `reward` lies between {least:e} and {most:e})",
        shown(line)
    ))
}

/// The beginning of a line, in backticks.
pub(super) fn shown(line: &str) -> String {
    format!("`{}`", line.chars().take(200).collect::<String>())
}

impl From<Words> for Message {
    fn from(words: Words) -> Self {
        Self {
            role: words.role.unwrap_or_else(|| "user".into()),
            name: words.name,
            content: words.content,
        }
    }
}

impl Answer {
    /// The observation of `turn`.
    pub(super) fn observed(self, turn: &Turn<'_>) -> Observation {
        let mut observation = Observation::of(turn).reward(self.reward as f32);
        observation.messages = self.messages.into_iter().map(Message::from).collect();
        observation.metrics = self
            .metrics
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        observation.ended = self.ended;
        observation
    }
}
