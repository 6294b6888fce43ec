//! A prompt with what was sampled for it.

use super::context::SampledText;
use crate::data::Example;
use crate::model::SampledTokens;
use crate::reward::Scored;

/// A prompt with what was sampled for it, G completions and all that is known of them.
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
    /// Prompt and completion tokens together.
    pub fn tokens(&self) -> u64 {
        let tokens = |completion: &SampledTokens| (self.prompt_ids.len() + completion.ids.len()) as u64;
        self.completions.iter().map(tokens).sum()
    }

    /// True if one completion earned more than another.
    pub fn differs(&self) -> bool {
        self.rewards.total.iter().any(|reward| *reward != self.rewards.total[0])
    }
}
