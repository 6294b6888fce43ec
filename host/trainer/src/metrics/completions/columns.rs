//! Columns of a step's completions, with the known values of their tokens.

use std::collections::BTreeSet;

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
    let is_wanted = |b: &usize| !logging.log_unique_prompts || seen.insert(&texts[*b].prompt);
    (0..texts.len()).filter(is_wanted).take(most).collect()
}

/// Columns of prompts, texts and rewards.
fn said(record: &StepRecord, rollout: &RolloutRecord, chosen: &[usize]) -> Vec<(String, Column)> {
    let first = record.rows.start;
    let text = |of: fn(&SampledText) -> &String| {
        Column::Text(
            chosen
                .iter()
                .map(|b| of(&rollout.texts[first + b]).clone())
                .collect(),
        )
    };
    let numbers =
        |values: &[f32]| Column::Number(chosen.iter().map(|b| values[first + b]).collect());
    let mut columns = vec![
        ("step".to_owned(), Column::Step(record.info.step + 1)),
        ("prompt".to_owned(), text(|sample| &sample.prompt)),
        ("completion".to_owned(), text(|sample| &sample.completion)),
        ("answer".to_owned(), text(|sample| &sample.answer)),
        ("reward".to_owned(), numbers(&rollout.rewards.total)),
    ];
    let parts = &rollout.rewards.per_reward;
    columns.extend(
        parts
            .iter()
            .map(|(name, values)| (format!("rewards/{name}"), numbers(values))),
    );
    if !rollout.conversations.is_empty() {
        let messages = chosen
            .iter()
            .map(|b| rollout.conversations[first + b].json.clone())
            .collect();
        columns.push(("messages".to_owned(), Column::Text(messages)));
    }
    let truncated = chosen
        .iter()
        .map(|b| rollout.truncated[first + b] == 1)
        .collect();
    columns.push(("truncated".to_owned(), Column::Flag(truncated)));
    columns
}

/// Columns with a value for each token.
fn tokens(
    record: &StepRecord,
    rollout: &RolloutRecord,
    chosen: &[usize],
    tokenizer: &Tokenizer,
) -> Result<Vec<(String, Column)>> {
    let StepRecord {
        batch: StepBatch {
            scored, advantages, ..
        },
        decision,
        ..
    } = record;
    let SampledBatch {
        sequences,
        arrays,
        sampler_logps,
        ..
    } = &scored.sampled;
    let dims = scored.sampled.dims();
    let places = |b: usize| dims.row(b).take(sequences.lengths[b]);
    let numbers = |values: &[f32]| {
        Column::Numbers(
            chosen
                .iter()
                .map(|b| places(*b).map(|i| values[i]).collect())
                .collect(),
        )
    };
    let wholes = |of: &dyn Fn(usize) -> u32| {
        Column::Wholes(
            chosen
                .iter()
                .map(|b| places(*b).map(of).collect())
                .collect(),
        )
    };
    let texts = chosen.iter().map(|b| {
        let ids: Vec<u32> = places(*b).map(|i| arrays.completion_ids[i]).collect();
        let text = &rollout.texts[record.rows.start + b].completion;
        let spans = tokenizer
            .spans(&ids, text)
            .context("a sampled completion is not text")?;
        let piece = |[start, end]: [u32; 2]| {
            text.get(start as usize..end as usize)
                .filter(|piece| !piece.is_empty())
        };
        Ok(spans
            .into_iter()
            .map(|span| piece(span).map(str::to_owned))
            .collect())
    });
    let texts = texts.collect::<Result<Vec<Vec<Option<String>>>>>()?;
    let mut who = vec![None; dims.len()];
    decision.rejected.iter().for_each(|one| {
        one.tokens
            .iter()
            .for_each(|i| who[*i] = Some(one.by.clone()))
    });
    let rejected_by = chosen
        .iter()
        .map(|b| places(*b).map(|i| who[i].clone()).collect())
        .collect();
    let mut columns = vec![
        ("id".to_owned(), wholes(&|i| arrays.completion_ids[i])),
        ("text".to_owned(), Column::Texts(texts)),
        (
            "token_mask".to_owned(),
            wholes(&|i| decision.token_mask[i].into()),
        ),
        ("rejected_by".to_owned(), Column::Texts(rejected_by)),
        ("advantage".to_owned(), numbers(advantages)),
        ("logp".to_owned(), numbers(scored.logps())),
    ];
    let others = [
        ("old_logp", Some(scored.old_logps())),
        ("ref_logp", arrays.ref_logps.as_deref()),
        ("sampler_logp", sampler_logps.as_deref()),
        ("entropy", Some(scored.entropy())),
    ];
    columns.extend(
        others
            .into_iter()
            .filter_map(|(name, values)| Some((name.to_owned(), numbers(values?)))),
    );
    if !rollout.conversations.is_empty() {
        columns.push((
            "observed".to_owned(),
            wholes(&|i| u32::from(arrays.completion_mask[i] == 0)),
        ));
    }
    if !decision.factors.is_empty() {
        columns.push(("weight".to_owned(), numbers(&decision.token_weights)));
    }
    for (name, values) in record
        .recorded
        .arrays
        .iter()
        .filter(|(_, values)| values.len() == dims.len())
    {
        // A component's column is left out if the host has a column of that name.
        if columns.iter().all(|(taken, _)| taken != name) {
            columns.push((name.clone(), numbers(values)));
        }
    }
    Ok(columns
        .into_iter()
        .map(|(name, column)| (format!("tokens/{name}"), column))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_are_asked_for() {
        // The first prompt was drawn twice.
        let text = |prompt: &str| SampledText {
            prompt: prompt.into(),
            completion: "1".into(),
            answer: "2".into(),
        };
        let texts = ["a", "a", "b", "b", "a", "a", "c", "c"].map(text);
        let of = |num_completions, log_unique_prompts| {
            chosen(
                &texts,
                &LoggingConfig {
                    num_completions,
                    log_unique_prompts,
                    ..LoggingConfig::default()
                },
            )
        };
        assert_eq!(of(0, false), (0..8).collect::<Vec<_>>());
        assert_eq!(
            [of(3, false), of(0, true), of(1, true)],
            [vec![0, 1, 2], vec![0, 2, 6], vec![0]]
        );
    }
}
