//! Computes log-probabilities of given completions: `host score`.

use std::iter::Peekable;

use anyhow::{Result, ensure};
use host_data::Pair;
use host_model::{Policy, Wants};

use crate::stages::rollout::join;

/// Most rows of a batch, whose results are padded to the longest.
const MOST_ROWS: usize = 4096;

/// Scores the pairs at temperature 1, and passes the log-probabilities of each completion, nats, to
/// `tell` in order.
///
/// A batch has at most `batch_tokens` tokens, or a single row. Memory does not grow with the number
/// of pairs.
pub fn score(
    policy: &Policy,
    batch_tokens: usize,
    pairs: impl Iterator<Item = Pair>,
    mut tell: impl FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let mut pairs = pairs.peekable();
    while pairs.peek().is_some() {
        let batch = next_batch(&mut pairs, batch_tokens);
        score_batch(policy, &batch)?
            .iter()
            .try_for_each(|logps| tell(logps))?;
    }
    Ok(())
}

/// The next pairs that form a batch.
fn next_batch(pairs: &mut Peekable<impl Iterator<Item = Pair>>, batch_tokens: usize) -> Vec<Pair> {
    let mut batch: Vec<Pair> = pairs.next().into_iter().collect();
    let mut sum = batch.first().map_or(0, tokens_of);
    while batch.len() < MOST_ROWS
        && let Some(pair) = pairs.next_if(|pair| sum + tokens_of(pair) <= batch_tokens)
    {
        sum += tokens_of(&pair);
        batch.push(pair);
    }
    batch
}

fn tokens_of(pair: &Pair) -> usize {
    pair.prompt.len() + pair.completion.len()
}

/// The log-probabilities of each completion. One without tokens has none.
fn score_batch(policy: &Policy, pairs: &[Pair]) -> Result<Vec<Vec<f32>>> {
    let mut all = vec![Vec::new(); pairs.len()];
    let rows: Vec<usize> = (0..pairs.len())
        .filter(|row| !pairs[*row].completion.is_empty())
        .collect();
    if rows.is_empty() {
        return Ok(all);
    }
    let prompts: Vec<Vec<u32>> = rows.iter().map(|row| pairs[*row].prompt.clone()).collect();
    let completions: Vec<&[u32]> = rows
        .iter()
        .map(|row| pairs[*row].completion.as_slice())
        .collect();
    let batch = join(&prompts, &completions, 0);
    let outputs = policy
        .forward_detached(&batch, 1.0)?
        .outputs(&Wants::default())?;
    for (row, logps) in rows
        .into_iter()
        .zip(outputs.logps.chunks_exact(batch.completion_len))
    {
        all[row] = logps[..pairs[row].completion.len()].to_vec();
        ensure!(
            all[row].iter().all(|logp| logp.is_finite()),
            "the model produced a log-probability that is not finite (are its weights?)"
        );
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_keep_to_their_tokens() {
        let pair = |prompt: usize, completion: usize| Pair {
            prompt: vec![0; prompt],
            completion: vec![0; completion],
        };
        for (tokens, sizes) in [
            (1, [1; 4].as_slice()),
            (6, &[2, 1, 1]),
            (7, &[2, 1, 1]),
            (10, &[3, 1]),
            (19, &[4]),
        ] {
            let mut pairs = [pair(2, 1), pair(1, 2), pair(2, 2), pair(8, 1)]
                .into_iter()
                .peekable();
            let found: Vec<usize> = sizes
                .iter()
                .map(|_| next_batch(&mut pairs, tokens).len())
                .collect();
            assert_eq!(
                (found.as_slice(), pairs.next().is_none()),
                (sizes, true),
                "{tokens}"
            );
        }
    }
}
