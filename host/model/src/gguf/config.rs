//! The settings of a model, in the form of `config.json`.

use std::collections::HashMap;

use anyhow::{Context, Result, bail};
use candle_core::quantized::gguf_file::TensorInfo;
use serde_json::{Map, Value as Json, json};

use super::metadata::{Metadata, missing};
use super::rope;
use crate::error::Error;
use crate::family::{Family, shown_text};

/// Supported architectures. Files of Mistral's models say `llama`.
const ARCHITECTURES: [Family; 3] = [Family::Llama, Family::Qwen2, Family::Qwen3];
/// Names of settings in the file and in transformers, which every file must have.
const NEEDED: [(&str, &str); 6] = [
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("block_count", "num_hidden_layers"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
];
/// Names of settings that a file may have.
const OPTIONAL: [(&str, &str); 3] = [
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("rope.freq_base", "rope_theta"),
];
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
    let family = family(metadata)?;
    let prefix = format!("{}.", family.name());
    let mut left = metadata.under(&prefix);
    let mut config = Map::new();
    for (theirs, ours) in NEEDED {
        let value = left
            .remove(theirs)
            .with_context(|| missing(&format!("{prefix}{theirs}")))?;
        config.insert(ours.to_owned(), value);
    }
    for (theirs, ours) in OPTIONAL {
        if let Some(value) = left.remove(theirs) {
            config.insert(ours.to_owned(), value);
        }
    }
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
    if let Some(scaling) = scaling {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    // Settings that only repeat known values.
    left.remove("vocab_size");
    let repeated = [
        ("attention.value_length", &width),
        ("rope.dimension_count", &width),
        ("expert_count", &json!(0)),
    ];
    left.retain(|key, value| !repeated.contains(&(key.as_str(), value)));
    for (key, value) in left {
        config.insert(prefix.clone() + &key, value);
    }
    add_shape(family, tensors, &mut config)?;
    Ok(config)
}

/// The family that the file names.
fn family(metadata: &Metadata) -> Result<Family> {
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
        });
    Ok(family?)
}

/// Adds the settings that follow from the family and from the set of tensors.
fn add_shape(
    family: Family,
    tensors: &HashMap<String, TensorInfo>,
    config: &mut Map<String, Json>,
) -> Result<()> {
    let embedding = tensors
        .get("token_embd.weight")
        .context("tensor `token_embd.weight` is missing (fetch the file again)")?;
    let vocab = embedding.shape.dims().first();
    let is_tied = !tensors.contains_key("output.weight");
    let added = [
        ("vocab_size", json!(vocab)),
        ("tie_word_embeddings", json!(is_tied)),
        ("model_type", json!(family.name())),
        ("architectures", json!([family.architecture()])),
        ("torch_dtype", json!("float32")),
    ];
    config.extend(added.map(|(key, value)| (key.to_owned(), value)));
    if family != Family::Qwen2 {
        let biased = tensors.contains_key("blk.0.attn_q.bias");
        config.insert("attention_bias".to_owned(), json!(biased));
    }
    if family == Family::Llama {
        let biased = tensors.contains_key("blk.0.ffn_up.bias");
        config.insert("mlp_bias".to_owned(), json!(biased));
    }
    Ok(())
}

/// The size under `key`; 0 if it is absent or not a size.
fn size(config: &Map<String, Json>, key: &str) -> u64 {
    config.get(key).and_then(Json::as_u64).unwrap_or(0)
}

/// Numbers of heads whose rows a file stores in another order.
#[derive(Clone, Copy)]
pub(super) struct PermutedHeads {
    pub(super) queries: usize,
    pub(super) keys: usize,
}

/// The heads whose rows the file stores in another order: those of a Llama model.
pub(super) fn permuted(config: &Map<String, Json>) -> Option<PermutedHeads> {
    if config["model_type"] != Family::Llama.name() {
        return None;
    }
    let queries = size(config, "num_attention_heads");
    let keys = size(config, "num_key_value_heads");
    Some(PermutedHeads {
        queries: usize::try_from(queries).unwrap_or(0),
        keys: usize::try_from(keys).unwrap_or(0),
    })
}
