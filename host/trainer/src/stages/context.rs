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
        let tokens =
            |completion: &SampledTokens| (self.prompt_ids.len() + completion.ids.len()) as u64;
        self.completions.iter().map(tokens).sum()
    }
}

/// Collects the data that components may ask for, except the rewards.
pub(super) fn gather(groups: &[Group], tokenizer: &Tokenizer) -> Result<ContextData> {
    let completions = || groups.iter().flat_map(|group| &group.completions);
    let sampled = || completions().zip(groups.iter().flat_map(|group| &group.texts));
    let spans =
        sampled().map(|(completion, text)| tokenizer.spans(&completion.ids, &text.completion));
    let spans = spans.collect::<Result<Vec<_>>>()?;
    let longest = completions()
        .map(|completion| completion.ids.len())
        .max()
        .unwrap_or(0);
    let prompts = groups.iter().map(
        |Group {
             number,
             example,
             prompt_ids,
             ..
         }| PromptContext {
            ids: prompt_ids,
            number: *number,
            line: example.row.as_ref().map(|row| row.number as u64),
        },
    );
    let each = sampled()
        .zip(&spans)
        .map(|((completion, text), spans)| CompletionContext {
            text: &text.completion,
            spans,
            sampler_logps: &completion.sampler_logps,
        });
    let mut data = ContextData::new(longest, prompts, each);
    let k = completions()
        .map(|completion| completion.top_ids.len() / completion.ids.len().max(1))
        .max();
    if let Some(k) = k.filter(|&k| k > 0) {
        let ids = padded(
            completions().map(|completion| completion.top_ids.as_slice()),
            longest * k,
            0,
        );
        let logps = padded(
            completions().map(|completion| completion.top_logps.as_slice()),
            longest * k,
            0.0,
        );
        data.set_top_k(k, ids, logps);
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
