//! The model's view of a batch: the inputs and the largest outputs of the policy's last layer.

use crate::error::ensure;
use crate::{Error, cuda};

/// Last-layer data of B completions of T tokens; borrowed, row-major, `[b, t]` at index
/// `b * T + t`.
///
/// Padding entries are never read, except the feature after a completion's last token under
/// [`Feature::Next`](crate::Feature::Next).
#[derive(Debug, Clone, Copy)]
pub struct LastLayer<'a> {
    /// B: completions.
    pub completions: usize,
    /// T: tokens per completion, padding included.
    pub tokens: usize,
    /// G: consecutive completions that share a prompt; divides B. Used by `Granularity::Group`
    /// only.
    pub group_size: usize,
    /// K: logits kept per token.
    pub k: usize,
    /// D: width of a feature.
    pub width: usize,
    /// V: rows of the last layer's weight matrix.
    pub vocab_size: usize,
    /// `[B, T]`: ids of the sampled tokens.
    pub action_ids: &'a [u32],
    /// The large arrays, which may be on a device.
    pub arrays: Arrays<'a>,
}

/// Location of a last layer's large arrays; the model computes there.
#[derive(Debug, Clone, Copy)]
pub enum Arrays<'a> {
    /// In host memory.
    Host(HostArrays<'a>),
    /// In the memory of a CUDA device.
    Cuda(cuda::Arrays<'a>),
}

/// Arrays in host memory.
#[derive(Debug, Clone, Copy)]
pub struct HostArrays<'a> {
    /// `[B, T, D]`: `hidden[b, t]` is the feature whose logits produced token t.
    pub hidden: &'a [f32],
    /// `[B, T, K]`: distinct vocabulary ids of the K largest logits, largest first.
    pub topk_ids: &'a [u32],
    /// `[B, T, K]`: raw logits of these ids, temperature 1.
    pub topk_logits: &'a [f32],
    /// `[B, T]`: raw logit of the sampled token, temperature 1.
    pub action_logits: &'a [f32],
    /// `[B, T]`: logsumexp over the whole vocabulary of logits divided by the loss's temperature;
    /// read for [`Probabilities::Full`](crate::Probabilities::Full) only.
    pub logsumexp: &'a [f32],
}

impl LastLayer<'_> {
    /// Checks that dimensions and lengths agree; an error names the first array with a wrong
    /// length.
    pub fn check(&self) -> Result<(), Error> {
        let &Self {
            completions,
            group_size,
            k,
            width,
            vocab_size,
            ..
        } = self;
        ensure(
            width > 0,
            || "`width` is 0, expected at least 1 (pass the last layer's input width)",
        )?;
        ensure((1..=1 << 32).contains(&(vocab_size as u64)), || {
            format!("`vocab_size` is {vocab_size}, expected 1 to 2^32 (ids are 32-bit)")
        })?;
        ensure((1..=vocab_size).contains(&k), || {
            format!(
                "`k` is {k}, expected 1 to the vocabulary size {vocab_size} (keep that many logits \
                 per token)"
            )
        })?;
        let [hidden, topk_ids, topk_logits, action_logits, logsumexp] = match &self.arrays {
            Arrays::Host(host) => [
                host.hidden.len(),
                host.topk_ids.len(),
                host.topk_logits.len(),
                host.action_logits.len(),
                host.logsumexp.len(),
            ],
            Arrays::Cuda(device) => device.lengths(),
        };
        self.check_length("hidden", "[B, T, D]", hidden, width)?;
        self.check_length("topk_ids", "[B, T, K]", topk_ids, k)?;
        self.check_length("topk_logits", "[B, T, K]", topk_logits, k)?;
        self.check_per_token("action_ids", self.action_ids.len())?;
        self.check_per_token("action_logits", action_logits)?;
        self.check_per_token("logsumexp", logsumexp)?;
        self.check_size()?;
        ensure(
            group_size > 0 && completions.is_multiple_of(group_size),
            || {
                format!(
                    "`group_size` is {group_size}, expected a divisor of the {completions} \
                     completions (pass the completions per prompt)"
                )
            },
        )
    }

    /// Checks that 32 bits suffice to number the pairs of token and row.
    fn check_size(&self) -> Result<(), Error> {
        let tokens = self.completions * self.tokens;
        let rows = self.k + 1;
        ensure(
            tokens
                .checked_mul(rows)
                .is_some_and(|pairs| pairs < u32::MAX as usize),
            || {
                format!(
                    "{tokens} tokens with {rows} rows each are too many, expected below 2^32 pairs \
                     (use a smaller batch, or keep fewer logits)"
                )
            },
        )
    }

    /// Checks the ids of the token at flat position `token`.
    pub(crate) fn check_ids(&self, token: usize, ids: &[u32]) -> Result<(), Error> {
        let outside = ids
            .iter()
            .chain([&self.action_ids[token]])
            .find(|&&id| id as usize >= self.vocab_size);
        let Some(id) = outside else {
            return Ok(());
        };
        Err(Error::input(format!(
            "token {} of completion {} has id {id}, expected below the vocabulary size {} (check \
             `topk_ids`, `action_ids`)",
            token % self.tokens,
            token / self.tokens,
            self.vocab_size
        )))
    }

    /// Checks the length of a `[V, D]` array that comes with the batch.
    pub(crate) fn check_matrix(&self, name: &str, length: usize) -> Result<(), Error> {
        let v = self.vocab_size;
        let d = self.width;
        ensure(v.checked_mul(d) == Some(length), || {
            format!(
                "`{name}` has {length} entries, expected {v} x {d} for `[V, D]` (pass the last \
                 layer's own)"
            )
        })
    }

    /// Checks the length of a `[B, T]` array that comes with the batch.
    pub(crate) fn check_per_token(&self, name: &str, length: usize) -> Result<(), Error> {
        self.check_length(name, "[B, T]", length, 1)
    }

    fn check_length(&self, name: &str, shape: &str, got: usize, inner: usize) -> Result<(), Error> {
        let expected = self
            .completions
            .checked_mul(self.tokens)
            .and_then(|n| n.checked_mul(inner));
        let b = self.completions;
        let t = self.tokens;
        ensure(expected == Some(got), || {
            let inner = if shape == "[B, T]" {
                String::new()
            } else {
                format!(" x {inner}")
            };
            format!(
                "`{name}` has {got} entries, expected {b} x {t}{inner} for `{shape}` (check the \
                 batch's dimensions)"
            )
        })
    }
}
