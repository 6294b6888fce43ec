//! Gradients of subsets of tokens, as sums of (row, token) entries.

use std::collections::HashMap;
use std::ops::Range;

use crate::intake::{Intake, Taken};
use crate::semantics::Weights;
use crate::subset::Subsets;
use crate::support::{HostPairs, Supports};
use crate::{Error, Ranks};

/// One (row, token) entry of a gradient: `coefficient h` in vocabulary row `row`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pair {
    /// Subset of the token.
    pub subset: u32,
    /// Vocabulary row.
    pub row: u32,
    /// Index among the N tokens.
    pub token: u32,
    /// Index among the P pairs of the supports.
    pub index: u32,
}

impl Pair {
    /// All pairs of a token, in the supports' order.
    fn of(pairs: &HostPairs, token: usize, subset: u32) -> impl Iterator<Item = Self> {
        pairs.of(token).map(move |index| Self {
            subset,
            row: pairs.rows[index],
            token: token as u32,
            index: index as u32,
        })
    }

    /// True if both are entries of the same row of the same gradient.
    pub fn shares_row(&self, other: &Self) -> bool {
        (self.subset, self.row) == (other.subset, other.row)
    }
}

/// The gradients of one or more subsets. Pairs are sorted by subset, row and token, so that sums
/// over a row always run in the same order.
#[derive(Debug)]
pub(crate) struct Gradients {
    pub pairs: Vec<Pair>,
    /// Coefficient `weight A u` of each pair's feature, in the order of `pairs`.
    pub coefficients: Vec<f64>,
    /// Coefficients with no token rejected, if the second moment includes rejected tokens.
    pub everything: Option<Vec<f64>>,
}

impl Gradients {
    /// Gradients of the tokens that are in a subset. `weights`, `[N]`, holds one weight per token;
    /// [`Weights::RowMean`] replaces them by its own.
    pub fn of(
        supports: &Supports,
        own: &HostPairs,
        subsets: &Subsets,
        kind: Weights,
        weights: &[f64],
    ) -> Self {
        let pairs = by_row(own, subsets);
        let weights: Vec<f64> = if kind == Weights::RowMean {
            pairs
                .chunk_by(Pair::shares_row)
                .flat_map(|run| std::iter::repeat_n(1.0 / run.len() as f64, run.len()))
                .collect()
        } else {
            pairs
                .iter()
                .map(|pair| weights[pair.token as usize])
                .collect()
        };
        Self::weighed(pairs, &weights, supports, own)
    }

    /// Gradients that a step adds to the moments. The pairs are those of `everything` if present,
    /// else of `kept`.
    ///
    /// # Errors
    ///
    /// When the ranks cannot reach each other.
    pub fn taken_in(
        supports: &Supports,
        own: &HostPairs,
        taken: &Taken,
        ranks: &dyn Ranks,
    ) -> Result<Self, Error> {
        let &Taken {
            kept,
            everything,
            kind,
        } = taken;
        let pairs = by_row(own, &everything.unwrap_or(kept).subset);
        let kept = pair_weights(&pairs, kept, kind, ranks)?;
        let everything = everything
            .map(|everything| pair_weights(&pairs, everything, kind, ranks))
            .transpose()?;
        Ok(Self {
            coefficients: coefficients(&pairs, &kept, supports, own),
            everything: everything.map(|weights| coefficients(&pairs, &weights, supports, own)),
            pairs,
        })
    }

    /// The rows; ascending if the pairs belong to one subset.
    pub fn rows(&self) -> impl Iterator<Item = u32> {
        self.pairs.chunk_by(Pair::shares_row).map(|run| run[0].row)
    }

    /// Gradients of single tokens, sorted by row and token as in one subset, so that a row's pairs
    /// are processed together.
    pub fn of_tokens(
        supports: &Supports,
        own: &HostPairs,
        tokens: Range<usize>,
        weights: &[f64],
    ) -> Self {
        let mut pairs: Vec<Pair> = tokens.flat_map(|token| Pair::of(own, token, 0)).collect();
        sort_by(&mut pairs, |pair| pair.row);
        let weights: Vec<f64> = pairs
            .iter()
            .map(|pair| weights[pair.token as usize])
            .collect();
        Self::weighed(pairs, &weights, supports, own)
    }

    /// Gradients with a weight for each pair, `[P]`.
    fn weighed(pairs: Vec<Pair>, weights: &[f64], supports: &Supports, own: &HostPairs) -> Self {
        Self {
            coefficients: coefficients(&pairs, weights, supports, own),
            pairs,
            everything: None,
        }
    }

    /// Removes the pairs that add nothing, even with no token rejected.
    pub fn retain_nonzero(&mut self) {
        let adds: Vec<bool> = self
            .everything
            .as_ref()
            .unwrap_or(&self.coefficients)
            .iter()
            .map(|&c| c != 0.0)
            .collect();
        retain(&mut self.pairs, &adds);
        retain(&mut self.coefficients, &adds);
        if let Some(everything) = &mut self.everything {
            retain(everything, &adds);
        }
    }
}

fn retain<T>(values: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    values.retain(|_| kept.next() == Some(&true));
}

/// `[P]`: weight of each of the `pairs`, sorted by row, in a gradient for the moments.
fn pair_weights(
    pairs: &[Pair],
    intake: &Intake,
    kind: Weights,
    ranks: &dyn Ranks,
) -> Result<Vec<f64>, Error> {
    let mut weights: Vec<f64> = pairs
        .iter()
        .map(|pair| intake.weights[pair.token as usize])
        .collect();
    if kind == Weights::RowMean {
        let divisors = pairs
            .chunk_by(Pair::shares_row)
            .zip(row_tokens(pairs, intake, ranks)?)
            .flat_map(|(run, tokens)| std::iter::repeat_n(tokens, run.len()));
        for (weight, divisor) in weights.iter_mut().zip(divisors) {
            *weight /= divisor;
        }
    }
    Ok(weights)
}

/// For each row of the `pairs`, which are sorted by row, the number of tokens of `intake` in its
/// row over all ranks, at least 1.
fn row_tokens(pairs: &[Pair], intake: &Intake, ranks: &dyn Ranks) -> Result<Vec<f64>, Error> {
    let mut own: Vec<i64> = Vec::new();
    for run in pairs.chunk_by(Pair::shares_row) {
        let held = run
            .iter()
            .filter(|pair| intake.subset.holds(pair.token as usize))
            .count();
        own.extend([i64::from(run[0].row), held as i64]);
    }
    let tokens = total_tokens(&own, ranks)?;
    Ok(own
        .chunks_exact(2)
        .map(|pair| tokens(pair[0] as u32))
        .collect())
}

/// The number of tokens in a row over all ranks, at least 1. `own` holds this rank's rows and
/// numbers, alternately.
pub(crate) fn total_tokens(
    own: &[i64],
    ranks: &dyn Ranks,
) -> Result<impl Fn(u32) -> f64 + use<>, Error> {
    let mut tokens = HashMap::new();
    for told in ranks.gather(own)? {
        for pair in told.chunks_exact(2) {
            *tokens.entry(pair[0]).or_insert(0) += pair[1];
        }
    }
    Ok(move |row: u32| {
        tokens
            .get(&i64::from(row))
            .map_or(1, |&count: &i64| count.max(1)) as f64
    })
}

/// `[P]`: coefficient of each pair's feature; `weights`, `[P]`, are those of the pairs.
fn coefficients(pairs: &[Pair], weights: &[f64], supports: &Supports, own: &HostPairs) -> Vec<f64> {
    pairs
        .iter()
        .zip(weights)
        .map(|(pair, weight)| {
            let signal = supports.signals[pair.token as usize];
            weight * (supports.slope * signal * own.u[pair.index as usize])
        })
        .collect()
}

/// The pairs of all tokens that are in a subset, sorted by subset, row and token.
fn by_row(own: &HostPairs, subsets: &Subsets) -> Vec<Pair> {
    let mut pairs = Vec::with_capacity(own.rows.len());
    for token in (0..subsets.of.len()).filter(|&token| subsets.holds(token)) {
        pairs.extend(Pair::of(own, token, subsets.of[token]));
    }
    sort_by(&mut pairs, |pair| pair.row);
    sort_by(&mut pairs, |pair| pair.subset);
    pairs
}

const DIGIT_BITS: u32 = 11;

/// Stable radix sort by `key`.
fn sort_by(pairs: &mut Vec<Pair>, key: impl Fn(&Pair) -> u32) {
    let largest = pairs.iter().map(&key).max().unwrap_or(0);
    let digits = (u32::BITS - largest.leading_zeros()).div_ceil(DIGIT_BITS);
    if pairs.len() < 1 << DIGIT_BITS && digits > 0 {
        return pairs.sort_by_key(key);
    }
    let mut sorted = vec![Pair::default(); if digits > 0 { pairs.len() } else { 0 }];
    for shift in (0..digits).map(|digit| digit * DIGIT_BITS) {
        let digit = |pair: &Pair| (key(pair) >> shift) as usize & ((1 << DIGIT_BITS) - 1);
        let mut places = [0u32; 1 << DIGIT_BITS];
        pairs.iter().for_each(|pair| places[digit(pair)] += 1);
        let mut start = 0;
        for place in &mut places {
            start += std::mem::replace(place, start);
        }
        for pair in pairs.iter() {
            let place = &mut places[digit(pair)];
            sorted[*place as usize] = *pair;
            *place += 1;
        }
        std::mem::swap(pairs, &mut sorted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorting_is_stable_at_any_size_and_range() {
        for (count, largest) in [
            (0, 9),
            (100, 1 << 20),
            (5000, 0),
            (5000, 40),
            (5000, 151_936),
            (9000, u32::MAX),
        ] {
            let mut state = 1u32;
            let pair = |index| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                Pair {
                    row: ((u64::from(state) * u64::from(largest)) >> 32) as u32,
                    index,
                    ..Pair::default()
                }
            };
            let mut pairs: Vec<Pair> = (0..count).map(pair).collect();
            let mut expected: Vec<(u32, u32)> =
                pairs.iter().map(|pair| (pair.row, pair.index)).collect();
            expected.sort();
            sort_by(&mut pairs, |pair| pair.row);
            let got: Vec<(u32, u32)> = pairs.iter().map(|pair| (pair.row, pair.index)).collect();
            assert_eq!(got, expected, "{count} pairs below {largest}");
        }
    }
}
