//! Computes log-probabilities of given completions: `host score`.

use anyhow::{Result, ensure};

use crate::data::Pair;
use crate::model::{Policy, Wants};
use crate::stages::rollout::join;

/// Number of batches that are formed from one window of rows, so that rows of one batch have similar lengths.
const BATCHES: usize = 8;
/// Most rows in one window, which limits windows of short rows.
const MOST_ROWS: usize = 4096;

/// Scores the pairs at temperature 1, and passes the log-probabilities of each completion, nats, to `tell` in order.
///
/// A batch has at most `batch_tokens` tokens, including padding, or a single row. Memory does not grow with the number of pairs.
pub fn score(
    policy: &Policy,
    batch_tokens: usize,
    mut pairs: impl Iterator<Item = Pair>,
    mut tell: impl FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    loop {
        let (mut window, mut tokens) = (Vec::new(), 0);
        while tokens < BATCHES * batch_tokens && window.len() < MOST_ROWS {
            let Some(pair) = pairs.next() else { break };
            tokens += pair.prompt.len() + pair.completion.len();
            window.push(pair);
        }
        if window.is_empty() {
            return Ok(());
        }
        score_window(policy, batch_tokens, &window)?.iter().try_for_each(|logps| tell(logps))?;
    }
}

fn score_window(policy: &Policy, batch_tokens: usize, window: &[Pair]) -> Result<Vec<Vec<f32>>> {
    let mut logps = vec![Vec::new(); window.len()];
    // A completion without tokens has no log-probabilities to compute.
    let mut rows: Vec<usize> = (0..window.len()).filter(|row| !window[*row].completion.is_empty()).collect();
    rows.sort_by_key(|row| (window[*row].prompt.len() + window[*row].completion.len(), *row));
    let mut rows = rows.as_slice();
    while !rows.is_empty() {
        let (batch, rest) = rows.split_at(fitting(window, rows, batch_tokens));
        for (row, scored) in batch.iter().zip(score_batch(policy, window, batch)?) {
            logps[*row] = scored;
        }
        rows = rest;
    }
    Ok(logps)
}

/// Number of the first `rows` that form a batch, at least one.
fn fitting(window: &[Pair], rows: &[usize], batch_tokens: usize) -> usize {
    let (mut prompt, mut completion) = (0, 0);
    let fits = |(count, row): (usize, &usize)| {
        prompt = prompt.max(window[*row].prompt.len());
        completion = completion.max(window[*row].completion.len());
        (count + 1) * (prompt + completion) <= batch_tokens
    };
    rows.iter().enumerate().map(fits).take_while(|fits| *fits).count().max(1)
}

fn score_batch(policy: &Policy, window: &[Pair], rows: &[usize]) -> Result<Vec<Vec<f32>>> {
    let prompts: Vec<Vec<u32>> = rows.iter().map(|row| window[*row].prompt.clone()).collect();
    let completions: Vec<&[u32]> = rows.iter().map(|row| window[*row].completion.as_slice()).collect();
    let batch = join(&prompts, &completions, 0);
    let outputs = policy.forward_detached(&batch, 1.0)?.outputs(&Wants::default())?;
    let own = |(logps, completion): (&[f32], &&[u32])| {
        let logps = logps[..completion.len()].to_vec();
        ensure!(
            logps.iter().all(|logp| logp.is_finite()),
            "the model produced a log-probability that is not finite (are its weights?)"
        );
        Ok(logps)
    };
    outputs.logps.chunks_exact(batch.completion_len).zip(&completions).map(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(prompt: usize, completion: usize) -> Pair {
        Pair { prompt: vec![0; prompt], completion: vec![0; completion] }
    }

    #[test]
    fn batches_keep_to_their_tokens() {
        let window = [pair(2, 1), pair(1, 2), pair(2, 2), pair(8, 1)];
        let fitting = |rows: &[usize], tokens| fitting(&window, rows, tokens);
        assert_eq!(fitting(&[0, 1, 2, 3], 3), 1);
        assert_eq!(fitting(&[0, 1, 2, 3], 7), 1, "side by side the two are 4 tokens wide");
        assert_eq!(fitting(&[0, 1, 2, 3], 8), 2);
        assert_eq!(fitting(&[0, 1, 2, 3], 12), 3);
        assert_eq!(fitting(&[0, 1, 2, 3], 40), 4);
        assert_eq!(fitting(&[3], 2), 1, "one row always goes");
    }
}
