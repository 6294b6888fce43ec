//! Ratio of a token's, or a completion's, probability now to its probability when it was sampled.

use capo_plugin::Choice;

/// Whether probabilities are compared per token, or over a completion.
///
/// The names are those of TRL's `importance_sampling_level`.
#[derive(Choice, Debug, Clone, Copy, PartialEq, Eq)]
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
        let pairs = ratios.iter().zip(by_ratio);
        // A ratio may be infinite where a limit removes its effect.
        let products: Vec<f32> = pairs
            .map(|(ratio, slope)| if *slope == 0.0 { 0.0 } else { slope * ratio })
            .collect();
        if self == Self::Token {
            return products;
        }
        let sum: f64 = products.into_iter().map(f64::from).sum();
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
