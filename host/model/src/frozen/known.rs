//! Known keys in `config.json`, for families that are read and never trained.

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::config::{CONFIG_FILE, LARGEST, MOST_LAYERS};
use super::super::error::Error;
use super::super::family::{HARMLESS, SUPPORTED, may_ignore, shown, shown_text, warn_of_ignored};
use super::super::files::ModelFiles;

/// Keys that do not affect a model that is not trained.
const NOT_TRAINED: &str = "architectures attention_dropout attention_probs_dropout_prob \
    bos_token_id classifier_dropout cls_dropout cls_token_id decoder_bias eos_token_id \
    hidden_dropout_prob initializer_cutoff_factor initializer_range legacy mlp_dropout \
    embedding_dropout model_type num_labels pooler_dropout";
/// Keys of all families whose values are counts of at least 1.
const COUNTS: [&str; 6] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
];

/// A family of models that are only read.
pub(super) struct Family<M> {
    /// The family's name in `model_type`.
    pub model_type: &'static str,
    /// The model's name in `architectures`.
    pub architecture: &'static str,
    /// Keys that the model reads besides counts and keys with a default.
    pub read: &'static str,
    /// A JSON object of the keys that are supported with one value only.
    pub fixed: &'static str,
    /// A JSON object of the default values of absent keys.
    pub defaults: &'static str,
    /// Other names, in newer or older files, of keys that the model reads.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Builder of the family's models.
    pub model: M,
}

impl<M> Family<M> {
    /// The settings that the model reads, with defaults filled in and `rope_parameters` merged into
    /// them.
    pub(super) fn settings(&self, json: &Map<String, Value>) -> Result<Map<String, Value>> {
        self.check_architectures(json)?;
        let mut settings = json.clone();
        // A key with the value null counts as absent.
        settings.retain(|_, value| !value.is_null());
        for (alias, key) in self.aliases {
            if let Some(value) = settings.remove(*alias) {
                settings.insert((*key).to_owned(), value);
            }
        }
        spread_rope(&mut settings)?;
        let fixed = object(self.fixed)?;
        let defaults = object(self.defaults)?;
        for (key, value) in &defaults {
            settings.entry(key).or_insert(value.clone());
        }
        let mut ignored = Vec::new();
        for (key, value) in &settings {
            if !self.check(key, value, fixed.get(key), defaults.contains_key(key))? {
                ignored.push(key.clone());
            }
        }
        warn_of_ignored(&ignored, self.model_type);
        settings.retain(|key, _| !ignored.contains(key));
        Ok(settings)
    }

    fn check_architectures(&self, json: &Map<String, Value>) -> Result<()> {
        let Self {
            model_type,
            architecture,
            ..
        } = self;
        match json.get("architectures") {
            Some(Value::Array(names)) if names.iter().any(|name| name == architecture) => Ok(()),
            other => {
                let message = format!(
                    "`architectures` is `{}`, only `{architecture}` of a `{model_type}` model can \
                     be read here (use another checkpoint)",
                    other.map_or("null".into(), shown)
                );
                Err(Error::unknown_architecture(message).into())
            }
        }
    }

    /// Refuses a setting that is not computed. Returns false for an unknown setting that may be
    /// ignored.
    fn check(
        &self,
        key: &str,
        value: &Value,
        fixed: Option<&Value>,
        has_default: bool,
    ) -> Result<bool> {
        if let Some(only) = fixed {
            ensure!(
                value
                    .as_f64()
                    .map_or(value == only, |number| only.as_f64() == Some(number)),
                "`{key}` is `{}`, but only `{}` is supported for a `{}` model \
                 (use another checkpoint)",
                shown(value),
                shown(only),
                self.model_type
            );
            return Ok(true);
        }
        let mut known = [self.read, NOT_TRAINED]
            .into_iter()
            .chain(HARMLESS.iter().copied())
            .flat_map(str::split_whitespace);
        let is_known = has_default || COUNTS.contains(&key) || known.any(|known| known == key);
        ensure!(
            is_known || may_ignore(key, value),
            "`{}` is `{}`, which is an unknown setting of a `{}` model \
             (remove it if it changes nothing of what the model computes)",
            shown_text(key),
            shown(value),
            self.model_type
        );
        let Some(number) = value.as_u64() else {
            return Ok(is_known);
        };
        let most = if key == "num_hidden_layers" {
            MOST_LAYERS
        } else {
            LARGEST
        } as u64;
        ensure!(
            number <= most,
            "`{key}` is {number}, expected at most {most} (correct `config.json`)"
        );
        ensure!(
            number > 0 || !COUNTS.contains(&key),
            "`{key}` is 0, expected at least 1 (correct `config.json`)"
        );
        Ok(is_known)
    }
}

/// An object from the text of a family's entry.
fn object(json: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(json).context("settings of a family are JSON")
}

/// The family among `families` that `model_type` names. Any other name is an error.
pub(super) fn named<'a, M>(
    families: &'a [Family<M>],
    files: &ModelFiles,
    json: &Map<String, Value>,
) -> Result<&'a Family<M>> {
    let name = json.get("model_type");
    let named = families
        .iter()
        .find(|family| name.is_some_and(|name| name == family.model_type));
    if let Some(family) = named {
        return Ok(family);
    }
    let name = name.map_or("missing".to_owned(), |name| format!("`{}`", shown(name)));
    let others: Vec<&str> = families.iter().map(|family| family.model_type).collect();
    let message = format!(
        "cannot use {}: `model_type` is {name}, supported are {SUPPORTED}, and `{}` \
         (use a checkpoint of one of these families; docs/models.md says why)",
        files.describe(CONFIG_FILE),
        others.join("`, `")
    );
    Err(Error::unknown_architecture(message).into())
}

/// Moves the `rope_parameters` of transformers 5 to the keys of release 4. Scaling is an error:
/// none of these models supports it.
fn spread_rope(settings: &mut Map<String, Value>) -> Result<()> {
    for place in ["rope_parameters", "rope_scaling"] {
        let parameters = match settings.remove(place) {
            None => continue,
            Some(Value::Object(parameters)) => parameters,
            Some(other) => bail!(
                "`{place}` is `{}`, expected an object (correct `config.json`)",
                shown(&other)
            ),
        };
        for (key, value) in parameters {
            match key.as_str() {
                "rope_type" | "type" => ensure!(
                    value == "default",
                    "`{key}` of `{place}` is `{}`, only `default` is supported for a family \
                     that is not trained here (use another checkpoint)",
                    shown(&value)
                ),
                "rope_theta" | "partial_rotary_factor" => drop(settings.insert(key, value)),
                // ModernBERT has rope parameters for each kind of layer.
                "full_attention" | "sliding_attention" => {
                    let theta = value.get("rope_theta").cloned().unwrap_or(Value::Null);
                    let plain = value.get("rope_type").is_none_or(|kind| kind == "default");
                    ensure!(
                        plain && theta.is_number(),
                        "`{key}` of `{place}` is `{}`, expected a `rope_theta` of the type \
                         `default` (use another checkpoint)",
                        shown(&value)
                    );
                    let name = if key == "full_attention" {
                        "global_rope_theta"
                    } else {
                        "local_rope_theta"
                    };
                    settings.insert(name.to_owned(), theta);
                }
                _ => bail!(
                    "`{}` of `{place}` is `{}`, which is an unknown setting \
                     (use another checkpoint)",
                    shown_text(&key),
                    shown(&value)
                ),
            }
        }
    }
    Ok(())
}

/// The size under `key` of a checked configuration; 0 if the key is absent.
pub(super) fn size(settings: &Map<String, Value>, key: &str) -> usize {
    settings
        .get(key)
        .and_then(Value::as_u64)
        .and_then(|size| usize::try_from(size).ok())
        .unwrap_or(0)
}

/// The settings in the form that candle deserializes.
pub(super) fn read<T: DeserializeOwned>(settings: &Map<String, Value>) -> candle_core::Result<T> {
    serde_json::from_value(Value::Object(settings.clone()))
        .map_err(|error| candle_core::Error::msg(error.to_string()))
}
