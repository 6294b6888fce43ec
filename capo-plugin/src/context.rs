//! The rollout's context: facts about its completions besides the batch. A host fills it in, and
//! components read it.

use std::ops::Range;

use abi_stable::StableAbi;
use abi_stable::std_types::RSlice;

/// Part `index` of `values`, which holds all parts in sequence; `ends` holds the end of each.
fn part<'a, T>(values: &'a [T], ends: &[u64], index: usize) -> &'a [T] {
    let start = if index == 0 { 0 } else { ends[index - 1] };
    &values[start as usize..ends[index] as usize]
}

fn text(bytes: &[u8]) -> &str {
    // A host writes only whole UTF-8 texts.
    std::str::from_utf8(bytes).unwrap_or_default()
}

/// Facts about a rollout's completions besides the batch: prompts, texts, rewards per function, the
/// sampler's own log-probabilities.
///
/// Indices are as in [`Batch`](crate::Batch): completion b of B, token t of T. An index out of
/// range panics.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct RolloutContext<'a> {
    group_size: u64,
    tokens: u64,
    age: u64,
    prompt_ids: RSlice<'a, u32>,
    prompt_ends: RSlice<'a, u64>,
    prompt_numbers: RSlice<'a, u64>,
    lines: RSlice<'a, u64>,
    texts: RSlice<'a, u8>,
    text_ends: RSlice<'a, u64>,
    spans: RSlice<'a, u32>,
    reward_names: RSlice<'a, u8>,
    reward_name_ends: RSlice<'a, u64>,
    rewards: RSlice<'a, f32>,
    sampler_logps: RSlice<'a, f32>,
}

impl<'a> RolloutContext<'a> {
    /// Token ids of the prompt of completion `b`, without padding.
    pub fn prompt_ids(&self, b: usize) -> &'a [u32] {
        part(
            self.prompt_ids.as_slice(),
            self.prompt_ends.as_slice(),
            self.group(b),
        )
    }

    /// Position of the prompt in the run's sequence of prompts, from 0. A repeated prompt gets a
    /// new number each time.
    pub fn prompt_number(&self, b: usize) -> u64 {
        self.prompt_numbers.as_slice()[self.group(b)]
    }

    /// Line of the dataset's file that holds the prompt, from 1; `None` where prompts are
    /// generated.
    pub fn line(&self, b: usize) -> Option<u64> {
        Some(self.lines.as_slice()[self.group(b)]).filter(|&line| line > 0)
    }

    /// Text of completion `b`, without special tokens.
    pub fn text(&self, b: usize) -> &'a str {
        text(part(self.texts.as_slice(), self.text_ends.as_slice(), b))
    }

    /// Bytes of [`text`](Self::text) that token `t` of completion `b` encodes. The range is empty
    /// for special tokens and padding. A character of several tokens belongs to the last of them.
    pub fn span(&self, b: usize, t: usize) -> Range<usize> {
        let at = 2 * (b * self.tokens as usize + t);
        let spans = self.spans.as_slice();
        spans[at] as usize..spans[at + 1] as usize
    }

    /// Names of the run's reward functions, in configured order.
    pub fn reward_names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let names = self.reward_names.as_slice();
        let ends = self.reward_name_ends.as_slice();
        (0..ends.len()).map(move |index| text(part(names, ends, index)))
    }

    /// `[B]`: rewards of reward function `index`, before its weight is applied.
    pub fn rewards(&self, index: usize) -> &'a [f32] {
        let count = self.text_ends.as_slice().len();
        &self.rewards.as_slice()[index * count..(index + 1) * count]
    }

    /// `[B, T]`, nats: log-probability of each token in the distribution from which it was drawn.
    /// Temperature and truncation are included, and the precision is the sampler's own, as vLLM
    /// reports it to TRL and verl. 0 on padding.
    ///
    /// The trainer's own values for the same policy are
    /// [`Batch::old_logps`](crate::Batch::old_logps).
    pub fn sampler_logps(&self) -> &'a [f32] {
        self.sampler_logps.as_slice()
    }

    /// Optimizer steps since these completions were sampled.
    pub fn age(&self) -> u64 {
        self.age
    }

    fn group(&self, b: usize) -> usize {
        b / self.group_size.max(1) as usize
    }
}

/// The sampler's most likely tokens at each position. Indices are as in [`Batch`](crate::Batch); an
/// index out of range panics.
#[repr(C)]
#[derive(StableAbi, Clone, Copy, Debug)]
pub struct SamplerTopK<'a> {
    tokens: u64,
    k: u64,
    ids: RSlice<'a, u32>,
    logps: RSlice<'a, f32>,
}

impl<'a> SamplerTopK<'a> {
    /// K: number of tokens at each position.
    pub fn k(&self) -> usize {
        self.k as usize
    }

    /// `[K]`: ids of the most likely tokens at position `t` of completion `b`, most likely first;
    /// ties go to the lower id.
    pub fn ids(&self, b: usize, t: usize) -> &'a [u32] {
        &self.ids.as_slice()[self.place(b, t)]
    }

    /// `[K]`, nats: log-probabilities of these tokens in the distribution from which the token was
    /// drawn, temperature and truncation included. Minus infinity for a token that truncation
    /// excluded. 0 on padding.
    pub fn logps(&self, b: usize, t: usize) -> &'a [f32] {
        &self.logps.as_slice()[self.place(b, t)]
    }

    fn place(&self, b: usize, t: usize) -> Range<usize> {
        let token = b * self.tokens as usize + t;
        let k = self.k();
        token * k..(token + 1) * k
    }
}

/// One completion, as a host provides it.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionContext<'a> {
    /// Text of the completion.
    pub text: &'a str,
    /// Byte range of the text for each token.
    pub spans: &'a [[u32; 2]],
    /// Nats: log-probability with which each token was drawn.
    pub sampler_logps: &'a [f32],
}

/// A prompt, as a host provides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptContext<'a> {
    /// Token ids of the prompt.
    pub ids: &'a [u32],
    /// Position in the run's sequence of prompts, from 0.
    pub number: u64,
    /// Line in the dataset's file, from 1; `None` for a generated prompt.
    pub line: Option<u64>,
}

/// The arrays that a host lends as [`RolloutContext`]. Lists of different lengths are stored in
/// sequence, and a further array holds the end of each list. Letters are as in
/// [`Batch`](crate::Batch); P = B ÷ G prompts, R reward functions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContextData {
    /// G: completions per prompt.
    pub group_size: u64,
    /// T: padded completion length, tokens.
    pub tokens: u64,
    /// Token ids of all prompts, in sequence.
    pub prompt_ids: Vec<u32>,
    /// `[P]`: end of each prompt in `prompt_ids`.
    pub prompt_ends: Vec<u64>,
    /// `[P]`: positions in the run's sequence of prompts, from 0.
    pub prompt_numbers: Vec<u64>,
    /// `[P]`: lines of the dataset's file, from 1; 0 for a generated prompt.
    pub lines: Vec<u64>,
    /// UTF-8 text of all completions, in sequence.
    pub texts: Vec<u8>,
    /// `[B]`: end of each text in `texts`, bytes.
    pub text_ends: Vec<u64>,
    /// `[B, T, 2]`: byte range of each token within its completion's text.
    pub spans: Vec<u32>,
    /// UTF-8 names of all reward functions, in sequence.
    pub reward_names: Vec<u8>,
    /// `[R]`: end of each name in `reward_names`, bytes.
    pub reward_name_ends: Vec<u64>,
    /// `[R, B]`: reward of each function for each completion.
    pub rewards: Vec<f32>,
    /// `[B, T]`, nats: log-probabilities with which the tokens were drawn.
    pub sampler_logps: Vec<f32>,
    /// K; 0 where the most likely tokens are not known.
    pub top_k: u64,
    /// `[B, T, K]`: ids of the most likely tokens.
    pub top_ids: Vec<u32>,
    /// `[B, T, K]`, nats: log-probabilities of `top_ids`, as in [`SamplerTopK::logps`].
    pub top_logps: Vec<f32>,
}

impl ContextData {
    /// Context of completions with at most `tokens` tokens; every prompt must have equally many
    /// completions.
    pub fn new<'a>(
        tokens: usize,
        prompts: impl Iterator<Item = PromptContext<'a>>,
        completions: impl Iterator<Item = CompletionContext<'a>>,
    ) -> Self {
        let mut data = Self {
            tokens: tokens as u64,
            ..Self::default()
        };
        for prompt in prompts {
            data.prompt_ids.extend(prompt.ids);
            data.prompt_ends.push(data.prompt_ids.len() as u64);
            data.prompt_numbers.push(prompt.number);
            data.lines.push(prompt.line.unwrap_or(0));
        }
        for completion in completions {
            data.texts.extend(completion.text.as_bytes());
            data.text_ends.push(data.texts.len() as u64);
            let end = completion.text.len() as u32;
            let padding = tokens.saturating_sub(completion.spans.len());
            data.spans
                .extend(completion.spans.iter().take(tokens).flatten());
            data.spans.extend(std::iter::repeat_n(end, 2 * padding));
            data.sampler_logps
                .extend(completion.sampler_logps.iter().take(tokens));
            data.sampler_logps
                .resize(data.text_ends.len() * tokens, 0.0);
        }
        data.group_size = (data.text_ends.len() / data.prompt_ends.len().max(1)) as u64;
        data
    }

    /// Adds the rewards `[B]` of reward function `name`.
    ///
    /// # Panics
    ///
    /// When `rewards` does not hold one number per completion.
    pub fn add_reward(&mut self, name: &str, rewards: &[f32]) {
        assert_eq!(rewards.len(), self.text_ends.len(), "`rewards` is [B]");
        self.reward_names.extend(name.as_bytes());
        self.reward_name_ends.push(self.reward_names.len() as u64);
        self.rewards.extend(rewards);
    }

    /// Adds the sampler's `k` most likely tokens at each position and their log-probabilities,
    /// `[B, T, K]` each, as in [`SamplerTopK`].
    ///
    /// # Panics
    ///
    /// When an array does not hold B · T · K numbers.
    pub fn set_top_k(&mut self, k: usize, ids: Vec<u32>, logps: Vec<f32>) {
        let expected = self.sampler_logps.len() * k;
        assert_eq!(
            (ids.len(), logps.len()),
            (expected, expected),
            "ids and log-probabilities are [B, T, K]"
        );
        self.top_k = k as u64;
        self.top_ids = ids;
        self.top_logps = logps;
    }

    /// The context of completions `rows` alone, which must be a whole number of groups.
    pub fn part(&self, rows: Range<usize>) -> Self {
        let context = self.lend(0);
        let count = self.text_ends.len();
        let groups = rows.clone().step_by(self.group_size.max(1) as usize);
        let prompts = groups.map(|b| PromptContext {
            ids: context.prompt_ids(b),
            number: context.prompt_number(b),
            line: context.line(b),
        });
        let tokens = self.tokens as usize;
        let spans: Vec<[u32; 2]> = self
            .spans
            .chunks_exact(2)
            .map(|span| [span[0], span[1]])
            .collect();
        let completions = rows.clone().map(|b| CompletionContext {
            text: context.text(b),
            spans: &spans[b * tokens..(b + 1) * tokens],
            sampler_logps: &self.sampler_logps[b * tokens..(b + 1) * tokens],
        });
        let mut part = Self::new(tokens, prompts, completions);
        for (name, rewards) in context
            .reward_names()
            .zip(self.rewards.chunks(count.max(1)))
        {
            part.add_reward(name, &rewards[rows.clone()]);
        }
        let tops =
            rows.start * tokens * self.top_k as usize..rows.end * tokens * self.top_k as usize;
        part.set_top_k(
            self.top_k as usize,
            self.top_ids[tops.clone()].to_vec(),
            self.top_logps[tops].to_vec(),
        );
        part
    }

    /// The context as components see it, `age` optimizer steps after the completions were sampled.
    pub fn lend(&self, age: u64) -> RolloutContext<'_> {
        RolloutContext {
            group_size: self.group_size,
            tokens: self.tokens,
            age,
            prompt_ids: RSlice::from_slice(&self.prompt_ids),
            prompt_ends: RSlice::from_slice(&self.prompt_ends),
            prompt_numbers: RSlice::from_slice(&self.prompt_numbers),
            lines: RSlice::from_slice(&self.lines),
            texts: RSlice::from_slice(&self.texts),
            text_ends: RSlice::from_slice(&self.text_ends),
            spans: RSlice::from_slice(&self.spans),
            reward_names: RSlice::from_slice(&self.reward_names),
            reward_name_ends: RSlice::from_slice(&self.reward_name_ends),
            rewards: RSlice::from_slice(&self.rewards),
            sampler_logps: RSlice::from_slice(&self.sampler_logps),
        }
    }

    /// The sampler's most likely tokens as components see them, or `None` where they are not known.
    pub fn top_k(&self) -> Option<SamplerTopK<'_>> {
        (self.top_k > 0).then_some(SamplerTopK {
            tokens: self.tokens,
            k: self.top_k,
            ids: RSlice::from_slice(&self.top_ids),
            logps: RSlice::from_slice(&self.top_logps),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::odd_context;

    #[test]
    fn returns_what_was_put_in() {
        let data = odd_context();
        let context = data.lend(5);
        assert_eq!(
            [0, 1, 2, 3].map(|b| context.prompt_ids(b)),
            [&[1, 2][..], &[1, 2], &[4], &[4]]
        );
        assert_eq!(
            [0, 3].map(|b| (context.prompt_number(b), context.line(b))),
            [(7, Some(3)), (8, None)]
        );
        assert_eq!(
            [0, 1, 2, 3].map(|b| context.text(b)),
            ["ab", "", "\u{e9}", "xyz"]
        );
        assert_eq!(
            (
                context.span(0, 1),
                context.span(0, 2),
                context.span(2, 1),
                context.span(1, 0)
            ),
            (1..2, 2..2, 0..2, 0..0)
        );
        assert_eq!(
            context.reward_names().collect::<Vec<_>>(),
            ["exact_match", "length"]
        );
        assert_eq!((context.rewards(0)[2], context.rewards(1)[3]), (0.5, 0.4));
        assert_eq!(
            context.sampler_logps(),
            [
                -0.5, -1.0, 0.0, 0.0, 0.0, 0.0, -0.1, -0.2, -0.3, -2.0, 0.0, 0.0
            ]
        );
        assert_eq!(context.age(), 5);
        let top_k = data.top_k().unwrap();
        assert_eq!((top_k.k(), top_k.ids(1, 2)), (2, &[10, 11][..]));
        assert_eq!(top_k.logps(3, 0), [-0.25, f32::NEG_INFINITY]);
        assert!(ContextData::default().top_k().is_none());
    }

    #[test]
    fn a_part_has_the_entries_of_its_rows() {
        let (data, part) = (odd_context(), odd_context().part(2..4));
        let (all, context) = (data.lend(0), part.lend(7));
        for b in 0..2 {
            assert_eq!(
                (context.prompt_ids(b), context.line(b)),
                (all.prompt_ids(b + 2), all.line(b + 2))
            );
            assert_eq!(context.text(b), all.text(b + 2));
            assert!((0..3).all(|t| context.span(b, t) == all.span(b + 2, t)));
        }
        assert_eq!((context.rewards(1), context.age()), (&[0.3, 0.4][..], 7));
        assert_eq!(context.sampler_logps(), &all.sampler_logps()[6..]);
        assert_eq!(
            part.top_k().unwrap().ids(1, 2),
            data.top_k().unwrap().ids(3, 2)
        );
        assert_eq!(data.part(0..4), data);
    }
}
