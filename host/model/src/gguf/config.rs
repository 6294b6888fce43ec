//! The settings of a model, in the form of `config.json`.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file::TensorInfo;
use serde_json::{Map, Value as Json, json};

use super::metadata::{Metadata, missing};
use super::rope;
use crate::error::Error;
use crate::family::{Family, shown_text};

/// Supported architectures. Files of Mistral's models say `llama`.
const ARCHITECTURES: [Family; 3] = [Family::Llama, Family::Qwen2, Family::Qwen3];
/// Names of settings in the file and in transformers. The first `NEEDED` of them are required.
const SETTINGS: [(&str, &str); 9] = [
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("rope.freq_base", "rope_theta"),
];
const NEEDED: usize = 6;
/// The rotary base if the file has none.
const THETA: f64 = 10_000.0;

/// Builds `config.json` from the metadata, the set of tensors, and the divisors of the rotary
/// frequencies.
///
/// An unknown setting of the architecture keeps its key, so it is refused like an unknown key of
/// any `config.json`.
pub(super) fn config(
    metadata: &Metadata,
    tensors: &HashMap<String, TensorInfo>,
    divisors: Option<&[f32]>,
) -> Result<Map<String, Json>> {
    let name = metadata.needed("general.architecture")?;
    let family = ARCHITECTURES
        .into_iter()
        .find(|family| family.name() == name)
        .ok_or_else(|| {
            let known = ARCHITECTURES.map(Family::name).join("`, `");
            Error::unknown_architecture(format!(
                "`general.architecture` is `{}`, supported are `{known}` (use another model)",
                shown_text(name)
            ))
        })?;
    let prefix = format!("{name}.");
    let mut left = metadata.under(&prefix);
    let mut config = Map::new();
    for (number, (theirs, ours)) in SETTINGS.into_iter().enumerate() {
        let value = left.remove(theirs);
        ensure!(
            value.is_some() || number >= NEEDED,
            missing(&format!("{prefix}{theirs}"))
        );
        config.extend(value.map(|value| (ours.to_owned(), value)));
    }
    let size =
        |config: &Map<String, Json>, key: &str| config.get(key).and_then(Json::as_u64).unwrap_or(0);
    let heads = size(&config, "num_attention_heads");
    let width = size(&config, "hidden_size").checked_div(heads).unwrap_or(0);
    config.entry("num_key_value_heads").or_insert(json!(heads));
    let width = config.entry("head_dim").or_insert(json!(width)).clone();
    let theta = config
        .entry("rope_theta")
        .or_insert(json!(THETA))
        .as_f64()
        .unwrap_or(THETA);
    let scaling = match (rope::scaling(&mut left), divisors) {
        (None, Some(divisors)) => rope::llama3(divisors, width.as_u64().unwrap_or(0), theta)?,
        (scaling, None) => scaling,
        _ => bail!(
            "it has both `{prefix}rope.scaling` and `{}` (use the original model)",
            rope::DIVISORS
        ),
    };
    config.extend(scaling.map(|scaling| ("rope_scaling".to_owned(), scaling)));
    // Settings that only repeat known values.
    left.remove("vocab_size");
    let repeated = [
        ("attention.value_length", &width),
        ("rope.dimension_count", &width),
        ("expert_count", &json!(0)),
    ];
    left.retain(|key, value| !repeated.contains(&(key.as_str(), value)));
    config.extend(
        left.into_iter()
            .map(|(key, value)| (prefix.clone() + &key, value)),
    );

    let embedding = tensors
        .get("token_embd.weight")
        .context("tensor `token_embd.weight` is missing (fetch the file again)")?;
    let has = |name: &str| json!(tensors.contains_key(name));
    config.extend([
        (
            "vocab_size".to_owned(),
            json!(embedding.shape.dims().first()),
        ),
        (
            "tie_word_embeddings".to_owned(),
            json!(!tensors.contains_key("output.weight")),
        ),
        ("model_type".to_owned(), json!(name)),
        ("architectures".to_owned(), json!([family.architecture()])),
        ("torch_dtype".to_owned(), json!("float32")),
    ]);
    if family != Family::Qwen2 {
        config.insert("attention_bias".to_owned(), has("blk.0.attn_q.bias"));
    }
    if family == Family::Llama {
        config.insert("mlp_bias".to_owned(), has("blk.0.ffn_up.bias"));
    }
    Ok(config)
}

/// Numbers of the query and key heads whose rows the file stores in another order: those of a Llama
/// model.
pub(super) fn permuted(config: &Map<String, Json>) -> Option<(usize, usize)> {
    let count = |key: &str| {
        config[key]
            .as_u64()
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(0)
    };
    let is_llama = config["model_type"] == Family::Llama.name();
    is_llama.then(|| (count("num_attention_heads"), count("num_key_value_heads")))
}
