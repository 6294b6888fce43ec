//! Reductions from tokens to completions.

use std::ops::Range;

use capo_plugin::prelude::*;

use crate::policies::safe;

/// The level at which a ratio is computed: each token's own ratio, the product over its completion,
/// or the geometric mean over its completion.
#[derive(Choice, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Level {
    /// The token's own ratio.
    Token,
    /// Product of the token ratios over the completion.
    Sequence,
    /// Geometric mean of the token ratios over the completion, which does not grow with its length.
    Geometric,
}

impl Level {
    /// `[B, T]`: each token's ratio at this level, from the token `log_ratios` in nats.
    pub(crate) fn ratios(self, batch: &Batch, log_ratios: &[f32]) -> Vec<f32> {
        let reduce = match self {
            Self::Token => {
                return log_ratios
                    .iter()
                    .map(|&log_ratio| safe(log_ratio).exp())
                    .collect();
            }
            Self::Sequence => sum,
            Self::Geometric => mean,
        };
        let mut ratios = vec![1.0; log_ratios.len()];
        for (row, value) in by_completion(batch, log_ratios, reduce) {
            ratios[row].fill(safe(value as f32).exp());
        }
        ratios
    }
}

/// For each completion its range in `[B, T]` arrays, and `reduce` of `values` at its tokens.
pub(crate) fn by_completion<R>(
    batch: &Batch,
    values: &[f32],
    reduce: impl Fn(&[f32]) -> R,
) -> Vec<(Range<usize>, R)> {
    (0..batch.dims.completions as usize)
        .map(|b| {
            let row = batch.dims.row(b);
            let tokens = row.clone().filter(|&i| batch.completion_mask[i] == 1);
            let values: Vec<f32> = tokens.map(|i| values[i]).collect();
            (row, reduce(&values))
        })
        .collect()
}

/// Sum; 0 for no values.
pub(crate) fn sum(values: &[f32]) -> f64 {
    values.iter().map(|&value| f64::from(value)).sum()
}

/// Mean; 0 for no values.
pub(crate) fn mean(values: &[f32]) -> f64 {
    sum(values) / values.len().max(1) as f64
}

/// Maximum; 0 for no values.
pub(crate) fn max(values: &[f32]) -> f64 {
    values
        .iter()
        .copied()
        .reduce(f32::max)
        .map_or(0.0, f64::from)
}
