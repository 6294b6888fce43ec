//! The result of a comparison: statistics of each mask, and their overlaps.

use std::path::PathBuf;
use std::time::Duration;

use super::alone::RejectedAlone;
use super::contender::Contender;
use super::setting::Setting;
use super::tokens::Tokens;
use crate::commands::sweep::{Count, Target};
use crate::terminal::grouped;

/// One mask of a comparison, as it ran.
pub struct Compared {
    pub contender: Contender,
    pub setting: Setting,
    pub row: Row,
    /// For every completion token, true if it was rejected.
    pub rejected: Vec<bool>,
}

pub struct Comparison {
    pub batches: Vec<PathBuf>,
    /// The rejection rate for which thresholds were searched.
    pub target: Option<Target>,
    pub tokens: Tokens,
    pub masks: Vec<Compared>,
    /// A message about each mask that was left out.
    pub left_out: Vec<String>,
}

impl Comparison {
    /// For every pair of masks, the overlap of their rejected tokens.
    pub fn overlap(&self) -> Vec<Vec<Overlap>> {
        let masks = self.masks.iter();
        masks.map(|mask| self.overlap_with(mask)).collect()
    }

    fn overlap_with(&self, mask: &Compared) -> Vec<Overlap> {
        self.masks
            .iter()
            .map(|other| Overlap::of(&mask.rejected, &other.rejected))
            .collect()
    }

    /// Mean advantage of all tokens, in reward units.
    pub fn mean_advantage(&self) -> f64 {
        self.tokens.mean_advantage(|_| true).unwrap_or_default()
    }

    /// The numbers of tokens and of completions, for a person.
    pub fn size(&self) -> String {
        let Tokens {
            logps, completions, ..
        } = &self.tokens;
        format!(
            "{} tokens in {} completions, mean advantage {:.4}",
            grouped(logps.len() as u64),
            grouped(completions.len() as u64),
            self.mean_advantage()
        )
    }

    /// The variable of the gradients, in words.
    pub fn measure(&self) -> &'static str {
        if self.tokens.last_layer {
            "the last layer's weight"
        } else {
            "the sampled token's logit"
        }
    }
}

/// Statistics of one mask.
pub struct Row {
    pub count: Count,
    /// Number of completions of which it rejected a token.
    pub touched: u64,
    /// Number of completions of which it rejected every token.
    pub whole: u64,
    pub completions: u64,
    /// Share of the rejected tokens in the sum of all tokens' squared gradient norms; `None` if
    /// that sum is 0.
    pub gradient_share: Option<f64>,
    /// Share of the n rejected tokens that are among the n least probable tokens; `None` if n is 0.
    pub least_probable: Option<f64>,
    /// Mean advantage of the tokens that it kept, in reward units; `None` if it kept none.
    pub kept_advantage: Option<f64>,
    /// CPU time of its calls per batch.
    pub time: Duration,
}

impl Row {
    pub fn new(tokens: &Tokens, rejected: &RejectedAlone, batches: usize) -> Self {
        let count = rejected.count();
        let is_rejected = &rejected.tokens;
        let mut touched = 0;
        let mut whole = 0;
        for range in &tokens.completions {
            let of_completion = &is_rejected[range.clone()];
            touched += u64::from(of_completion.contains(&true));
            whole += u64::from(!of_completion.contains(&false));
        }
        let mut removed = 0.0;
        let mut least = 0;
        for i in (0..is_rejected.len()).filter(|&i| is_rejected[i]) {
            removed += tokens.squares[i];
            least += u64::from(u64::from(tokens.ranks[i]) < count.rejected);
        }
        let all: f64 = tokens.squares.iter().sum();
        Self {
            count,
            touched,
            whole,
            completions: tokens.completions.len() as u64,
            gradient_share: (all > 0.0).then(|| removed / all),
            least_probable: (count.rejected > 0).then(|| least as f64 / count.rejected as f64),
            kept_advantage: tokens.mean_advantage(|i| !is_rejected[i]),
            time: rejected.time / batches.max(1) as u32,
        }
    }
}

/// Overlap of two masks, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// Number of tokens that both masks rejected.
    pub both: u64,
    /// Number of tokens that at least one mask rejected.
    pub either: u64,
}

impl Overlap {
    /// Overlap of two masks, by their decisions about the same tokens.
    pub fn of(a: &[bool], b: &[bool]) -> Self {
        let pairs = a.iter().zip(b);
        Self {
            both: pairs.clone().filter(|(a, b)| **a && **b).count() as u64,
            either: pairs.filter(|(a, b)| **a || **b).count() as u64,
        }
    }

    /// The Jaccard index; `None` if neither mask rejected a token.
    pub fn share(self) -> Option<f64> {
        (self.either > 0).then(|| self.both as f64 / self.either as f64)
    }
}

#[cfg(test)]
mod tests {
    use capo_plugin::Batch;
    use capo_plugin::testing::Fixture;

    use super::*;

    fn without_layer(mut batch: Batch<'_>) -> Batch<'_> {
        batch.last_layer = None;
        batch
    }

    fn row(rejected: [bool; 5]) -> Row {
        let fixture = Fixture::new(3, 3)
            .logps(&[-1.0, -3.0, 0.0, -2.0, 0.0, 0.0, -0.5, -4.0, 0.0])
            .advantages(&[1.0, 1.0, 0.0, -2.0, 0.0, 0.0, 0.5, 0.5, 0.0])
            .lengths(&[2, 1, 2]);
        // Squared norms without the last layer: (w (1 - p))², w = -A ÷ 3 ÷ length.
        let tokens = Tokens::of(&without_layer(fixture.batch())).unwrap();
        Row::new(
            &tokens,
            &RejectedAlone {
                tokens: rejected.to_vec(),
                time: Duration::from_millis(8),
            },
            2,
        )
    }

    #[test]
    fn counts_the_rejected_tokens() {
        let Row {
            count,
            touched,
            whole,
            completions,
            gradient_share,
            least_probable,
            kept_advantage,
            time,
        } = row([false, true, true, true, false]);
        assert_eq!(
            (count.rejected, count.tokens, touched, whole, completions),
            (3, 5, 3, 1, 3)
        );
        let square = |advantage: f64, length: f64, logp: f64| {
            (advantage / 3.0 / length * (1.0 - logp.exp())).powi(2)
        };
        let removed = square(1.0, 2.0, -3.0) + square(-2.0, 1.0, -2.0) + square(0.5, 2.0, -0.5);
        let kept = square(1.0, 2.0, -1.0) + square(0.5, 2.0, -4.0);
        assert!((gradient_share.unwrap() - removed / (removed + kept)).abs() < 1e-12);
        // The three least probable tokens are at -4, -3 and -2; two of them were rejected.
        assert_eq!(least_probable, Some(2.0 / 3.0));
        assert_eq!(kept_advantage, Some(0.75));
        assert_eq!(time, Duration::from_millis(4));
    }

    #[test]
    fn nothing_and_everything_have_no_kept_or_rejected_share() {
        let none = row([false; 5]);
        assert_eq!(
            (
                none.touched,
                none.whole,
                none.gradient_share,
                none.least_probable
            ),
            (0, 0, Some(0.0), None)
        );
        assert!(none.gradient_share.unwrap().is_sign_positive());
        let all = row([true; 5]);
        assert_eq!(
            (
                all.whole,
                all.gradient_share,
                all.least_probable,
                all.kept_advantage
            ),
            (3, Some(1.0), Some(1.0), None)
        );
    }

    #[test]
    fn uses_gradients_of_the_last_layer_if_the_batch_holds_it() {
        let fixture = Fixture::new(1, 3);
        let batches = [fixture.batch(), without_layer(fixture.batch())];
        let [full, bare] = batches.map(|batch| Tokens::of(&batch).unwrap());
        assert!(full.last_layer && !bare.last_layer && full.squares != bare.squares);
    }

    #[test]
    fn divides_the_overlap_by_the_union() {
        let overlap = |a: &[bool], b: &[bool]| Overlap::of(a, b).share();
        let (a, b) = ([true, true, false, false], [false, true, true, false]);
        assert_eq!(overlap(&a, &b), Some(1.0 / 3.0));
        assert_eq!(overlap(&a, &a), Some(1.0));
        assert_eq!(overlap(&a, &[false; 4]), Some(0.0));
        assert_eq!(overlap(&[false; 4], &[false; 4]), None);
    }
}
