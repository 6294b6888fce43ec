//! The result of a comparison.

use std::path::PathBuf;

use super::contender::Contender;
use super::row::{Overlap, Row};
use super::setting::Setting;
use super::tokens::Tokens;
use crate::commands::sweep::Target;

/// One mask of a comparison.
pub struct Compared {
    /// The mask as it ran.
    pub contender: Contender,
    /// Where the value of its key comes from.
    pub setting: Setting,
    /// Its numbers.
    pub row: Row,
    /// Of every completion token, whether it was rejected.
    pub rejected: Vec<bool>,
}

/// The result of a comparison.
pub struct Comparison {
    /// Batch files, in order.
    pub batches: Vec<PathBuf>,
    /// The rate that thresholds were searched for.
    pub target: Option<Target>,
    /// Completion tokens.
    pub tokens: u64,
    /// Completions that have some.
    pub completions: u64,
    /// Mean advantage of all tokens, reward units.
    pub mean_advantage: f64,
    /// True if gradients are those of the last layer, or else of the sampled token's logit.
    pub last_layer: bool,
    /// The masks, in order.
    pub masks: Vec<Compared>,
    /// Overlap of every two masks: rejected tokens that they share.
    pub overlap: Vec<Vec<Overlap>>,
    /// A sentence about each mask that was left out.
    pub left_out: Vec<String>,
}

impl Comparison {
    /// Of these masks over these batches.
    pub fn new(
        batches: &[PathBuf],
        target: Option<Target>,
        tokens: &Tokens,
        masks: Vec<Compared>,
        left_out: Vec<String>,
    ) -> Self {
        let shared = |a: &Compared| masks.iter().map(|b| Overlap::of(&a.rejected, &b.rejected)).collect();
        Self {
            batches: batches.to_vec(),
            target,
            tokens: tokens.logps.len() as u64,
            completions: tokens.completions.len() as u64,
            mean_advantage: tokens.mean_advantage(|_| true).unwrap_or_default(),
            last_layer: tokens.last_layer,
            overlap: masks.iter().map(shared).collect(),
            masks,
            left_out,
        }
    }

    /// The variable with respect to which gradients are taken, in words.
    pub fn measure(&self) -> &'static str {
        if self.last_layer { "the last layer's weight" } else { "the sampled token's logit" }
    }
}
