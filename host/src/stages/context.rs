//! Data of a rollout that is not in its batch, for components that ask: prompts, texts, rewards of each function, and the
//! log-probabilities with which tokens were drawn.

use anyhow::Result;
use capo_plugin::{CompletionContext, ContextData, PromptContext};

use crate::data::{Example, Tokenizer};
use crate::model::SampledTokens;
use crate::reward::Scored;

/// A completion as text, with its prompt and answer.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SampledText {
    /// The prompt.
    pub prompt: String,
    /// The sampled completion.
    pub completion: String,
    /// The expected answer.
    pub answer: String,
}

/// The completions of one rollout, `[B]` each, with `group` completions per prompt.
pub struct ContextSource<'a> {
    /// Number of completions per prompt.
    pub group: usize,
    /// Numbers of the prompts in the run's order.
    pub numbers: &'a [u64],
    /// Token ids of the prompts.
    pub prompt_ids: &'a [Vec<u32>],
    /// Dataset rows of the prompts.
    pub examples: &'a [&'a Example],
    /// The sampled tokens, with the sampler's log-probabilities.
    pub completions: &'a [SampledTokens],
    /// The completions as text, with prompts and answers.
    pub texts: &'a [SampledText],
    /// Rewards of the completions.
    pub rewards: &'a Scored,
}

/// Collects the data that components may ask for.
pub fn gather(sampled: &ContextSource<'_>, tokenizer: &Tokenizer) -> Result<ContextData> {
    let ContextSource { group, numbers, prompt_ids, examples, completions, texts, rewards } = *sampled;
    let spans =
        completions.iter().zip(texts).map(|(completion, text)| tokenizer.spans(&completion.ids, &text.completion));
    let spans = spans.collect::<Result<Vec<_>>>()?;
    let longest = completions.iter().map(|completion| completion.ids.len()).max().unwrap_or(0);
    let prompts = (0..completions.len()).step_by(group.max(1)).zip(numbers).map(|(b, &number)| {
        let line = examples[b].row.as_ref().map(|row| row.number as u64);
        PromptContext { ids: &prompt_ids[b], number, line }
    });
    let each = completions.iter().zip(texts).zip(&spans).map(|((completion, text), spans)| CompletionContext {
        text: &text.completion,
        spans,
        sampler_logps: &completion.sampler_logps,
    });
    let mut data = ContextData::new(longest, prompts, each);
    for (name, values) in &rewards.per_reward {
        data.add_reward(name, values);
    }
    let k = completions.iter().map(|completion| completion.top_ids.len() / completion.ids.len().max(1)).max();
    if let Some(k) = k.filter(|&k| k > 0) {
        let ids = padded(completions.iter().map(|completion| completion.top_ids.as_slice()), longest * k, 0);
        let logps = padded(completions.iter().map(|completion| completion.top_logps.as_slice()), longest * k, 0.0);
        data.set_top_k(k, ids, logps);
    }
    Ok(data)
}

/// Concatenates `rows`, each padded with `padding` to `length`.
fn padded<'a, T: Clone + 'a>(rows: impl Iterator<Item = &'a [T]>, length: usize, padding: T) -> Vec<T> {
    let mut all = Vec::new();
    for (number, row) in rows.enumerate() {
        all.extend_from_slice(row);
        all.resize((number + 1) * length, padding.clone());
    }
    all
}
