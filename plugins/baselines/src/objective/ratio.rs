//! Ratio of a token's, or a completion's, probability now to its probability when it was sampled.

use capo_plugin::prelude::*;
use serde::Serialize;

/// Level at which probabilities are compared (TRL `importance_sampling_level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Each token's own ratio.
    Token,
    /// Geometric mean over the completion's tokens, used for all of them (GSPO).
    Sequence,
    /// Product over the completion's tokens, used for all of them: the ratio of the whole
    /// completion (RLOO).
    SequenceProduct,
}

impl Level {
    /// Ratio at each of the tokens `row` of one completion.
    pub(super) fn ratios(self, logps: &[f32], old_logps: &[f32], row: &[usize]) -> Vec<f32> {
        if self == Self::Token {
            return row
                .iter()
                .map(|&i| (logps[i] - old_logps[i]).exp())
                .collect();
        }
        let sum: f64 = row
            .iter()
            .map(|&i| f64::from(logps[i]) - f64::from(old_logps[i]))
            .sum();
        vec![(sum / self.divisor(row.len())).exp() as f32; row.len()]
    }

    /// Derivative by each token's log-probability, from the derivative by each token's ratio.
    pub(super) fn by_logp(self, ratios: &[f32], by_ratio: &[f32]) -> Vec<f32> {
        // A ratio may be infinite where a limit removes its effect.
        let product =
            |(&ratio, &slope): (&f32, &f32)| if slope == 0.0 { 0.0 } else { slope * ratio };
        let each = ratios.iter().zip(by_ratio).map(product);
        if self == Self::Token {
            return each.collect();
        }
        let sum: f64 = each.map(f64::from).sum();
        vec![(sum / self.divisor(ratios.len())) as f32; ratios.len()]
    }

    fn divisor(self, tokens: usize) -> f64 {
        if self == Self::Sequence {
            tokens.max(1) as f64
        } else {
            1.0
        }
    }
}

pub(super) const ABOUT_LEVEL: &str = "over what probabilities are compared: each `token`, the mean over a `sequence`, or `sequence_product`";
