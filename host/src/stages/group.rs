//! A prompt with its sampled completions.

use super::context::SampledText;
use crate::data::Example;
use crate::model::SampledTokens;
use crate::reward::Scored;

/// A prompt with its G sampled completions and their data.
pub(super) struct Group {
    /// The prompt's number in the run's order.
    pub number: u64,
    pub example: Example,
    pub prompt_ids: Vec<u32>,
    pub completions: Vec<SampledTokens>,
    pub texts: Vec<SampledText>,
    pub rewards: Scored,
}

impl Group {
    /// Number of prompt and completion tokens.
    pub fn tokens(&self) -> u64 {
        let tokens = |completion: &SampledTokens| (self.prompt_ids.len() + completion.ids.len()) as u64;
        self.completions.iter().map(tokens).sum()
    }

    /// True if the rewards of the completions differ.
    pub fn differs(&self) -> bool {
        self.rewards.total.iter().any(|reward| *reward != self.rewards.total[0])
    }
}
