//! Decoders of the trained families that score texts, such as `Qwen2ForSequenceClassification`.

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use serde_json::{Map, Value};

use super::super::config::{CONFIG_FILE, Config};
use super::super::decoder::Decoder;
use super::super::error::Error;
use super::super::family::{Family, shown};
use super::super::files::ModelFiles;
use super::super::ops;
use super::super::packed::Packed;
use super::super::params::Params;
use super::{Limits, labels};

/// The weight that maps features to scores, `[outputs, D]`.
const SCORE: &str = "score.weight";

/// A decoder with a score projection in place of a head.
pub(super) struct Scorer {
    config: Config,
    model: Decoder,
    /// The row of the chosen output, `[D, 1]`.
    score: Tensor,
}

impl Scorer {
    /// Reads the model of `json`, its `config.json`.
    pub(super) fn load(
        files: &ModelFiles,
        json: &Map<String, Value>,
        label: Option<&str>,
        device: &Device,
    ) -> Result<Self> {
        let config =
            config(json).with_context(|| format!("cannot use {}", files.describe(CONFIG_FILE)))?;
        let names = labels::names(json)
            .with_context(|| format!("cannot use {}", files.describe(CONFIG_FILE)))?;
        let label = labels::chosen(&names, label)?;
        let shape = vec![names.len(), config.hidden_size];
        let params = Params::load_with(files, &config, SCORE, shape, device)?;
        let score = params
            .get(SCORE)?
            .as_detached_tensor()
            .narrow(0, label, 1)?
            .t()?
            .contiguous()?;
        let model = Decoder::new(&config, &params, None, DType::F32)?.pack()?;
        Ok(Self {
            config,
            model,
            score,
        })
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            vocab: self.config.vocab_size,
            positions: self.config.max_position_embeddings,
        }
    }

    /// Scores of `rows` (token ids) at each row's last id that is not `pad`, as in transformers.
    pub(super) fn scores(&self, rows: &[Vec<u32>], pad: Option<u32>) -> Result<Vec<f32>> {
        let device = self.score.device();
        let packed = Packed::of(rows.iter().map(|ids| (ids.as_slice(), [].as_slice())), true);
        let x = self
            .model
            .residual(&packed.on(&self.config, device)?, |_, _| Ok(()))?;
        let mut last = Vec::with_capacity(rows.len());
        for (row, ids) in rows.iter().enumerate() {
            let place = ids.iter().rposition(|id| Some(*id) != pad).unwrap_or(0);
            last.push((packed.prompt(row).start + place) as u32);
        }
        let x = x.index_select(&Tensor::new(last, device)?, 0)?;
        let scores = ops::product_of_rows(&self.model.features(&x)?, &self.score, DType::F32)?;
        Ok(scores.flatten_all()?.to_vec1()?)
    }
}

/// Configuration of the decoder below the score. It has no head, so it is read with a tied head.
fn config(json: &Map<String, Value>) -> Result<Config> {
    let family = Family::of(json)?;
    let wanted = family.classifier();
    let named = json.get("architectures");
    let mut names = named.and_then(Value::as_array).into_iter().flatten();
    if !names.any(|name| *name == wanted) {
        let message = format!(
            "`architectures` is `{}`, only `{wanted}` of a `{}` model scores texts \
             (use a reward model's directory)",
            named.map_or("null".into(), shown),
            family.name()
        );
        return Err(Error::unknown_architecture(message).into());
    }
    let mut below = json.clone();
    below.retain(|key, _| !["architectures", "num_labels"].contains(&key.as_str()));
    below.insert("tie_word_embeddings".to_owned(), Value::Bool(true));
    Config::from_json(&serde_json::to_vec(&below).context("a configuration is JSON")?)
}
