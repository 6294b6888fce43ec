//! Supports of a batch's tokens: the few vocabulary rows that a token's gradient touches, with their coefficients.

use std::ops::Range;

use crate::backend::{cpu, parallel};
use crate::policy::Softmax;
use crate::semantics::{Feature, Semantics, Temperature};
use crate::{Error, LastLayer, Step};

/// Supports of N tokens of a batch, one after another, P (token, row) pairs in all.
///
/// A token's support is its top rows and, as [`OutsideAction`](crate::OutsideAction) says, the sampled one. With
/// `u = e_a - pi` its gradient is `A u ⊗ h` (paper, eq. 7).
#[derive(Debug, Default)]
pub(crate) struct Supports {
    /// Flat positions `b * T + t`, `[N]`, ascending.
    pub tokens: Vec<usize>,
    /// Flat position of each token's feature, `[N]`.
    pub features: Vec<usize>,
    /// `‖h‖²` of each token's feature, `[N]`.
    pub squared_norms: Vec<f64>,
    /// What multiplies `u ⊗ h`: the advantage or its like, `[N]`.
    pub signals: Vec<f64>,
    /// Probability that is not in the token's rows, `[N]`.
    pub tails: Vec<f64>,
    /// Where each token's pairs end, `[N]`.
    ends: Vec<u32>,
    /// Vocabulary row of each pair, `[P]`.
    pub rows: Vec<u32>,
    /// Raw logit of each pair, `[P]`.
    pub logits: Vec<f32>,
    /// Probability of the row, `[P]`; with the tail they sum to 1 over a token's pairs.
    pub pi: Vec<f64>,
    /// `e_a - pi`, `[P]`; with minus the tail they sum to 0 over a token's pairs if the sampled token is one of them.
    pub u: Vec<f64>,
    /// Selected tokens that were left out because their data holds a NaN or an infinity.
    pub not_finite: Vec<usize>,
    /// `d (logits in the policy) / d (logits)`: 1, but for the loss's temperature.
    pub slope: f64,
}

impl Supports {
    /// Collects the supports of the tokens with `selected[b * T + t] != 0`.
    ///
    /// An id outside the vocabulary is an error; a token with non-finite data is left out and noted.
    pub fn of(step: &Step, selected: &[u8], semantics: &Semantics, threads: usize) -> Result<Self, Error> {
        let tokens: Vec<usize> = (0..selected.len()).filter(|&token| selected[token] != 0).collect();
        let softmax = Softmax::new(step, semantics);
        let work = tokens.len() * (step.batch.width + 64 * softmax.columns);
        let part = |part: Range<usize>| Self::part(step, &tokens[part], &softmax, semantics);
        let mut parts = parallel::map_parts(threads, tokens.len(), work, part).into_iter();
        let mut all = parts.next().unwrap_or_else(|| Ok(Self::default()))?;
        for part in parts {
            all.append(part?);
        }
        all.slope = match semantics.temperature {
            Temperature::Loss => 1.0 / f64::from(step.loss.temperature),
            Temperature::Sampling | Temperature::One => 1.0,
        };
        Ok(all)
    }

    fn part(step: &Step, tokens: &[usize], softmax: &Softmax, semantics: &Semantics) -> Result<Self, Error> {
        let batch = &step.batch;
        let mut supports = Self::default();
        supports.reserve(tokens.len(), softmax.columns + 1);
        for &token in tokens {
            check_ids(batch, token, softmax.columns)?;
            let feature = match semantics.feature {
                Feature::Next if (token + 1) % batch.tokens != 0 => token + 1,
                _ => token,
            };
            let (_, logits) = batch.top(token, softmax.columns);
            let norm = cpu::squared_norm(batch.feature(feature));
            let signal = step.signal(token, semantics);
            let finite = norm.is_finite()
                && signal.is_finite()
                && step.advantages[token].is_finite()
                && logits.iter().all(|x| x.is_finite())
                && (!softmax.add_action || batch.action_logits[token].is_finite())
                && (!softmax.full || batch.logsumexp[token].is_finite());
            if finite {
                supports.push(batch, softmax, token);
                supports.features.push(feature);
                supports.squared_norms.push(norm);
                supports.signals.push(signal);
            } else {
                supports.not_finite.push(token);
            }
        }
        Ok(supports)
    }

    /// Adds a token's pairs.
    fn push(&mut self, batch: &LastLayer, softmax: &Softmax, token: usize) {
        let (ids, logits) = batch.top(token, softmax.columns);
        let action = batch.action_ids[token];
        let start = self.rows.len();
        self.rows.extend_from_slice(ids);
        self.logits.extend_from_slice(logits);
        let inside = ids.iter().position(|&id| id == action);
        let added = inside.is_none() && softmax.add_action;
        if added {
            self.rows.push(action);
            self.logits.push(batch.action_logits[token]);
        }
        self.pi.extend(self.logits[start..].iter().map(|&x| f64::from(x)));
        let tail = if softmax.full {
            softmax.share(&mut self.pi[start..], f64::from(batch.logsumexp[token]))
        } else {
            softmax.normalise(&mut self.pi[start..]);
            0.0
        };
        self.u.extend(self.pi[start..].iter().map(|p| -p));
        if let Some(chosen) = inside.or(added.then_some(ids.len())) {
            // 1 - p without cancellation, for tokens that were all but certain.
            self.u[start + chosen] = 0.0;
            self.u[start + chosen] = tail - self.u[start..].iter().sum::<f64>();
        }
        self.tails.push(tail);
        self.tokens.push(token);
        self.ends.push(self.rows.len() as u32);
    }

    fn reserve(&mut self, tokens: usize, rows: usize) {
        self.rows.reserve(tokens * rows);
        self.logits.reserve(tokens * rows);
        self.pi.reserve(tokens * rows);
        self.u.reserve(tokens * rows);
    }

    fn append(&mut self, other: Self) {
        let shift = self.rows.len() as u32;
        self.tokens.extend(other.tokens);
        self.features.extend(other.features);
        self.squared_norms.extend(other.squared_norms);
        self.signals.extend(other.signals);
        self.tails.extend(other.tails);
        self.ends.extend(other.ends.into_iter().map(|end| shift + end));
        self.rows.extend(other.rows);
        self.logits.extend(other.logits);
        self.pi.extend(other.pi);
        self.u.extend(other.u);
        self.not_finite.extend(other.not_finite);
    }

    /// N, tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Indices of the pairs of the n-th token.
    pub fn pairs(&self, n: usize) -> Range<usize> {
        let start = if n == 0 { 0 } else { self.ends[n - 1] };
        start as usize..self.ends[n] as usize
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
