//! The context of a fixture's rollout.

use super::Fixture;
use crate::{CompletionContext, ContextData, PromptContext};

impl Fixture {
    /// A context that fits the batch. Texts have one letter per token, prompts have three tokens, and the rewards
    /// have one name. The sampler's log-probabilities are near the trainer's `old_logps`. Its two most likely tokens
    /// are the drawn token and the next id, which has the remaining probability.
    pub fn context(&self) -> ContextData {
        let rows: Vec<_> = (0..self.dims.completions as usize).map(|b| self.dims.row(b)).collect();
        let length = |b: usize| rows[b].clone().rposition(|i| self.mask[i] == 1).map_or(0, |last| last + 1);
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
