//! Names and shapes of a model's weights.

use std::collections::BTreeMap;

use super::config::Config;

/// The token embedding, `[V, D]`; also the head when `tie_word_embeddings` is set.
pub const EMBEDDING: &str = "model.embed_tokens.weight";
/// The head, `[V, D]`; absent when `tie_word_embeddings` is set.
pub const HEAD: &str = "lm_head.weight";
/// The weight of the last RMSNorm, `[D]`.
pub const FINAL_NORM: &str = "model.norm.weight";

/// The shape of every weight of `config`, ordered by name.
pub fn shapes(config: &Config) -> BTreeMap<String, Vec<usize>> {
    let hidden = config.hidden_size;
    let inner = config.intermediate_size;
    let queries = config.num_attention_heads * config.head_dim();
    let keys = config.num_key_value_heads * config.head_dim();
    let biases = config.biases();
    let mut shapes = BTreeMap::from([
        (EMBEDDING.to_owned(), vec![config.vocab_size, hidden]),
        (FINAL_NORM.to_owned(), vec![hidden]),
    ]);
    if !config.tie_word_embeddings {
        shapes.insert(HEAD.to_owned(), vec![config.vocab_size, hidden]);
    }
    for layer in 0..config.num_hidden_layers {
        let parts = [
            (true, "input_layernorm.weight", vec![hidden]),
            (true, "post_attention_layernorm.weight", vec![hidden]),
            (true, "self_attn.q_proj.weight", vec![queries, hidden]),
            (true, "self_attn.k_proj.weight", vec![keys, hidden]),
            (true, "self_attn.v_proj.weight", vec![keys, hidden]),
            (true, "self_attn.o_proj.weight", vec![hidden, queries]),
            (true, "mlp.gate_proj.weight", vec![inner, hidden]),
            (true, "mlp.up_proj.weight", vec![inner, hidden]),
            (true, "mlp.down_proj.weight", vec![hidden, inner]),
            (biases.heads, "self_attn.q_proj.bias", vec![queries]),
            (biases.heads, "self_attn.k_proj.bias", vec![keys]),
            (biases.heads, "self_attn.v_proj.bias", vec![keys]),
            (biases.output, "self_attn.o_proj.bias", vec![hidden]),
            (biases.mlp, "mlp.gate_proj.bias", vec![inner]),
            (biases.mlp, "mlp.up_proj.bias", vec![inner]),
            (biases.mlp, "mlp.down_proj.bias", vec![hidden]),
            (
                config.norms_heads(),
                "self_attn.q_norm.weight",
                vec![config.head_dim()],
            ),
            (
                config.norms_heads(),
                "self_attn.k_norm.weight",
                vec![config.head_dim()],
            ),
        ];
        let there = parts.into_iter().filter(|(is_there, ..)| *is_there);
        shapes
            .extend(there.map(|(_, part, shape)| (format!("model.layers.{layer}.{part}"), shape)));
    }
    shapes
}

/// The name of the matrix that maps hidden states to logits.
pub fn head_name(config: &Config) -> &'static str {
    if config.tie_word_embeddings {
        EMBEDDING
    } else {
        HEAD
    }
}
