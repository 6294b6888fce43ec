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
    /// Origin of the value of its key.
    pub setting: Setting,
    /// Statistics of the mask.
    pub row: Row,
    /// For every completion token, true if it was rejected.
    pub rejected: Vec<bool>,
}

/// The result of a comparison.
pub struct Comparison {
    /// Paths of the batch files, in order.
    pub batches: Vec<PathBuf>,
    /// The rejection rate for which thresholds were searched.
    pub target: Option<Target>,
    /// Number of completion tokens.
    pub tokens: u64,
    /// Number of completions with at least one token.
    pub completions: u64,
    /// Mean advantage of all tokens, in reward units.
    pub mean_advantage: f64,
    /// True if gradients are with respect to the last layer; otherwise they are with respect to the sampled token's logit.
    pub last_layer: bool,
    /// The masks, in order.
    pub masks: Vec<Compared>,
    /// For every pair of masks, the overlap of their rejected tokens.
    pub overlap: Vec<Vec<Overlap>>,
    /// A message about each mask that was left out.
    pub left_out: Vec<String>,
}

impl Comparison {
    /// Compares these masks over these batches.
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

    /// The variable of the gradients, in words.
    pub fn measure(&self) -> &'static str {
        if self.last_layer { "the last layer's weight" } else { "the sampled token's logit" }
    }
}
