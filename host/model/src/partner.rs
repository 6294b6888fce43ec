//! Sampled completions, and the other side of a conversation, which adds tokens to a row whenever
//! the row's turn has ended.

use std::ops::Range;

use anyhow::Result;

/// One sampled completion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SampledTokens {
    /// Token ids, including the end-of-sequence token if it was drawn.
    pub ids: Vec<u32>,
    /// Ranges of the ids that a partner added. Their log-probabilities and top tokens are 0.
    pub added: Vec<Range<usize>>,
    /// True if the length limit ended the completion.
    pub truncated: bool,
    /// Log-probabilities of the ids under `logits / temperature` (1 when greedy) before top-k and
    /// top-p, nats; empty unless asked for.
    pub logps: Vec<f32>,
    /// Log-probabilities of the ids under the distribution that they were drawn from, after top-k
    /// and top-p, nats; empty unless asked for.
    pub sampler_logps: Vec<f32>,
    /// `[tokens, top_k]`: ids of the most likely tokens at each position, most likely first; empty
    /// unless asked for.
    pub top_ids: Vec<u32>,
    /// Log-probabilities of `top_ids` under the sampled distribution, nats: minus infinity for a
    /// token outside top-k or top-p.
    pub top_logps: Vec<f32>,
}

impl SampledTokens {
    /// Number of tokens that the model drew.
    pub fn drawn(&self) -> usize {
        self.ids.len() - self.added.iter().map(Range::len).sum::<usize>()
    }
}

/// The tokens that a row reads after its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The row that waits for this reply.
    pub row: usize,
    /// Tokens to append to the row, whose next turn follows; `None` ends the row.
    pub ids: Option<Vec<u32>>,
}

/// Answers the turns of some rows. Each row waits for its own replies alone, and draws the same
/// tokens whenever a reply comes.
pub trait Partner: Send {
    /// Receives a row whose turn has ended. The partner must reply to it. A truncated row takes no
    /// more tokens.
    fn listen(&mut self, row: usize, sampled: &SampledTokens) -> Result<()>;

    /// Returns the replies that have come. If `wait` is true, waits for at least one.
    fn replies(&mut self, wait: bool) -> Result<Vec<Reply>>;
}
