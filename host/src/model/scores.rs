//! What one forward pass says about every completion token, on the host.

use anyhow::{Result, ensure};
use candle_core::Tensor;
use rayon::prelude::*;

use super::forward::{Forward, Part, host};
use super::ops;
use super::parallel::side_by_side;

/// What to compute besides the log-probabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wants {
    /// The entropy of each token's distribution.
    pub entropy: bool,
    /// The data of the last layer with this many top tokens (at most the whole vocabulary is returned).
    pub last_layer_k: Option<usize>,
}

/// Numbers for every completion token, `[B, T]` row-major; positions in the padding hold arbitrary finite values.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// Log-probabilities of the tokens under `logits / loss_temperature`, `[B, T]`, nats.
    pub logps: Vec<f32>,
    /// Entropy of `softmax(logits / loss_temperature)`, `[B, T]`, nats.
    pub entropy: Option<Vec<f32>>,
    /// Inputs of curvature models.
    pub last_layer: Option<LastLayerData>,
}

/// The features and the head's outputs of every completion token.
#[derive(Debug, Clone, PartialEq)]
pub struct LastLayerData {
    /// The feature that produced each token's logits, `[B, T, D]`.
    pub hidden: Vec<f32>,
    /// Ids of the largest logits, `[B, T, K]`, in descending order of the logit; equal logits in order of the id.
    pub topk_ids: Vec<u32>,
    /// The largest logits, `[B, T, K]`, raw (temperature 1).
    pub topk_logits: Vec<f32>,
    /// Logsumexp of all `logits / loss_temperature`, `[B, T]`.
    pub logsumexp: Vec<f32>,
    /// The logit of each token, `[B, T]`, raw (temperature 1).
    pub action_logits: Vec<f32>,
    /// Number of top tokens, K: the number asked for or the vocabulary's, whichever is less.
    pub k: usize,
    /// Width of the features, D.
    pub width: usize,
    /// Number of token ids, V.
    pub vocab_size: usize,
}

impl Forward {
    /// The scores of all tokens; logits exist for a bounded number of tokens at a time.
    pub fn scores(&self, wants: &Wants) -> Result<Scores> {
        let k = wants.last_layer_k;
        ensure!(k != Some(0), "the number of top tokens is 0, expected at least 1");
        let parts = side_by_side(self.parts.iter().collect(), |part| part.logits(k))?;
        let column = |column: usize| {
            let parts = parts.iter().flat_map(|part| part.stats.iter().skip(column).step_by(4));
            parts.copied().collect::<Vec<f32>>()
        };
        let last_layer = match k {
            None => None,
            Some(k) => {
                let (vocab_size, width) = self.parts[0].head.dims2()?;
                Some(LastLayerData {
                    hidden: host(&self.hidden()?)?,
                    topk_ids: parts.iter().flat_map(|part| part.top.ids.iter().copied()).collect(),
                    topk_logits: parts.iter().flat_map(|part| part.top.logits.iter().copied()).collect(),
                    logsumexp: column(1),
                    action_logits: column(3),
                    k: k.min(vocab_size),
                    width,
                    vocab_size,
                })
            }
        };
        Ok(Scores { logps: column(0), entropy: wants.entropy.then(|| column(2)), last_layer })
    }
}

/// What the logits of some rows say.
struct PartScores {
    /// The columns of `ops::logit_stats`, `[rows * T, 4]`.
    stats: Vec<f32>,
    top: TopTokens,
}

impl Part {
    fn logits(&self, k: Option<usize>) -> Result<PartScores> {
        let (count, vocab) = (self.hidden.dim(0)?, self.head.dim(0)?);
        let mut scores = PartScores { stats: Vec::with_capacity(4 * count), top: TopTokens::default() };
        let chunk = ops::chunk_rows(vocab);
        for from in (0..count).step_by(chunk) {
            let len = chunk.min(count - from);
            let logits = self.hidden.narrow(0, from, len)?.matmul(&self.head.t()?)?;
            let targets = self.targets.narrow(0, from, len)?;
            scores.stats.extend(host(&ops::logit_stats(&logits, &targets, self.loss_temperature)?)?);
            if let Some(k) = k {
                scores.top.extend(&logits, k.min(vocab))?;
            }
        }
        Ok(scores)
    }
}

#[derive(Default)]
struct TopTokens {
    ids: Vec<u32>,
    logits: Vec<f32>,
}

impl TopTokens {
    /// Appends the `k` largest of every row of `logits` `[N, V]`.
    fn extend(&mut self, logits: &Tensor, k: usize) -> Result<()> {
        let vocab = logits.dim(1)?;
        let logits = host(logits)?;
        let rows: Vec<Vec<u32>> =
            logits.par_chunks_exact(vocab).map_init(Vec::new, |order, row| top_k(row, k, order).to_vec()).collect();
        for (row, ids) in logits.chunks_exact(vocab).zip(rows) {
            self.logits.extend(ids.iter().map(|id| row[*id as usize]));
            self.ids.extend(ids);
        }
        Ok(())
    }
}

/// The ids of the `k` largest `logits`, descending, the lower id first among equals; `order` is scratch space.
pub(super) fn top_k<'a>(logits: &[f32], k: usize, order: &'a mut Vec<u32>) -> &'a [u32] {
    order.clear();
    order.extend(0..logits.len() as u32);
    let descending = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    if k < order.len() {
        order.select_nth_unstable_by(k, descending);
    }
    let top = &mut order[..k.min(logits.len())];
    top.sort_unstable_by(descending);
    top
}
