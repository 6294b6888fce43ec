//! The lines over which the sampler's threads talk to the thread that answers the model's turns.

use std::ops::Range;
use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::{Result, anyhow};
use host_model::{Partner, Reply, SampledTokens};

/// A turn that has ended.
pub(super) struct Heard {
    /// Number of the completion.
    pub row: usize,
    /// Number of the turn, from 0.
    pub number: usize,
    /// Token ids of the turn.
    pub ids: Vec<u32>,
    /// True if the turn has its end token.
    pub ended: bool,
    /// True if the length limit ended the completion.
    pub truncated: bool,
    /// Number of tokens of the completion so far.
    pub length: usize,
    /// The channel to the waiting row; `None` once it has its reply.
    back: Option<Sender<Reply>>,
}

impl Heard {
    /// Hands `ids` to the row; `None` ends it. A sampler that has stopped needs no reply.
    pub fn reply(mut self, ids: Option<Vec<u32>>) {
        self.send(ids);
    }

    fn send(&mut self, ids: Option<Vec<u32>>) {
        if let Some(back) = self.back.take() {
            let _ = back.send(Reply { row: self.row, ids });
        }
    }
}

impl Drop for Heard {
    /// If the answering thread stops, this ends the row, so that no sampler waits forever.
    fn drop(&mut self) {
        self.send(None);
    }
}

/// The sampler's end of all lines. It makes partners for the sampler's threads.
pub struct Lines {
    turns: Sender<Heard>,
    eos_ids: Vec<u32>,
}

/// Opens the lines. Returns the sampler's end, and that of the answering thread.
pub(super) fn lines(eos_ids: &[u32]) -> (Lines, Receiver<Heard>) {
    let (turns, heard) = mpsc::channel();
    let eos_ids = eos_ids.to_vec();
    (Lines { turns, eos_ids }, heard)
}

impl Lines {
    /// The partner of some rows.
    pub fn partner(&self, rows: Range<usize>) -> Box<dyn Partner> {
        let (back, replies) = mpsc::channel();
        Box::new(Line {
            first: rows.start,
            turns: self.turns.clone(),
            back,
            replies,
            eos_ids: self.eos_ids.clone(),
        })
    }
}

/// The line of one of the sampler's threads.
struct Line {
    /// Number of the thread's first row.
    first: usize,
    turns: Sender<Heard>,
    back: Sender<Reply>,
    replies: Receiver<Reply>,
    eos_ids: Vec<u32>,
}

/// The error of a sampler that gets no answer. The answering thread reports the reason.
fn hung_up() -> anyhow::Error {
    anyhow!("the environment has stopped")
}

impl Partner for Line {
    fn listen(&mut self, row: usize, sampled: &SampledTokens) -> Result<()> {
        let from = sampled.added.last().map_or(0, |added| added.end);
        let ids = sampled.ids[from..].to_vec();
        let heard = Heard {
            row: self.first + row,
            number: sampled.added.len(),
            ended: ids.last().is_some_and(|id| self.eos_ids.contains(id)),
            ids,
            truncated: sampled.truncated,
            length: sampled.ids.len(),
            back: Some(self.back.clone()),
        };
        self.turns.send(heard).map_err(|_| hung_up())
    }

    fn replies(&mut self, wait: bool) -> Result<Vec<Reply>> {
        let first = if wait {
            Some(self.replies.recv().map_err(|_| hung_up())?)
        } else {
            None
        };
        let mut replies = Vec::new();
        for reply in first.into_iter().chain(self.replies.try_iter()) {
            replies.push(Reply {
                row: reply.row - self.first,
                ..reply
            });
        }
        Ok(replies)
    }
}
