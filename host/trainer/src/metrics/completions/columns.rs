//! Columns of a step's completions, with the known values of their tokens.

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Context, Result};
use host_data::Tokenizer;

use super::{Column, Table};
use crate::config::LoggingConfig;
use crate::stages::batch::{SampledBatch, StepBatch};
use crate::stages::context::SampledText;
use crate::stages::record::StepRecord;
use crate::stages::rollout::RolloutRecord;

/// The completions of a step of `rollout` to write.
pub fn table(
    record: &StepRecord,
    rollout: &RolloutRecord,
    logging: &LoggingConfig,
    tokenizer: &Tokenizer,
) -> Result<Table> {
    let chosen = chosen(&rollout.texts[record.rows.clone()], logging);
    let mut columns = said(record, rollout, &chosen);
    if logging.log_tokens {
        columns.extend(tokens(record, rollout, &chosen, tokenizer)?);
    }
    Ok(Table {
        rows: chosen.len(),
        columns,
    })
}

/// Indices of the completions to write among those of a step.
fn chosen(texts: &[SampledText], logging: &LoggingConfig) -> Vec<usize> {
    let most = if logging.num_completions == 0 {
        texts.len()
    } else {
        logging.num_completions
    };
    let mut seen = BTreeSet::new();
    (0..texts.len())
        .filter(|&b| !logging.log_unique_prompts || seen.insert(&texts[b].prompt))
        .take(most)
        .collect()
}

/// Columns of prompts, texts and rewards.
fn said(record: &StepRecord, rollout: &RolloutRecord, chosen: &[usize]) -> Vec<(String, Column)> {
    let rows: Vec<usize> = chosen.iter().map(|b| record.rows.start + b).collect();
    let mut prompts = Vec::new();
    let mut completions = Vec::new();
    let mut answers = Vec::new();
    for &row in &rows {
        let text = rollout.texts[row].clone();
        prompts.push(text.prompt);
        completions.push(text.completion);
        answers.push(text.answer);
    }
    let mut columns = vec![
        ("step".to_owned(), Column::Step(record.info.step + 1)),
        ("prompt".to_owned(), Column::Text(prompts)),
        ("completion".to_owned(), Column::Text(completions)),
        ("answer".to_owned(), Column::Text(answers)),
        ("reward".to_owned(), numbers(&rollout.rewards.total, &rows)),
    ];
    for (name, values) in &rollout.rewards.per_reward {
        columns.push((format!("rewards/{name}"), numbers(values, &rows)));
    }
    if !rollout.conversations.is_empty() {
        let messages = rows
            .iter()
            .map(|&row| rollout.conversations[row].json.clone())
            .collect();
        columns.push(("messages".to_owned(), Column::Text(messages)));
    }
    let truncated = rows
        .iter()
        .map(|&row| rollout.truncated[row] == 1)
        .collect();
    columns.push(("truncated".to_owned(), Column::Flag(truncated)));
    columns
}

fn numbers(values: &[f32], rows: &[usize]) -> Column {
    Column::Number(rows.iter().map(|&row| values[row]).collect())
}

/// The indices of each chosen completion's tokens, in arrays `[B, T]`.
struct Places(Vec<Range<usize>>);

impl Places {
    fn of(batch: &SampledBatch, chosen: &[usize]) -> Self {
        let places = chosen.iter().map(|&b| {
            let first = batch.dims().row(b).start;
            first..first + batch.sequences.lengths[b]
        });
        Self(places.collect())
    }

    fn numbers(&self, values: &[f32]) -> Column {
        let lists = self.0.iter().map(|place| values[place.clone()].to_vec());
        Column::Numbers(lists.collect())
    }

    fn wholes(&self, value: impl Fn(usize) -> u32) -> Column {
        let lists = self
            .0
            .iter()
            .map(|place| place.clone().map(&value).collect());
        Column::Wholes(lists.collect())
    }

    fn texts(&self, values: &[Option<String>]) -> Column {
        let lists = self.0.iter().map(|place| values[place.clone()].to_vec());
        Column::Texts(lists.collect())
    }
}

/// Columns with a value for each token.
fn tokens(
    record: &StepRecord,
    rollout: &RolloutRecord,
    chosen: &[usize],
    tokenizer: &Tokenizer,
) -> Result<Vec<(String, Column)>> {
    let StepRecord {
        batch, decision, ..
    } = record;
    let StepBatch {
        scored, advantages, ..
    } = batch;
    let sampled = &scored.sampled;
    let places = Places::of(sampled, chosen);
    let mut texts = Vec::new();
    for (&b, place) in chosen.iter().zip(&places.0) {
        let ids = &sampled.arrays.completion_ids[place.clone()];
        let text = &rollout.texts[record.rows.start + b].completion;
        texts.push(pieces(ids, text, tokenizer)?);
    }
    let mut columns = vec![
        ("id", places.wholes(|i| sampled.arrays.completion_ids[i])),
        ("text", Column::Texts(texts)),
        (
            "token_mask",
            places.wholes(|i| decision.token_mask[i].into()),
        ),
        ("rejected_by", places.texts(&rejected_by(record))),
        ("advantage", places.numbers(advantages)),
        ("logp", places.numbers(scored.logps())),
        ("old_logp", places.numbers(scored.old_logps())),
    ];
    if let Some(logps) = &sampled.arrays.ref_logps {
        columns.push(("ref_logp", places.numbers(logps)));
    }
    if let Some(logps) = &sampled.sampler_logps {
        columns.push(("sampler_logp", places.numbers(logps)));
    }
    columns.push(("entropy", places.numbers(scored.entropy())));
    if !rollout.conversations.is_empty() {
        let observed = places.wholes(|i| u32::from(sampled.completion_mask()[i] == 0));
        columns.push(("observed", observed));
    }
    if !decision.factors.is_empty() {
        columns.push(("weight", places.numbers(&decision.token_weights)));
    }
    for (name, values) in &record.recorded.arrays {
        // A component's column is left out if the host has a column of that name.
        let is_free = columns.iter().all(|(taken, _)| taken != name);
        if is_free && values.len() == sampled.dims().len() {
            columns.push((name, places.numbers(values)));
        }
    }
    Ok(columns
        .into_iter()
        .map(|(name, column)| (format!("tokens/{name}"), column))
        .collect())
}

/// The part of `text` that each token of `ids` stands for; `None` for a token without a part.
fn pieces(ids: &[u32], text: &str, tokenizer: &Tokenizer) -> Result<Vec<Option<String>>> {
    let spans = tokenizer
        .spans(ids, text)
        .context("a sampled completion is not text")?;
    let pieces = spans.into_iter().map(|[start, end]| {
        text.get(start as usize..end as usize)
            .filter(|piece| !piece.is_empty())
            .map(str::to_owned)
    });
    Ok(pieces.collect())
}

/// `[B, T]`: the mask that rejected each token, if one did.
fn rejected_by(record: &StepRecord) -> Vec<Option<String>> {
    let mut rejected_by = vec![None; record.batch.sampled().dims().len()];
    for mask in &record.decision.rejected {
        for &token in &mask.tokens {
            rejected_by[token] = Some(mask.by.clone());
        }
    }
    rejected_by
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chooses_as_many_completions_as_are_asked_for() {
        // The first prompt was drawn twice.
        let text = |prompt: &str| SampledText {
            prompt: prompt.into(),
            completion: "1".into(),
            answer: "2".into(),
        };
        let texts = ["a", "a", "b", "b", "a", "a", "c", "c"].map(text);
        for (num_completions, log_unique_prompts, expected) in [
            (0, false, vec![0, 1, 2, 3, 4, 5, 6, 7]),
            (3, false, vec![0, 1, 2]),
            (0, true, vec![0, 2, 6]),
            (1, true, vec![0]),
        ] {
            let logging = LoggingConfig {
                num_completions,
                log_unique_prompts,
                ..LoggingConfig::default()
            };
            assert_eq!(chosen(&texts, &logging), expected);
        }
    }
}
