//! Encoders that score texts: a body of `candle-transformers` and its classification head.

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, VarBuilder, ops};
use serde_json::{Map, Value};

use super::super::config::CONFIG_FILE;
use super::super::files::ModelFiles;
use super::encoders::{Body, FAMILIES, Model};
use super::known::{Family, named, size};
use super::weights::Weights;
use super::{Limits, contained, labels};

/// An encoder, and the head that turns its features into a score.
pub(super) struct Encoder {
    body: Body,
    /// True if the features of all tokens are averaged; otherwise the first token's features are
    /// used.
    averages: bool,
    dense: Linear,
    activation: fn(&Tensor) -> candle_core::Result<Tensor>,
    /// The weight of a norm without a bias.
    norm: Option<Tensor>,
    eps: f32,
    /// Output projection, reduced to the chosen output.
    output: Linear,
    limits: Limits,
}

/// The output that is the score.
#[derive(Clone, Copy)]
struct Label {
    index: usize,
    /// Number of the model's outputs.
    count: usize,
}

impl Encoder {
    /// Reads a model of the family that `model_type` names.
    pub(super) fn load(
        files: &ModelFiles,
        json: &Map<String, Value>,
        label: Option<&str>,
        device: &Device,
    ) -> Result<Self> {
        let family = named(FAMILIES, files, json)?;
        let settings = family
            .settings(json)
            .with_context(|| format!("cannot use {}", files.describe(CONFIG_FILE)))?;
        let names = labels::names(json)
            .with_context(|| format!("cannot use {}", files.describe(CONFIG_FILE)))?;
        let label = Label {
            index: labels::chosen(&names, label)?,
            count: names.len(),
        };
        contained(|| Self::build(files, family, &settings, label, device))
    }

    fn build(
        files: &ModelFiles,
        family: &Family<Model>,
        settings: &Map<String, Value>,
        label: Label,
        device: &Device,
    ) -> Result<Self> {
        let positions = family.positions(settings)?;
        let weights = Weights::load(files, device)?;
        let builder = weights.builder(device);
        let width = size(settings, "hidden_size");
        let head = &family.model;
        let body = (head.build)(settings, builder.clone())?;
        let biased = head.norm.is_none();
        let dense = linear(&builder.pp(head.dense), (width, width), biased)?;
        let eps = settings
            .get("layer_norm_eps")
            .and_then(Value::as_f64)
            .unwrap_or(1e-5) as f32;
        let norm = head
            .norm
            .map(|name| builder.pp(name).get(width, "weight"))
            .transpose()?;
        let outputs = linear(&builder.pp(head.output), (label.count, width), true)?;
        let weight = outputs.weight().narrow(0, label.index, 1)?.contiguous()?;
        let bias = match outputs.bias() {
            Some(bias) => Some(bias.narrow(0, label.index, 1)?),
            None => None,
        };
        let output = Linear::new(weight, bias);
        weights.finish()?;
        let averages = match settings.get("classifier_pooling").and_then(Value::as_str) {
            None | Some("cls") => false,
            Some("mean") => true,
            Some(other) => bail!(
                "`classifier_pooling` is `{other}`, expected `cls` or `mean` \
                 (correct `config.json`)"
            ),
        };
        Ok(Self {
            body,
            averages,
            dense,
            activation: head.activation,
            norm,
            eps,
            output,
            limits: Limits {
                vocab: size(settings, "vocab_size"),
                positions,
            },
        })
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Scores of `rows` (token ids); `ids`, `[B, S]`, holds the rows padded on the right.
    pub(super) fn scores(&self, ids: &Tensor, rows: &[Vec<u32>]) -> Result<Vec<f32>> {
        contained(|| {
            let (count, width) = ids.dims2()?;
            let mut mask = Vec::with_capacity(count * width);
            for row in rows {
                mask.extend((0..width).map(|place| u32::from(place < row.len())));
            }
            let mask = Tensor::from_vec(mask, (count, width), ids.device())?;
            let features = (self.body)(ids, &mask)?;
            let pooled = if self.averages {
                let mask = mask.to_dtype(DType::F32)?;
                let sum = features.broadcast_mul(&mask.unsqueeze(2)?)?.sum(1)?;
                sum.broadcast_div(&mask.sum_keepdim(1)?)?
            } else {
                features.narrow(1, 0, 1)?.squeeze(1)?.contiguous()?
            };
            let mut x = (self.activation)(&self.dense.forward(&pooled)?)?;
            if let Some(weight) = &self.norm {
                x = ops::layer_norm(&x, weight, &weight.zeros_like()?, self.eps)?;
            }
            self.output
                .forward(&x)?
                .flatten_all()?
                .to_vec1()
                .context("scores are numbers")
        })
    }
}

/// A matrix `[out, in]` with or without its bias.
fn linear(
    weights: &VarBuilder<'static>,
    shape: (usize, usize),
    biased: bool,
) -> candle_core::Result<Linear> {
    let bias = if biased {
        Some(weights.get(shape.0, "bias")?)
    } else {
        None
    };
    Ok(Linear::new(weights.get(shape, "weight")?, bias))
}
