//! Language models of families that are not trained here. They only give log-probabilities of completions.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use serde_json::{Map, Value};

use super::super::config::CONFIG_FILE;
use super::super::files::ModelFiles;
use super::super::forward::{Forward, Part};
use super::super::sequences::Sequences;
use super::super::shapes::{EMBEDDING, HEAD};
use super::families::{Body, FAMILIES, Model};
use super::known::{Family, named, size};
use super::weights::Weights;
use super::{contained, no_adapter};

/// A language model of a family that is not trained here, in 32-bit floats.
pub struct Causal {
    body: Body,
    /// Head, `[V, D]`.
    head: Tensor,
    most_rows: usize,
    device: Device,
}

/// Refuses sequences of `longest` tokens if the reference has fewer positions.
pub(super) fn check_positions(longest: usize, positions: usize) -> Result<()> {
    ensure!(
        longest <= positions,
        "prompts and completions of {longest} tokens are longer than the {positions} positions of the reference (shorten them, or use another reference)"
    );
    Ok(())
}

impl Causal {
    /// Reads a model of the family that `model_type` names, for sequences of at most `longest` tokens.
    pub(super) fn load(files: &ModelFiles, json: &Map<String, Value>, longest: usize, device: &Device) -> Result<Self> {
        let family = named(FAMILIES, files, json)?;
        no_adapter(files)?;
        let mut settings =
            family.settings(json).with_context(|| format!("cannot use {}", files.describe(CONFIG_FILE)))?;
        check_positions(longest, size(&settings, "max_position_embeddings"))?;
        // The model's rotation tables have `max_position_embeddings` entries.
        settings.insert("max_position_embeddings".to_owned(), longest.into());
        contained(|| Self::build(files, family, &settings, device))
    }

    fn build(
        files: &ModelFiles,
        family: &Family<Model>,
        settings: &Map<String, Value>,
        device: &Device,
    ) -> Result<Self> {
        let weights = Weights::load(files, device)?;
        let builder = weights.builder(device);
        let tied = settings.get("tie_word_embeddings") == Some(&Value::Bool(true));
        let shape = (size(settings, "vocab_size"), size(settings, "hidden_size"));
        let head = builder.get(shape, if tied { EMBEDDING } else { HEAD })?;
        let body = (family.model.build)(settings, builder)?;
        weights.finish(if tied { EMBEDDING } else { "" })?;
        Ok(Self { body, head, most_rows: family.model.most_rows, device: device.clone() })
    }

    /// The forward pass without stored activations, for outputs alone; `loss_temperature` divides the logits.
    pub(super) fn forward(&self, rows: &Sequences, loss_temperature: f64) -> Result<Forward> {
        rows.check(self.head.dim(0)?).context("the reference cannot score a batch")?;
        let count = rows.rows();
        let starts = (0..count).step_by(self.most_rows.min(count));
        let part = |from: usize| {
            let some = rows.slice(from..from.saturating_add(self.most_rows).min(count));
            let hidden = contained(|| self.features(&some))?;
            Part::detached(hidden, self.head.clone(), some, loss_temperature)
        };
        Ok(Forward::new(starts.map(part).collect::<Result<_>>()?, rows.completion_len))
    }

    /// Features from which each completion token's logits are computed, `[K, D]`.
    fn features(&self, rows: &Sequences) -> Result<Tensor> {
        let (ids, width) = left_aligned(rows);
        let ids = Tensor::from_vec(ids, (rows.rows(), width), &self.device)?;
        let features = (self.body)(&ids)?.flatten_to(1)?;
        let before = |(row, start): (usize, &usize)| -> Range<u32> {
            let first = (row * width + rows.prompt_len - start - 1) as u32;
            first..first + rows.tokens_of(row) as u32
        };
        let places: Vec<u32> = rows.starts.iter().enumerate().flat_map(before).collect();
        Ok(features.index_select(&Tensor::new(places, &self.device)?, 0)?)
    }
}

/// Token ids, shifted so that each row begins with its first real token, without the last column; and the number of columns.
fn left_aligned(rows: &Sequences) -> (Vec<u32>, usize) {
    let length = rows.prompt_len + rows.completion_len;
    let least = rows.starts.iter().min().copied().unwrap_or(0);
    let width = length - least - 1;
    let mut ids = Vec::with_capacity(rows.rows() * width);
    for (number, (row, start)) in rows.ids.chunks_exact(length).zip(&rows.starts).enumerate() {
        ids.extend_from_slice(&row[*start..length - 1]);
        // Attention is causal: padding after a row does not change its features.
        ids.resize((number + 1) * width, 0);
    }
    (ids, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_begin_with_their_first_token() {
        let rows = Sequences {
            ids: vec![0, 0, 3, 4, 5, 0, 6, 7, 8, 0],
            starts: vec![2, 1],
            prompt_len: 3,
            completion_len: 2,
            lengths: vec![2, 2],
            numbers: Sequences::numbered(2),
        };
        assert_eq!(left_aligned(&rows), (vec![3, 4, 0, 6, 7, 8], 3));
    }
}
