//! Outputs of every completion token from one forward pass.

use std::borrow::Cow;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Tensor};

use super::forward::{Forward, Part, host};
use super::ops;
use super::parallel::side_by_side;

/// Outputs to compute besides the log-probabilities.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wants {
    /// The entropy of each token's distribution.
    pub entropy: bool,
    /// The features of each token: what the head maps to its logits.
    pub hidden: bool,
    /// Number of top tokens in the data of the last layer, at most the vocabulary; `None` leaves
    /// out the data of the last layer.
    pub last_layer_k: Option<usize>,
}

/// Outputs of every completion token, `[B, T]` row-major. Padding positions hold arbitrary finite
/// values.
#[derive(Debug, Clone)]
pub struct TokenOutputs {
    /// Log-probabilities of the tokens under `logits / loss_temperature`, `[B, T]`, nats. With
    /// `Policy::with_truncation`, they are under the truncated distribution.
    pub logps: Vec<f32>,
    /// Entropy of `softmax(logits / loss_temperature)`, `[B, T]`, nats.
    pub entropy: Option<Vec<f32>>,
    /// Features from which each token's logits are computed, `[B * T, D]`, on the policy's device
    /// and in its dtype.
    pub hidden: Option<Tensor>,
    /// Data of the last layer, for curvature models.
    pub last_layer: Option<LastLayerOutputs>,
}

/// Data of the last layer, on the policy's device.
#[derive(Debug, Clone)]
pub enum LastLayerOutputs {
    /// In host memory.
    Host(LastLayerData),
    /// On another device.
    Device(LastLayerTensors),
}

/// The features and the head's outputs of every completion token, in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct LastLayerData {
    /// Features from which each token's logits are computed, `[B, T, D]`.
    pub hidden: Vec<f32>,
    /// Ids of the K largest logits, `[B, T, K]`, in descending order of the logit; equal logits in
    /// order of the id.
    pub topk_ids: Vec<u32>,
    /// The K largest logits, `[B, T, K]`, raw (temperature 1).
    pub topk_logits: Vec<f32>,
    /// Logsumexp of all `logits / loss_temperature`, `[B, T]`.
    pub logsumexp: Vec<f32>,
    /// Logit of each token, `[B, T]`, raw (temperature 1).
    pub action_logits: Vec<f32>,
    /// Number of top tokens, K: the requested number, but at most the vocabulary.
    pub k: usize,
    /// Width of the features, D.
    pub width: usize,
    /// Number of token ids, V.
    pub vocab_size: usize,
}

/// The data of the last layer as contiguous tensors. One axis holds all N = B * T tokens.
#[derive(Debug, Clone)]
pub struct LastLayerTensors {
    /// Features, `[N, D]`, in the policy's dtype.
    pub hidden: Tensor,
    /// Ids of the K largest logits, `[N, K]`, u32.
    pub topk_ids: Tensor,
    /// The K largest logits, raw (temperature 1), `[N, K]`, f32.
    pub topk_logits: Tensor,
    /// Logsumexp of all `logits / loss_temperature`, `[N]`, f32.
    pub logsumexp: Tensor,
    /// Logit of each token, raw (temperature 1), `[N]`, f32.
    pub action_logits: Tensor,
    /// Number of token ids, V.
    pub vocab_size: usize,
}

impl LastLayerOutputs {
    /// Joins the data of consecutive rows. Parts on different devices are an error, and so is an
    /// empty list.
    pub fn join(parts: Vec<Self>) -> Result<Self> {
        let mut host = None::<LastLayerData>;
        let mut device = Vec::new();
        for part in parts {
            match part {
                Self::Device(part) => device.push(part),
                Self::Host(part) => match &mut host {
                    Some(all) => all.append(part),
                    None => host = Some(part),
                },
            }
        }
        match host {
            Some(all) if device.is_empty() => Ok(Self::Host(all)),
            None => Ok(Self::Device(LastLayerTensors::join(&device)?)),
            Some(_) => bail!("the parts of a batch lie on different devices"),
        }
    }

    /// Width of the features, D, and number of top tokens, K.
    pub fn extents(&self) -> (usize, usize) {
        match self {
            Self::Host(data) => (data.width, data.k),
            Self::Device(tensors) => (tensors.hidden.dims()[1], tensors.topk_ids.dims()[1]),
        }
    }

    /// The data in host memory, copied only if they are on another device.
    pub fn to_host(&self) -> Result<Cow<'_, LastLayerData>> {
        match self {
            Self::Host(data) => Ok(Cow::Borrowed(data)),
            Self::Device(tensors) => Ok(Cow::Owned(tensors.to_host()?)),
        }
    }
}

impl LastLayerData {
    fn append(&mut self, part: Self) {
        self.hidden.extend(part.hidden);
        self.topk_ids.extend(part.topk_ids);
        self.topk_logits.extend(part.topk_logits);
        self.logsumexp.extend(part.logsumexp);
        self.action_logits.extend(part.action_logits);
    }
}

impl LastLayerTensors {
    fn join(parts: &[Self]) -> Result<Self> {
        let first = parts.first().context("a batch has at least one part")?;
        Ok(Self {
            hidden: join(parts.iter().map(|part| &part.hidden))?,
            topk_ids: join(parts.iter().map(|part| &part.topk_ids))?,
            topk_logits: join(parts.iter().map(|part| &part.topk_logits))?,
            logsumexp: join(parts.iter().map(|part| &part.logsumexp))?,
            action_logits: join(parts.iter().map(|part| &part.action_logits))?,
            vocab_size: first.vocab_size,
        })
    }

    /// A copy in host memory, with the features as f32.
    pub fn to_host(&self) -> Result<LastLayerData> {
        Ok(LastLayerData {
            hidden: host(&self.hidden)?,
            topk_ids: self.topk_ids.flatten_all()?.to_vec1()?,
            topk_logits: host(&self.topk_logits)?,
            logsumexp: host(&self.logsumexp)?,
            action_logits: host(&self.action_logits)?,
            k: self.topk_ids.dim(1)?,
            width: self.hidden.dim(1)?,
            vocab_size: self.vocab_size,
        })
    }
}

impl Forward {
    /// The outputs of all tokens. Logits of a bounded number of tokens are in memory at a time.
    pub fn outputs(&self, wants: &Wants) -> Result<TokenOutputs> {
        let k = wants.last_layer_k;
        ensure!(
            k != Some(0),
            "the number of top tokens is 0, expected at least 1"
        );
        let parts = side_by_side(self.parts.iter().collect(), |part| part.outputs(k))?;
        let stats = join(parts.iter().map(|part| &part.stats))?;
        let top = if k.is_some() {
            let tops = || parts.iter().flat_map(|part| &part.top);
            Some(TopTensors {
                ids: join(tops().map(|top| &top.ids))?,
                logits: join(tops().map(|top| &top.logits))?,
            })
        } else {
            None
        };
        let hidden = (wants.hidden || k.is_some())
            .then(|| self.hidden())
            .transpose()?;
        collect(wants, &stats, hidden, top, self.parts[0].head.dim(0)?)
    }
}

/// The most likely tokens of each position, in descending order of their logits.
pub(super) struct TopTensors {
    /// Token ids, `[N, K]`, u32.
    pub(super) ids: Tensor,
    /// Their logits, `[N, K]`, f32.
    pub(super) logits: Tensor,
}

/// Assembles outputs from the columns of `ops::logit_stats` `[N, 4]`, the features `[N, D]` and the
/// most likely tokens.
pub(super) fn collect(
    wants: &Wants,
    stats: &Tensor,
    hidden: Option<Tensor>,
    top: Option<TopTensors>,
    vocab_size: usize,
) -> Result<TokenOutputs> {
    let last_layer = match (top, &hidden) {
        (Some(top), Some(hidden)) => {
            let tensors = LastLayerTensors {
                hidden: hidden.clone(),
                topk_ids: top.ids,
                topk_logits: top.logits,
                logsumexp: column(stats, 1)?,
                action_logits: column(stats, 3)?,
                vocab_size,
            };
            Some(if tensors.hidden.device().is_cpu() {
                LastLayerOutputs::Host(tensors.to_host()?)
            } else {
                LastLayerOutputs::Device(tensors)
            })
        }
        _ => None,
    };
    let entropy = if wants.entropy {
        Some(host(&column(stats, 2)?)?)
    } else {
        None
    };
    Ok(TokenOutputs {
        logps: host(&column(stats, 0)?)?,
        entropy,
        hidden: hidden.filter(|_| wants.hidden),
        last_layer,
    })
}

/// One column of `ops::logit_stats`, `[N]`.
fn column(stats: &Tensor, number: usize) -> candle_core::Result<Tensor> {
    stats.narrow(1, number, 1)?.flatten_all()?.contiguous()
}

impl TokenOutputs {
    /// Joins the outputs of consecutive rows. An empty list is an error.
    pub fn join(parts: Vec<Self>) -> Result<Self> {
        let mut logps = Vec::new();
        let mut entropy = None;
        let mut hidden = Vec::new();
        let mut last_layers = Vec::new();
        for part in parts {
            logps.extend(part.logps);
            if let Some(own) = part.entropy {
                entropy.get_or_insert_with(Vec::new).extend(own);
            }
            hidden.extend(part.hidden);
            last_layers.extend(part.last_layer);
        }
        let hidden = (!hidden.is_empty())
            .then(|| Tensor::cat(&hidden, 0))
            .transpose()?;
        let last_layer = (!last_layers.is_empty())
            .then(|| LastLayerOutputs::join(last_layers))
            .transpose()?;
        Ok(Self {
            logps,
            entropy,
            hidden,
            last_layer,
        })
    }
}

fn join<'a>(parts: impl Iterator<Item = &'a Tensor>) -> Result<Tensor> {
    Ok(Tensor::cat(&parts.collect::<Vec<_>>(), 0)?)
}

/// What the head computes for the tokens of a part and their padding.
struct PartOutputs {
    /// The columns of `ops::logit_stats`, `[rows * T, 4]`.
    stats: Tensor,
    /// The most likely tokens, `[rows * T, k]`; `None` if they were not asked for.
    top: Option<TopTensors>,
}

impl Part {
    fn outputs(&self, k: Option<usize>) -> Result<PartOutputs> {
        let count = self.hidden.dim(0)?;
        let vocab = self.head.dim(0)?;
        let mut stats = Vec::new();
        let mut topk_ids = Vec::new();
        let mut topk_logits = Vec::new();
        let chunk = ops::chunk_rows(vocab, self.head.device());
        for from in (0..count).step_by(chunk) {
            let len = chunk.min(count - from);
            let hidden = ops::for_logits(&self.hidden.narrow(0, from, len)?)?;
            let logits = ops::product_of_rows(&hidden, &self.head.t()?, DType::F32)?;
            let targets = self.targets.narrow(0, from, len)?;
            stats.push(self.stats(&logits, &targets)?);
            if let Some(k) = k {
                let ids = ops::top_ids(&logits, k.min(vocab))?;
                topk_logits.push(logits.gather(&ids, 1)?);
                topk_ids.push(ids);
            }
        }
        let top = if k.is_some() {
            Some(TopTensors {
                ids: self.padded(&join(topk_ids.iter())?)?,
                logits: self.padded(&join(topk_logits.iter())?)?,
            })
        } else {
            None
        };
        Ok(PartOutputs {
            stats: self.padded(&join(stats.iter())?)?,
            top,
        })
    }

    /// The columns of `ops::logit_stats`, `[n, 4]`. If the loss has a truncated distribution, the
    /// first column comes from it.
    fn stats(&self, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let stats = ops::logit_stats(logits, targets, self.loss_temperature)?;
        let Some(truncation) = self.truncation else {
            return Ok(stats);
        };
        let logits = ops::truncate(logits, targets, truncation)?;
        let truncated = ops::logit_stats(&logits, targets, self.loss_temperature)?;
        Ok(Tensor::cat(
            &[truncated.narrow(1, 0, 1)?, stats.narrow(1, 1, 3)?],
            1,
        )?)
    }
}
