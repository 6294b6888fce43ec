//! Data of a rollout that is not in its batch, for components that ask: prompts, texts, rewards of
//! each function, and the log-probabilities with which tokens were drawn.

use anyhow::Result;
use capo_plugin::{CompletionContext, ContextData, PromptContext};
use host_data::{Example, Tokenizer};
use host_model::SampledTokens;

use crate::environment::Conversation;
use crate::reward::Scored;

/// A completion as text, with its prompt and answer.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SampledText {
    pub prompt: String,
    pub completion: String,
    pub answer: String,
}

/// A prompt with its G sampled completions and their data.
pub(super) struct Group {
    /// The prompt's number in the run's order.
    pub number: u64,
    pub example: Example,
    pub prompt_ids: Vec<u32>,
    pub completions: Vec<SampledTokens>,
    pub texts: Vec<SampledText>,
    pub conversations: Vec<Conversation>,
    pub rewards: Scored,
}

impl Group {
    /// Number of prompt and completion tokens.
    pub fn tokens(&self) -> u64 {
        let prompts = self.completions.len() * self.prompt_ids.len();
        let completions: usize = self.completions.iter().map(|one| one.ids.len()).sum();
        (prompts + completions) as u64
    }
}

/// Collects the data that components may ask for, except the rewards.
pub(super) fn gather(groups: &[Group], tokenizer: &Tokenizer) -> Result<ContextData> {
    let completions: Vec<&SampledTokens> =
        groups.iter().flat_map(|group| &group.completions).collect();
    let texts: Vec<&SampledText> = groups.iter().flat_map(|group| &group.texts).collect();
    let mut spans = Vec::with_capacity(completions.len());
    for (completion, text) in completions.iter().zip(&texts) {
        spans.push(tokenizer.spans(&completion.ids, &text.completion)?);
    }
    let lengths = completions.iter().map(|completion| completion.ids.len());
    let longest = lengths.max().unwrap_or(0);
    let prompts = groups.iter().map(|group| PromptContext {
        ids: &group.prompt_ids,
        number: group.number,
        line: group.example.row.as_ref().map(|row| row.number as u64),
    });
    let each = (0..completions.len()).map(|b| CompletionContext {
        text: &texts[b].completion,
        spans: &spans[b],
        sampler_logps: &completions[b].sampler_logps,
    });
    let mut data = ContextData::new(longest, prompts, each);
    let counts = completions.iter();
    let counts = counts.map(|completion| completion.top_ids.len() / completion.ids.len().max(1));
    let k = counts.max().unwrap_or(0);
    if k > 0 {
        let ids = completions
            .iter()
            .map(|completion| completion.top_ids.as_slice());
        let logps = completions
            .iter()
            .map(|completion| completion.top_logps.as_slice());
        data.set_top_k(
            k,
            padded(ids, longest * k, 0),
            padded(logps, longest * k, 0.0),
        );
    }
    Ok(data)
}

/// Concatenates `rows`, each padded with `padding` to `length`.
pub(super) fn padded<'a, T: Clone + 'a>(
    rows: impl Iterator<Item = &'a [T]>,
    length: usize,
    padding: T,
) -> Vec<T> {
    let mut all = Vec::new();
    for (number, row) in rows.enumerate() {
        all.extend_from_slice(row);
        all.resize((number + 1) * length, padding.clone());
    }
    all
}
