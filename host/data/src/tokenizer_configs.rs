//! The JSON files beside a `tokenizer.json`.

use anyhow::Result;
use capo_system::NamedFiles;
use serde_json::Value;

/// The JSON files beside a `tokenizer.json` that may name tokens; `Null` for an absent file.
#[derive(Clone, Debug, Default)]
pub struct TokenizerConfigs {
    /// `tokenizer_config.json`: texts of `eos_token` and `pad_token`.
    pub tokenizer: Value,
    /// `config.json`: `eos_token_id` and `pad_token_id`.
    pub model: Value,
    /// `generation_config.json`: the same ids, preferred to those of `config.json`.
    pub generation: Value,
    /// `added_tokens.json`: ids of tokens by their texts.
    pub added: Value,
    /// `special_tokens_map.json`: texts as in `tokenizer_config.json`.
    pub special: Value,
}

impl TokenizerConfigs {
    /// Reads those among the files of a model; a file that is not JSON is an error.
    pub fn of(files: &dyn NamedFiles) -> Result<Self> {
        Ok(Self {
            tokenizer: files.json("tokenizer_config.json")?,
            model: files.json("config.json")?,
            generation: files.json("generation_config.json")?,
            added: files.json("added_tokens.json")?,
            special: files.json("special_tokens_map.json")?,
        })
    }
}

/// The text of a token: a string, or an object with `content`.
pub(super) fn text(token: &Value) -> Option<&str> {
    token
        .as_str()
        .or_else(|| token["content"].as_str())
        .filter(|text| !text.is_empty())
}
