//! Whole texts to token ids, by the `tokenizer.json` of a model that reads them: nothing ends here, so no end token is asked for.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use tokenizers::{TruncationDirection, TruncationParams};

use super::contain::contain;
use super::quote::quote;
use super::tokenizer::named_token;
use super::tokenizer_json;
use crate::model::ModelFiles;

/// A tokenizer of whole texts.
#[derive(Clone, Debug)]
pub struct Texts {
    inner: tokenizers::Tokenizer,
    special: bool,
    pad: u32,
}

impl Texts {
    /// The tokenizer among the files of a model; `special` says whether it adds the tokens that its model begins and ends a text with.
    ///
    /// Texts keep their first `longest` tokens.
    ///
    /// # Errors
    ///
    /// A file that is missing or no tokenizer, and a token that `tokenizer_config.json` names but the vocabulary does not have.
    pub fn open(files: &ModelFiles, longest: usize, special: bool) -> Result<Self> {
        let bytes = files.read("tokenizer.json")?;
        let place = || format!("cannot use {}", files.describe("tokenizer.json"));
        let mut inner = read(&bytes).with_context(place)?;
        let truncation =
            TruncationParams { max_length: longest, direction: TruncationDirection::Right, ..Default::default() };
        inner.with_padding(None);
        inner.with_truncation(Some(truncation)).map_err(|error| anyhow!("{error}")).with_context(place)?;
        let config = match files.contains("tokenizer_config.json") {
            true => serde_json::from_slice(&files.read("tokenizer_config.json")?)
                .with_context(|| format!("{} is not valid JSON", files.describe("tokenizer_config.json")))?,
            false => Value::Null,
        };
        let named = |key| named_token(&inner, &config, key).with_context(place);
        let pad = named("pad_token")?.or(named("eos_token")?).unwrap_or(0);
        Ok(Self { inner, special, pad })
    }

    /// The ids of a text, and whether it was cut; text that the vocabulary cannot express is an error.
    pub fn encode(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        let encoding = contain(|| self.inner.encode_fast(text, self.special))
            .and_then(|encoding| encoding.map_err(|error| anyhow!("{error}")))
            .with_context(|| format!("cannot encode `{}`", quote(text)))?;
        Ok((encoding.get_ids().to_vec(), !encoding.get_overflowing().is_empty()))
    }

    /// The id that fills rows up: the padding token, else the end token, else 0.
    pub fn pad_id(&self) -> u32 {
        self.pad
    }
}

/// Every token of a `tokenizer.json` by its id, added ones included.
///
/// # Errors
///
/// Bytes that are no tokenizer.
pub fn vocabulary(tokenizer_json: &[u8]) -> Result<BTreeMap<u32, String>> {
    Ok(read(tokenizer_json)?.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect())
}

fn read(bytes: &[u8]) -> Result<tokenizers::Tokenizer> {
    tokenizer_json::check(bytes)
        .and_then(|()| contain(|| tokenizers::Tokenizer::from_bytes(bytes))?.map_err(|error| anyhow!("{error}")))
        .map_err(|error| anyhow!("`tokenizer.json` cannot be read: {error}"))
}
