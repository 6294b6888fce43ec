//! A host's side of a fixture's calls: the recorded reports, and the rollout's context.

use super::{Fixture, Measured, Records};
use crate::abi_alignment::{ALIGNMENT, Alignment};
use crate::{CompletionContext, Connection, ContextData, Extension, Lending, PromptContext, Sink};

/// A sink that stores reports and lends a [`ContextData`].
#[derive(Debug)]
pub struct Listener<'a> {
    /// The recorded reports.
    pub records: Records,
    pub(super) context: Lending<'a>,
    pub(super) alignment: Alignment,
    /// Connection with the other ranks, on one of several ranks.
    pub(super) ranks: Option<Connection<'a>>,
}

impl<'a> Listener<'a> {
    /// A sink without reports, on a batch with the context `context`, as from [`Fixture::context`].
    pub fn new(context: &'a ContextData) -> Self {
        let alignment = Alignment { cosine: Measured::default().alignment };
        Self { records: Records::default(), context: context.lend(0), alignment, ranks: None }
    }

    /// A sink on `batch`, whose proposed update it knows.
    pub(super) fn of(batch: &Fixture, context: &'a ContextData) -> Self {
        Self { alignment: Alignment { cosine: batch.update.alignment }, ..Self::new(context) }
    }
}

impl Sink for Listener<'_> {
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        Some(&mut self.records)
    }

    fn extension(&mut self, id: &str) -> Option<Extension<'_>> {
        if id == ALIGNMENT {
            return Some(Extension::of(&self.alignment));
        }
        let ranks = self.ranks.as_mut().and_then(|ranks| ranks.extension(id));
        ranks.or_else(|| self.context.extension(id))
    }
}

impl Fixture {
    /// A context that fits the batch. Texts have one letter per token, prompts have three tokens, and the rewards
    /// have one name. The sampler's log-probabilities are near the trainer's `old_logps`. Its two most likely tokens
    /// are the drawn token and the next id, which has the remaining probability.
    pub fn context(&self) -> ContextData {
        let rows: Vec<_> = (0..self.dims.completions as usize).map(|b| self.dims.row(b)).collect();
        let length = |b: usize| rows[b].clone().filter(|&i| self.mask[i] == 1).count();
        let texts: Vec<String> = (0..rows.len())
            .map(|b| rows[b].clone().take(length(b)).map(|i| char::from(b'a' + (self.ids[i] % 26) as u8)).collect())
            .collect();
        let spans: Vec<[u32; 2]> = (0..self.dims.tokens as u32).map(|t| [t, t + 1]).collect();
        let off = || self.old_logps.iter().map(|logp| logp * 1.01).collect();
        let sampled = self.sampler_logps.clone().unwrap_or_else(off);
        let prompts: Vec<[u32; 3]> = self
            .dims
            .groups()
            .map(|group| [1, self.ids.get(rows[group.start].start).map_or(2, |id| id + 2), 3])
            .collect();
        let prompts = prompts.iter().zip(0..).map(|(ids, number)| PromptContext { ids, number, line: None });
        let completions = (0..rows.len()).map(|b| CompletionContext {
            text: &texts[b],
            spans: &spans[..length(b)],
            sampler_logps: &sampled[rows[b].clone()][..length(b)],
        });
        let mut context = ContextData::new(self.dims.tokens as usize, prompts, completions);
        context.add_reward("test.reward", &self.rewards);
        let (ids, logps): (Vec<_>, Vec<_>) = (0..self.dims.len()).flat_map(|i| self.top_two(i)).unzip();
        context.set_top_k(2, ids, logps);
        context
    }

    /// Ids and log-probabilities of the sampler's two most likely tokens at position `i` of `[B, T]`.
    fn top_two(&self, i: usize) -> [(u32, f32); 2] {
        if self.mask[i] == 0 {
            return [(0, 0.0); 2];
        }
        let (id, logp) = (self.ids[i], self.old_logps[i] * 1.01);
        let other = ((id + 1) % self.layer.vocab_size.max(1) as u32, (-logp.exp()).ln_1p());
        if logp >= other.1 { [(id, logp), other] } else { [other, (id, logp)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_fits_its_batch() {
        let fixture = Fixture::new(4, 3).groups_of(2).lengths(&[3, 1, 0, 2]);
        let data = fixture.context();
        let context = data.lend(0);
        assert_eq!([0, 1, 2, 3].map(|b| context.text(b).len()), [3, 1, 0, 2]);
        assert_eq!((context.prompt_ids(2).len(), context.rewards(0)[1]), (3, 1.0));
        let off = fixture.batch().old_logps.unwrap().iter().map(|logp| logp * 1.01);
        assert!(context.sampler_logps().iter().copied().eq(off));
    }
}
