//! The context of a fixture's rollout.

use std::ops::Range;

use super::Fixture;
use crate::{CompletionContext, ContextData, PromptContext};

/// Text of each id, so that a component which reads texts finds something in a fixture: letters,
/// words, digits, signs, a character of two bytes, line breaks. The ids that fixtures have by
/// themselves are 0, 3, 6, 7, 9 and 12.
const TEXTS: [&str; 16] = [
    "a", "b", "c", " 42", "d", "e", " +", "the", "f", "\u{e9}", "g", "=", ".\n", " so", "?",
    "\\boxed{",
];

impl Fixture {
    /// A context that fits the batch. Texts are those of [`Self::texts`], prompts those of
    /// [`Self::prompt_ids`], and the rewards have one name. The sampler's log-probabilities are
    /// near the trainer's `old_logps`. Its two most likely tokens are the drawn token and the next
    /// id, which has the remaining probability.
    pub fn context(&self) -> ContextData {
        let rows: Vec<_> = (0..self.dims.completions as usize)
            .map(|b| self.dims.row(b))
            .collect();
        let length = |b: usize| {
            rows[b]
                .clone()
                .rposition(|i| self.mask[i] == 1)
                .map_or(0, |last| last + 1)
        };
        let texts: Vec<String> = (0..rows.len())
            .map(|b| {
                rows[b]
                    .clone()
                    .take(length(b))
                    .map(|i| self.text(i))
                    .collect()
            })
            .collect();
        let spans: Vec<[u32; 2]> = (0..rows.len())
            .flat_map(|b| self.spans(rows[b].clone()))
            .collect();
        let off = || self.old_logps.iter().map(|logp| logp * 1.01).collect();
        let sampled = self.sampler_logps.clone().unwrap_or_else(off);
        let made = |b: usize| vec![1, self.ids.get(rows[b].start).map_or(2, |id| id + 2), 3];
        let of_row = |b: usize| {
            self.prompts
                .as_ref()
                .map_or_else(|| made(b), |prompts| prompts[b].clone())
        };
        let prompts: Vec<Vec<u32>> = self
            .dims
            .groups()
            .map(|group| of_row(group.start))
            .collect();
        let prompts = prompts.iter().zip(0..).map(|(ids, number)| PromptContext {
            ids,
            number,
            line: None,
        });
        let completions = (0..rows.len()).map(|b| CompletionContext {
            text: &texts[b],
            spans: &spans[rows[b].clone()][..length(b)],
            sampler_logps: &sampled[rows[b].clone()][..length(b)],
        });
        let mut context = ContextData::new(self.dims.tokens as usize, prompts, completions);
        context.add_reward("test.reward", &self.rewards);
        let (ids, logps): (Vec<_>, Vec<_>) =
            (0..self.dims.len()).flat_map(|i| self.top_two(i)).unzip();
        context.set_top_k(2, ids, logps);
        context
    }

    /// The text that token `i` of `[B, T]` adds to its completion.
    fn text(&self, i: usize) -> &str {
        let of_id = || TEXTS[self.ids[i] as usize % TEXTS.len()];
        self.texts
            .as_ref()
            .map_or_else(of_id, |texts| texts[i].as_str())
    }

    /// The bytes of a completion's text that each of its tokens adds.
    fn spans(&self, row: Range<usize>) -> impl Iterator<Item = [u32; 2]> {
        row.scan(0, |end, i| {
            let start = *end;
            *end += self.text(i).len() as u32;
            Some([start, *end])
        })
    }

    /// Ids and log-probabilities of the sampler's two most likely tokens at position `i` of
    /// `[B, T]`.
    fn top_two(&self, i: usize) -> [(u32, f32); 2] {
        if self.mask[i] == 0 {
            return [(0, 0.0); 2];
        }
        let (id, logp) = (self.ids[i], self.old_logps[i] * 1.01);
        let other = (
            (id + 1) % self.layer.vocab_size.max(1) as u32,
            (-logp.exp()).ln_1p(),
        );
        if logp >= other.1 {
            [(id, logp), other]
        } else {
            [other, (id, logp)]
        }
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
        let texts = [0, 1, 2, 3].map(|b| context.text(b));
        assert_eq!(texts, [" 42thethe", " 42", "", ".\n\u{e9}"]);
        assert_eq!(
            [0, 1, 2].map(|t| &texts[0][context.span(0, t)]),
            [" 42", "the", "the"]
        );
        assert_eq!(
            (context.prompt_ids(2).len(), context.rewards(0)[1]),
            (3, 1.0)
        );
        let off = fixture
            .batch()
            .old_logps
            .unwrap()
            .iter()
            .map(|logp| logp * 1.01);
        assert!(context.sampler_logps().iter().copied().eq(off));
    }

    #[test]
    fn texts_and_prompts_are_those_that_were_set_and_move_with_their_rows() {
        let fixture = Fixture::new(4, 3).groups_of(2).texts(&[
            &["1", "+", "\u{e9}"],
            &["x"],
            &[],
            &["", "7"],
        ]);
        let fixture = fixture.prompt_ids(&[&[5], &[6, 7]]);
        assert_eq!(fixture.mask, [1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0]);
        let data = fixture.context();
        let context = data.lend(0);
        assert_eq!(
            [0, 1, 2, 3].map(|b| context.text(b)),
            ["1+\u{e9}", "x", "", "7"]
        );
        assert_eq!(
            [context.span(0, 2), context.span(3, 0), context.span(3, 1)],
            [2..4, 0..0, 0..1]
        );
        assert_eq!(
            [context.prompt_ids(1), context.prompt_ids(2)],
            [&[5][..], &[6, 7]]
        );
        let regrouped = fixture.regrouped(&[1, 0]).context();
        assert_eq!(
            (regrouped.lend(0).text(2), regrouped.lend(0).prompt_ids(0)),
            ("1+\u{e9}", &[6, 7][..])
        );
        let part = fixture.part(3..4).context();
        assert_eq!(
            (part.lend(0).text(0), part.lend(0).prompt_ids(0)),
            ("7", &[6, 7][..])
        );
    }
}
