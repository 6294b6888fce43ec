//! Supports of a batch's tokens: the few vocabulary rows that a token's gradient touches, with their coefficients.

use std::ops::Range;

use crate::semantics::{Feature, Semantics, Support, Weights};
use crate::{Error, LastLayer, Policy, Step};

/// Supports of the N selected tokens of a batch or a subset, one after another, P (token, row) pairs in all.
///
/// A token's support is its top-k ids and, as [`Support`] says, the sampled token. `u = e_a - pi` makes its gradient
/// `A u ⊗ h` (paper, eq. 7).
#[derive(Debug, Default)]
pub(crate) struct Supports {
    /// Flat positions `b * T + t`, `[N]`, ascending.
    pub tokens: Vec<usize>,
    /// Flat position of each token's feature, `[N]`.
    pub features: Vec<usize>,
    /// `[N]`: where each token's pairs end.
    ends: Vec<usize>,
    /// Vocabulary row of each pair, `[P]`.
    pub rows: Vec<u32>,
    /// Probability of the row, `[P]`; sums to 1 over a token's pairs.
    pub pi: Vec<f64>,
    /// `e_a - pi`, `[P]`; sums to 0 over a token's pairs if the sampled token is one of them.
    pub u: Vec<f64>,
    /// The positions that were looked at.
    pub span: Range<usize>,
    /// Selected tokens that were left out because their data holds a NaN or an infinity.
    pub not_finite: Vec<usize>,
}

/// One (row, token) entry of a gradient.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    /// Vocabulary row.
    pub row: u32,
    /// Flat position of the token's feature, `b * T + t`.
    pub feature: usize,
    /// Index among the P pairs.
    pub index: usize,
}

impl Supports {
    /// Collects the supports of the tokens at `positions` with `selected[b * T + t] != 0`.
    ///
    /// An id outside the vocabulary is an error; a token with non-finite data is left out and noted.
    pub fn of(step: &Step, selected: &[u8], positions: Range<usize>, semantics: &Semantics) -> Result<Self, Error> {
        let Step { batch, advantages, .. } = step;
        let columns = step.policy.columns(batch.k);
        let policy = match semantics.support {
            Support::SamplerAndAction => step.policy,
            Support::TopK => Policy { temperature: 1.0, ..step.policy },
        };
        let mut supports = Self { span: positions.clone(), ..Self::default() };
        for token in positions.filter(|&token| selected[token] != 0) {
            check_ids(batch, token, columns)?;
            let feature = match semantics.feature {
                Feature::Next if (token + 1) % batch.tokens != 0 => token + 1,
                _ => token,
            };
            let (_, logits) = batch.top(token, columns);
            let action = (semantics.support == Support::SamplerAndAction).then_some(&batch.action_logits[token]);
            let mut data = batch.feature(feature).iter().chain(logits).chain(action).chain([&advantages[token]]);
            if data.all(|x| x.is_finite()) {
                supports.push(batch, &policy, token, columns, action.copied());
                supports.features.push(feature);
            } else {
                supports.not_finite.push(token);
            }
        }
        Ok(supports)
    }

    /// Adds a token's pairs: its top ids and, if `action_logit` is given, the sampled token.
    fn push(&mut self, batch: &LastLayer, policy: &Policy, token: usize, columns: usize, action_logit: Option<f32>) {
        let (ids, logits) = batch.top(token, columns);
        let action = batch.action_ids[token];
        let start = self.rows.len();
        self.rows.extend_from_slice(ids);
        self.pi.extend(logits.iter().map(|&x| f64::from(x)));
        let outside = |logit: f32| {
            self.rows.push(action);
            self.pi.push(f64::from(logit));
            columns
        };
        let inside = ids.iter().position(|&id| id == action);
        let chosen = inside.or_else(|| action_logit.map(outside));
        policy.normalise(&mut self.pi[start..]);
        self.u.extend(self.pi[start..].iter().map(|p| -p));
        if let Some(chosen) = chosen {
            // 1 - p without cancellation, for tokens that were all but certain.
            self.u[start + chosen] = 0.0;
            self.u[start + chosen] = -self.u[start..].iter().sum::<f64>();
        }
        self.tokens.push(token);
        self.ends.push(self.rows.len());
    }

    /// N, tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Indices of the pairs of the n-th token.
    pub fn pairs(&self, n: usize) -> Range<usize> {
        let start = if n == 0 { 0 } else { self.ends[n - 1] };
        start..self.ends[n]
    }

    /// Weight of each pair in the gradient of all tokens, `[P]`.
    pub fn weights(&self, weights: Weights, by_row: &[Pair]) -> Vec<f64> {
        let mut shares = vec![1.0 / self.len() as f64; self.rows.len()];
        if weights == Weights::RowMean {
            for pairs in by_row.chunk_by(|a, b| a.row == b.row) {
                pairs.iter().for_each(|pair| shares[pair.index] = 1.0 / pairs.len() as f64);
            }
        }
        shares
    }

    /// `weight A u`, `[P]`: what each pair's feature is multiplied with in the gradient; `weights` is `[P]`.
    pub fn coefficients(&self, advantages: &[f32], weights: &[f64]) -> Vec<f64> {
        let mut coefficients = Vec::with_capacity(self.rows.len());
        for (n, &token) in self.tokens.iter().enumerate() {
            let (pairs, advantage) = (self.pairs(n), f64::from(advantages[token]));
            coefficients.extend(self.u[pairs.clone()].iter().zip(&weights[pairs]).map(|(u, w)| w * advantage * u));
        }
        coefficients
    }

    /// All P pairs, sorted by row and then by token, so that sums over a row always run in the same order.
    pub fn by_row(&self) -> Vec<Pair> {
        let mut pairs = Vec::with_capacity(self.rows.len());
        for (n, &feature) in self.features.iter().enumerate() {
            pairs.extend(self.pairs(n).map(|index| Pair { row: self.rows[index], feature, index }));
        }
        pairs.sort_by_key(|pair| pair.row);
        pairs
    }
}

fn check_ids(batch: &LastLayer, token: usize, columns: usize) -> Result<(), Error> {
    let (ids, _) = batch.top(token, columns);
    let outside = |&&id: &&u32| id as usize >= batch.vocab_size;
    let Some(id) = ids.iter().chain([&batch.action_ids[token]]).find(outside) else { return Ok(()) };
    Err(Error::new(format!(
        "token {} of completion {} has id {id}, expected below the vocabulary size {} (check `topk_ids`, `action_ids`)",
        token % batch.tokens,
        token / batch.tokens,
        batch.vocab_size
    )))
}
