//! The other side of a conversation: it adds tokens to a row that is being sampled, whenever the row's turn has ended.

use anyhow::Result;

use super::generate::SampledTokens;

/// What a row reads after its turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The row that has waited.
    pub row: usize,
    /// Tokens to append to the row, whose next turn follows; `None` ends the row.
    pub ids: Option<Vec<u32>>,
}

/// Answers the turns of some rows. Rows wait for their own replies alone, and what they draw does not depend on when a reply comes.
pub trait Partner: Send {
    /// Receives a row whose turn has ended. A reply to it must come; if the row is truncated, it takes no more tokens.
    fn listen(&mut self, row: usize, sampled: &SampledTokens) -> Result<()>;

    /// The replies that have come. If `wait` is true, at least one.
    fn replies(&mut self, wait: bool) -> Result<Vec<Reply>>;
}
