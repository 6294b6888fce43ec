//! Subsets of a batch's tokens: the tokens of each proposed step, and their weights in it.

use crate::semantics::{CurvatureAverage, Weights};
use crate::step::Reduction;
use crate::support::Supports;
use crate::{LastLayer, Step};

/// Tokens that form one proposal and are accepted or rejected as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Granularity {
    /// Every token is a subset of its own.
    #[default]
    Token,
    /// The tokens of a completion.
    Completion,
    /// The tokens of G consecutive completions, `LastLayer::group_size`.
    Group,
    /// All tokens of the batch.
    Batch,
}

/// Assignment of the N tokens to subsets.
#[derive(Debug)]
pub(crate) struct Subsets {
    /// `[N]`: subset of each token, ascending except for [`NONE`](Self::NONE).
    pub of: Vec<u32>,
    /// Number of subsets, empty ones included; N for single tokens.
    pub count: usize,
    /// Completions per subset; 1 for single tokens.
    completions: usize,
    /// True if each token is a subset of its own.
    pub single: bool,
}

impl Subsets {
    /// Marks a token in no subset.
    const NONE: u32 = u32::MAX;

    /// The subsets of all tokens at `granularity`.
    pub fn new(supports: &Supports, batch: &LastLayer, granularity: Granularity) -> Self {
        let completions = match granularity {
            Granularity::Token => {
                return Self::tokens(supports.len());
            }
            Granularity::Completion => 1,
            Granularity::Group => batch.group_size,
            Granularity::Batch => batch.completions,
        };
        let span = (batch.tokens * completions).max(1);
        let of = supports
            .tokens
            .iter()
            .map(|&token| (token as usize / span) as u32)
            .collect();
        Self {
            of,
            count: batch.completions.div_ceil(completions.max(1)),
            completions,
            single: false,
        }
    }

    /// `count` tokens, each a subset of its own.
    pub fn tokens(count: usize) -> Self {
        Self {
            of: (0..count as u32).collect(),
            count,
            completions: 1,
            single: true,
        }
    }

    /// The tokens with `token_mask[b * T + t] != 0` as one subset.
    pub fn kept(supports: &Supports, batch: &LastLayer, token_mask: &[u8]) -> Self {
        let of = supports
            .tokens
            .iter()
            .map(|&token| {
                if token_mask[token as usize] != 0 {
                    0
                } else {
                    Self::NONE
                }
            })
            .collect();
        Self {
            of,
            count: 1,
            completions: batch.completions,
            single: false,
        }
    }

    /// The tokens of the subsets in `chosen`, `[count]`, as one subset.
    pub fn merged(&self, chosen: &[bool], batch: &LastLayer) -> Self {
        let of = self
            .of
            .iter()
            .map(|&subset| {
                if chosen[subset as usize] {
                    0
                } else {
                    Self::NONE
                }
            })
            .collect();
        Self {
            of,
            count: 1,
            completions: batch.completions,
            single: false,
        }
    }

    /// The first `held` of `count` tokens as one subset.
    pub fn first(held: usize, count: usize) -> Self {
        let of = (0..count)
            .map(|n| if n < held { 0 } else { Self::NONE })
            .collect();
        Self {
            of,
            count: 1,
            completions: 1,
            single: false,
        }
    }

    /// True if token n is in a subset.
    pub fn holds(&self, n: usize) -> bool {
        self.of[n] != Self::NONE
    }

    /// The subset of token n, below `count`.
    pub fn index(&self, n: usize) -> Option<usize> {
        self.holds(n).then_some(self.of[n] as usize)
    }

    /// Number of tokens in subsets.
    pub fn size(&self) -> usize {
        self.of
            .iter()
            .filter(|&&subset| subset != Self::NONE)
            .count()
    }

    /// `[count]`: number of tokens of each subset.
    fn sizes(&self) -> Vec<f64> {
        if self.count == 1 {
            return vec![self.size() as f64];
        }
        let mut sizes = vec![0.0; self.count];
        for &subset in self.of.iter().filter(|&&subset| subset != Self::NONE) {
            sizes[subset as usize] += 1.0;
        }
        sizes
    }

    /// `[N]`: `value` of each token's subset; 0 for tokens in no subset.
    fn spread(&self, value: impl Fn(usize) -> f64) -> Vec<f64> {
        let values: Vec<f64> = (0..self.count).map(value).collect();
        self.of
            .iter()
            .map(|&subset| values.get(subset as usize).copied().unwrap_or(0.0))
            .collect()
    }

    /// `[N]`: weight of each token in its subset's gradient. [`Weights::RowMean`] weighs rows, so
    /// the token mean is used for it.
    pub fn gradient_weights(&self, step: &Step, supports: &Supports, weights: Weights) -> Vec<f64> {
        if self.single && self.count > 1 {
            // Subsets of one token each all give it the same weight.
            return vec![Self::tokens(1).gradient_weights(step, supports, weights)[0]; self.count];
        }
        self.weights_by(
            step,
            supports,
            weights,
            &self.divisors(step, supports, weights),
        )
    }

    /// `[count]`: divisor of the weights of each subset's tokens: whole numbers, which add up over
    /// the parts of a batch.
    pub fn divisors(&self, step: &Step, supports: &Supports, weights: Weights) -> Vec<f64> {
        match weights {
            Weights::TokenMean | Weights::RowMean => self.sizes(),
            Weights::Loss => self.loss_divisors(step, supports),
        }
    }

    /// `[N]`: weight of each token in its subset's gradient, with the divisors of the whole subset.
    pub fn weights_by(
        &self,
        step: &Step,
        supports: &Supports,
        weights: Weights,
        divisors: &[f64],
    ) -> Vec<f64> {
        match weights {
            Weights::TokenMean | Weights::RowMean => self.spread(|subset| 1.0 / divisors[subset]),
            Weights::Loss => self.loss_weights_by(step, supports, divisors),
        }
    }

    /// `[N]`: weight of each token in the averages over its subset.
    pub fn averages(
        &self,
        step: &Step,
        supports: &Supports,
        average: CurvatureAverage,
    ) -> Vec<f64> {
        match average {
            CurvatureAverage::CompletionMean if !self.single => {
                let lengths = self.lengths(step, supports, None);
                (0..supports.len())
                    .map(|n| {
                        let length = lengths[supports.position(n) / step.batch.tokens];
                        1.0 / (self.completions as f64 * length)
                    })
                    .collect()
            }
            CurvatureAverage::TokenMean | CurvatureAverage::CompletionMean => {
                self.gradient_weights(step, supports, Weights::TokenMean)
            }
            CurvatureAverage::Loss => self.gradient_weights(step, supports, Weights::Loss),
        }
    }

    /// The tokens that the trainer's loss counts, if it counts each token alone.
    fn counted<'a>(&self, step: &Step<'a>) -> Option<&'a [u8]> {
        if self.single { None } else { step.loss.counted }
    }

    /// `[count]`: divisor of the trainer's loss if each subset were the whole batch. It excludes
    /// factors of single completions, such as their length.
    fn loss_divisors(&self, step: &Step, supports: &Supports) -> Vec<f64> {
        match step.loss.reduction {
            Reduction::CompletionMean | Reduction::TokenMean if self.single => self.sizes(),
            Reduction::FixedLength | Reduction::CompletionMean | Reduction::CompletionSum => {
                vec![self.completions as f64; self.count]
            }
            Reduction::TokenMean => {
                let lengths = self.lengths(step, supports, self.counted(step));
                // An empty batch has subsets, too, whose sum is 0.
                (0..self.count)
                    .map(|subset| {
                        lengths
                            .iter()
                            .skip(subset * self.completions)
                            .take(self.completions)
                            .sum()
                    })
                    .collect()
            }
        }
    }

    /// `[N]`: weight of each token in the trainer's loss if its subset were the whole batch.
    fn loss_weights_by(&self, step: &Step, supports: &Supports, divisors: &[f64]) -> Vec<f64> {
        let limit = step.loss.max_completion_length as f64;
        match step.loss.reduction {
            Reduction::FixedLength => self.spread(|subset| 1.0 / (divisors[subset] * limit)),
            Reduction::CompletionSum => self.spread(|subset| 1.0 / divisors[subset]),
            Reduction::CompletionMean | Reduction::TokenMean if self.single => {
                self.spread(|subset| 1.0 / divisors[subset])
            }
            Reduction::CompletionMean => {
                let lengths = self.lengths(step, supports, self.counted(step));
                (0..supports.len())
                    .map(|n| {
                        let length = lengths[supports.position(n) / step.batch.tokens].max(1.0);
                        let divisor = self.index(n).map_or(1.0, |subset| divisors[subset]);
                        1.0 / (divisor * length)
                    })
                    .collect()
            }
            Reduction::TokenMean => self.spread(|subset| 1.0 / divisors[subset].max(1.0)),
        }
    }

    /// `[B]`: number of tokens of each completion, either those in `counted` or those in a subset.
    fn lengths(&self, step: &Step, supports: &Supports, counted: Option<&[u8]>) -> Vec<f64> {
        let tokens = step.batch.tokens;
        if let Some(counted) = counted {
            return counted
                .chunks(tokens.max(1))
                .map(|row| row.iter().filter(|&&x| x != 0).count() as f64)
                .collect();
        }
        let mut lengths = vec![0.0; step.batch.completions];
        for n in (0..supports.len()).filter(|&n| self.holds(n)) {
            lengths[supports.position(n) / tokens] += 1.0;
        }
        lengths
    }
}
