//! Sequence classification models, which score texts for rewards.

use anyhow::{Result, bail, ensure};
use candle_core::{Device, Tensor};

use super::super::config::CONFIG_FILE;
use super::super::family::Family;
use super::super::files::ModelFiles;
use super::encoder::Encoder;
use super::scorer::Scorer;
use super::{Limits, no_adapter};

/// A model that gives a text one score.
pub struct Classifier {
    model: Model,
    device: Device,
}

enum Model {
    Decoder(Box<Scorer>),
    Encoder(Encoder),
}

impl Classifier {
    /// Reads a model that scores texts. `label` names the output to use if the model has several.
    pub fn load(files: &ModelFiles, label: Option<&str>, device: &Device) -> Result<Self> {
        let json = files.object(CONFIG_FILE)?;
        no_adapter(files)?;
        let model = if Family::of(&json).is_ok() {
            Model::Decoder(Box::new(Scorer::load(files, &json, label, device)?))
        } else {
            Model::Encoder(Encoder::load(files, &json, label, device)?)
        };
        Ok(Self {
            model,
            device: device.clone(),
        })
    }

    /// Maximum length of a text, tokens.
    pub fn positions(&self) -> usize {
        self.limits().positions
    }

    /// True if the model is an encoder: it reads a text as a whole, between special tokens.
    pub fn is_encoder(&self) -> bool {
        matches!(self.model, Model::Encoder(_))
    }

    fn limits(&self) -> Limits {
        match &self.model {
            Model::Decoder(decoder) => decoder.limits(),
            Model::Encoder(encoder) => encoder.limits(),
        }
    }

    /// Scores of the texts `rows` (token ids), computed as one batch. `pad` is the id of padding
    /// after a text, if there is one.
    pub fn score(&self, rows: &[Vec<u32>], pad: Option<u32>) -> Result<Vec<f32>> {
        let Limits { vocab, positions } = self.limits();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let width = rows.iter().map(Vec::len).max().unwrap_or(0);
        ensure!(
            rows.iter().all(|row| !row.is_empty()),
            "a text has no tokens (give each at least one)"
        );
        ensure!(
            width <= positions,
            "a text has {width} tokens, the model has {positions} positions (cut it)"
        );
        if let Some(id) = rows.iter().flatten().find(|id| **id as usize >= vocab) {
            bail!("token id {id} is outside the vocabulary of {vocab} (use the model's tokenizer)");
        }
        let encoder = match &self.model {
            Model::Decoder(decoder) => return decoder.scores(rows, pad),
            Model::Encoder(encoder) => encoder,
        };
        // Padding after a text does not affect its score.
        let fill = pad.filter(|pad| (*pad as usize) < vocab).unwrap_or(0);
        let mut ids = Vec::with_capacity(rows.len() * width);
        for (number, row) in rows.iter().enumerate() {
            ids.extend_from_slice(row);
            ids.resize((number + 1) * width, fill);
        }
        let ids = Tensor::from_vec(ids, (rows.len(), width), &self.device)?;
        encoder.scores(&ids, rows)
    }
}
