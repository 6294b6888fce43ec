//! Reductions from tokens to completions.

use std::ops::Range;

use capo_plugin::prelude::*;
use serde::Serialize;

use crate::policies::safe;

/// Meaning of the key `level`, for `register!`.
pub(crate) const ABOUT: &str = "`token`: each token's own ratio, `sequence`: their product, `geometric`: its root of their number";

/// Level at which a ratio is computed.
#[derive(Deserialize, Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// The token's own ratio.
    Token,
    /// Product of the token ratios over the completion.
    Sequence,
    /// Geometric mean of the token ratios over the completion, which does not grow with its length.
    Geometric,
}

impl Level {
    pub(crate) fn token() -> Self {
        Self::Token
    }

    pub(crate) fn sequence() -> Self {
        Self::Sequence
    }

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
    let rows = (0..batch.dims.completions as usize).map(|b| batch.dims.row(b));
    let real = |row: &Range<usize>| -> Vec<f32> {
        row.clone()
            .filter(|&i| batch.completion_mask[i] == 1)
            .map(|i| values[i])
            .collect()
    };
    rows.map(|row| (row.clone(), reduce(&real(&row)))).collect()
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
