//! Families of decoders and their differences.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail, ensure};
use capo_system::terminal;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::Error;

/// Family of a decoder, from the key `model_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Llama 2 and 3, and models of their form: SmolLM2, TinyLlama. Source:
    /// `transformers.LlamaForCausalLM`.
    Llama,
    /// Mistral without a sliding window. Source: `transformers.MistralForCausalLM`.
    Mistral,
    /// Qwen2 and Qwen2.5. Source: `transformers.Qwen2ForCausalLM`.
    Qwen2,
    /// Qwen3. Source: `transformers.Qwen3ForCausalLM`.
    Qwen3,
}

/// Names of the families that can be trained, for error messages.
pub(super) const SUPPORTED: &str = "`llama`, `mistral`, `qwen2` and `qwen3`";

/// Keys that the configuration reads, here or in `config`.
const READ: &[&str] = &[
    "architectures attention_bias eos_token_id head_dim hidden_act hidden_size initializer_range",
    "intermediate_size layer_types max_position_embeddings mlp_bias model_type",
    "num_attention_heads num_hidden_layers num_key_value_heads quantization_config rms_norm_eps",
    "rope_parameters rope_scaling rope_theta tie_word_embeddings vocab_size",
];

/// Keys that do not affect a model's computation.
pub(super) const HARMLESS: &[&str] = &[
    // Origin of the file, its readers, and settings that are read from other files.
    "_attn_implementation _attn_implementation_autoset _commit_hash _name_or_path is_llama_config",
    "name_or_path transformers.js_config transformers_version unsloth_fixed unsloth_version",
    "dtype torch_dtype bos_token_id pad_token_id sep_token_id unk_token_id tokenizer_class",
    "id2label label2id problem_type",
    // Choices among equivalent computations in transformers, and its additional return values.
    "chunk_size_feed_forward output_attentions output_hidden_states pretraining_tp return_dict",
    "use_cache",
    // Sampler settings; the run's own settings take their place.
    "do_sample max_length max_new_tokens min_length num_beams repetition_penalty temperature",
    "top_k top_p",
];

/// A key that is supported with one value only.
struct FixedKey {
    key: &'static str,
    /// The value as JSON.
    only: &'static str,
    /// The mechanism that other values would enable.
    feature: &'static str,
}

const fn fixed(key: &'static str, only: &'static str, feature: &'static str) -> FixedKey {
    FixedKey { key, only, feature }
}

const FIXED: &[FixedKey] = &[
    fixed("add_cross_attention", "false", "cross-attention"),
    fixed("attention_dropout", "0", "dropout"),
    fixed("is_decoder", "false", "an encoder's decoder"),
    fixed("is_encoder_decoder", "false", "an encoder"),
    fixed(
        "partial_rotary_factor",
        "1",
        "rotation of a part of each head",
    ),
    fixed(
        "rope_interleaved",
        "false",
        "rotation of neighbouring numbers",
    ),
    fixed("tie_encoder_decoder", "false", "an encoder"),
    fixed("use_mrope", "false", "rotary embeddings for images"),
];

impl FixedKey {
    fn allows(&self, value: &Value) -> bool {
        match value {
            Value::Bool(on) => self.only == on.to_string(),
            other => other
                .as_f64()
                .is_some_and(|number| self.only.parse() == Ok(number)),
        }
    }
}

/// Parts of key names that indicate an effect on a model's computation.
const MECHANISMS: &str = "act_fn activation alibi attention attn bias compress dropout embed \
    expert ffn gate head hidden layer lora mamba mlp moe norm position prun quant residual rope \
    rotary router scal softcap sparse ssm vision window";

/// True if the unknown setting `key` may be ignored. Its name begins with `_`; or its value is a
/// text, list or table, and either the value is empty or the name contains none of `MECHANISMS`. A
/// number or a switch may affect the computation under any name.
pub(super) fn may_ignore(key: &str, value: &Value) -> bool {
    let name = key.to_lowercase();
    let says_something = match value {
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
        Value::String(_) => true,
        _ => return key.starts_with('_'),
    };
    let names_a_mechanism = MECHANISMS
        .split_whitespace()
        .any(|part| name.contains(part));
    key.starts_with('_') || !says_something || !names_a_mechanism
}

/// Warns of ignored settings, once per process.
pub(super) fn warn_of_ignored(keys: &[impl AsRef<str>], model_type: &str) {
    static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if keys.is_empty() {
        return;
    }
    let keys = keys
        .iter()
        .map(|key| shown_text(key.as_ref()))
        .collect::<Vec<_>>()
        .join("`, `");
    let sentence = format!(
        "`config.json` of a `{model_type}` model has unknown keys, which are ignored: `{keys}` \
         (docs/models.md#what-is-refused)"
    );
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if told.insert(sentence.clone()) {
        terminal::warn(&sentence);
    }
}

impl Family {
    /// The family that `config.json` names. An unknown or missing family is an error.
    pub(super) fn of(json: &Map<String, Value>) -> Result<Self> {
        let name = json.get("model_type").ok_or_else(|| {
            Error::unknown_architecture(format!(
                "`model_type` is missing, supported are {SUPPORTED} \
                 (use a Hugging Face `config.json`)"
            ))
        })?;
        Self::deserialize(name).map_err(|_| {
            let name = match name.as_str() {
                Some(name) => name.to_owned(),
                None => name.to_string(),
            };
            let message = format!(
                "`model_type` is `{name}`, supported are {SUPPORTED} \
                 (use a checkpoint of one of these families)"
            );
            Error::unknown_architecture(message).into()
        })
    }

    /// The family's name in `model_type`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The name of the family's language model in `architectures`. It begins with the variant's
    /// name.
    pub(super) fn architecture(self) -> String {
        format!("{self:?}ForCausalLM")
    }

    /// The name of the family's sequence classifier in `architectures`.
    pub(super) fn classifier(self) -> String {
        format!("{self:?}ForSequenceClassification")
    }

    /// Value of a switch that the family fixes; `None` if the file may set it.
    fn fixed_switch(self, key: &str) -> Option<bool> {
        match (self, key) {
            (Self::Qwen2, "attention_bias") => Some(true),
            (Self::Mistral, "attention_bias") => Some(false),
            (Self::Mistral | Self::Qwen2 | Self::Qwen3, "mlp_bias") => Some(false),
            _ => None,
        }
    }

    /// Keys that only some families know, and this one does.
    fn own_keys(self) -> &'static [&'static str] {
        match self {
            Self::Llama => &[],
            Self::Mistral => &["sliding_window"],
            Self::Qwen2 | Self::Qwen3 => {
                &["max_window_layers", "sliding_window", "use_sliding_window"]
            }
        }
    }

    /// Refuses settings of `config.json` that this decoder does not compute. An unknown key is
    /// refused, or ignored with a warning.
    pub(super) fn check(self, json: &Map<String, Value>) -> Result<()> {
        self.check_architectures(json)?;
        self.check_window(json)?;
        ensure!(
            json.get("quantization_config").is_none_or(Value::is_null),
            "`quantization_config` is set, but quantized weights are not supported \
             (use the unquantized checkpoint)"
        );
        // A key with the value null counts as absent.
        let mut ignored = Vec::new();
        for (key, value) in json.iter().filter(|(_, value)| !value.is_null()) {
            if !self.check_key(key, value)? {
                ignored.push(key.as_str());
            }
        }
        warn_of_ignored(&ignored, self.name());
        Ok(())
    }

    /// Refuses a setting that this decoder does not compute. Returns false for an unknown setting
    /// that may be ignored.
    fn check_key(self, key: &str, value: &Value) -> Result<bool> {
        if let Some(fixed) = FIXED.iter().find(|fixed| fixed.key == key) {
            ensure!(
                fixed.allows(value),
                "`{key}` is `{}`, but {} is not supported (only `{}` is; use another checkpoint)",
                shown(value),
                fixed.feature,
                fixed.only
            );
            return Ok(true);
        }
        if let Some(fixed) = self.fixed_switch(key) {
            ensure!(
                *value == Value::Bool(fixed),
                "`{key}` is `{}`, but in a `{}` model it is always `{fixed}` \
                 (remove it, or use the family that the weights are of)",
                shown(value),
                self.name()
            );
            return Ok(true);
        }
        let known = READ
            .iter()
            .chain(HARMLESS)
            .flat_map(|keys| keys.split(' '))
            .chain(self.own_keys().iter().copied());
        let is_known = known.into_iter().any(|known| known == key);
        ensure!(
            is_known || may_ignore(key, value),
            "`{}` is `{}`, which is an unknown setting of a `{}` model (remove it if it changes \
             nothing of what the model computes; docs/models.md#what-is-refused)",
            shown_text(key),
            shown(value),
            self.name()
        );
        Ok(is_known)
    }

    fn check_architectures(self, json: &Map<String, Value>) -> Result<()> {
        match json.get("architectures") {
            None | Some(Value::Null) => Ok(()),
            Some(Value::Array(names)) if names.iter().any(|name| *name == self.architecture()) => {
                Ok(())
            }
            Some(other) => {
                let message = format!(
                    "`architectures` is `{}`, only `{}` is supported for a `{}` model \
                     (use a checkpoint of a language model)",
                    shown(other),
                    self.architecture(),
                    self.name()
                );
                Err(Error::unknown_architecture(message).into())
            }
        }
    }

    /// Refuses attention that does not cover all previous tokens.
    fn check_window(self, json: &Map<String, Value>) -> Result<()> {
        if json.get("use_sliding_window") == Some(&Value::Bool(true)) {
            bail!(
                "sliding-window attention is not supported \
                 (set `use_sliding_window` to `false` in `config.json`)"
            );
        }
        let layers = json.get("layer_types").and_then(Value::as_array);
        if let Some(other) =
            layers.and_then(|layers| layers.iter().find(|kind| *kind != "full_attention"))
        {
            bail!(
                "`layer_types` has `{}`, but only `full_attention` is supported: sliding-window \
                 attention is not supported, nor is any other (use a checkpoint without it)",
                shown(other)
            );
        }
        let window = match (self, json.get("sliding_window")) {
            // The window that transformers assumes for a Mistral model without the key.
            (Self::Mistral, None) => 4096,
            (Self::Mistral, Some(window)) => window.as_u64().unwrap_or(u64::MAX),
            _ => return Ok(()),
        };
        let positions = json
            .get("max_position_embeddings")
            .and_then(Value::as_u64)
            .unwrap_or(0);
        ensure!(
            window >= positions,
            "`sliding_window` is {window}, less than `max_position_embeddings` {positions}: \
             sliding-window attention is not supported (use a checkpoint where it is `null`, \
             or lower `max_position_embeddings` to {window})"
        );
        Ok(())
    }
}

/// Longest quotation of a value in a message, characters.
const SHOWN: usize = 80;

/// A value as JSON for a message; a text without its quotes.
pub(super) fn shown(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| shown_text(&value.to_string()), shown_text)
}

/// The beginning of a text, for a message.
pub(super) fn shown_text(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ignores_unknown_settings_that_change_no_computation() {
        let ignored = |key: &str, value: Value| may_ignore(key, &value);
        for (key, value) in [
            ("_model_name_or_path", json!("org/model")),
            ("_private", json!(3)),
            ("author", json!("somebody")),
            ("auto_map", json!({ "AutoConfig": "configuration.Config" })),
            ("language", json!(["en"])),
            ("pruned_heads", json!({})),
        ] {
            assert!(ignored(key, value), "{key}");
        }
        for (key, value) in [
            ("logit_scale", json!(0.5)),
            ("use_qk", json!(false)),
            ("hidden_activation", json!("gelu")),
            ("position_embedding_type", json!("alibi")),
            ("no_rope_layers", json!([0, 1])),
            ("dual_chunk_attention_config", json!({ "chunk_size": 8192 })),
            ("compression_config", json!({ "bits": 4 })),
        ] {
            assert!(!ignored(key, value), "{key}");
        }
    }
}
