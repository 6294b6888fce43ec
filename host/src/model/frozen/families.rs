//! Language models of which `candle-transformers` computes every position, with the known settings of each.

use std::sync::Arc;

use candle_core::{Error, Result, Tensor};
use candle_nn::{Module, VarBuilder, ops};
use candle_transformers::models::{gemma, glm4_new, qwen3_moe, smol::smollm3};
use candle_transformers::utils::build_additive_causal_mask;
use serde_json::{Map, Value, json};

use super::known::{Known, read, size};

/// Maps ids `[B, S]` (u32), padded on the right, to features `[B, S, D]`. The product of features and head gives the logits.
pub(super) type Body = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

/// A family of language models.
pub(super) struct Family {
    pub known: Known,
    /// Most rows in one forward pass.
    pub most_rows: usize,
    /// Builds the body from checked settings and weights.
    pub build: fn(&Map<String, Value>, VarBuilder<'static>) -> Result<Body>,
}

/// All families. Every pass runs a clone of the model with an empty KV cache; clones share the weights.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        known: Known {
            model_type: "gemma",
            architecture: "GemmaForCausalLM",
            read: "attention_bias head_dim hidden_size intermediate_size max_position_embeddings num_attention_heads num_hidden_layers \
                num_key_value_heads rms_norm_eps rope_theta vocab_size hidden_act",
            fixed: &[
                ("hidden_activation", "\"gelu_pytorch_tanh\""),
                ("partial_rotary_factor", "1"),
                ("tie_word_embeddings", "true"),
                ("use_bidirectional_attention", "false"),
            ],
            defaults: &[
                ("attention_bias", "false"),
                ("head_dim", "256"),
                ("hidden_act", "\"gelu_pytorch_tanh\""),
                ("rms_norm_eps", "1e-6"),
                ("rope_theta", "10000.0"),
                ("tie_word_embeddings", "true"),
            ],
            aliases: &[],
        },
        most_rows: usize::MAX,
        build: gemma,
    },
    Family {
        known: Known {
            model_type: "glm4",
            architecture: "Glm4ForCausalLM",
            read: "attention_bias head_dim hidden_act hidden_size intermediate_size max_position_embeddings num_attention_heads num_hidden_layers \
                num_key_value_heads partial_rotary_factor rms_norm_eps rope_theta tie_word_embeddings vocab_size",
            fixed: &[],
            defaults: &[
                ("attention_bias", "false"),
                ("head_dim", "128"),
                ("hidden_act", "\"silu\""),
                ("partial_rotary_factor", "0.5"),
                ("rms_norm_eps", "1.5625e-7"),
                ("rope_theta", "10000.0"),
                ("tie_word_embeddings", "false"),
            ],
            aliases: &[],
        },
        // Its rotation covers the first row only.
        most_rows: 1,
        build: glm4,
    },
    Family {
        known: Known {
            model_type: "qwen3_moe",
            architecture: "Qwen3MoeForCausalLM",
            read: "attention_bias decoder_sparse_step head_dim hidden_act hidden_size intermediate_size max_position_embeddings max_window_layers \
                moe_intermediate_size norm_topk_prob num_attention_heads num_experts num_experts_per_tok num_hidden_layers num_key_value_heads \
                rms_norm_eps rope_theta sliding_window tie_word_embeddings vocab_size output_router_logits router_aux_loss_coef",
            fixed: &[("mlp_only_layers", "[]"), ("partial_rotary_factor", "1"), ("use_sliding_window", "false")],
            defaults: &[
                ("attention_bias", "false"),
                ("decoder_sparse_step", "1"),
                ("head_dim", "128"),
                ("hidden_act", "\"silu\""),
                ("max_window_layers", "0"),
                ("norm_topk_prob", "false"),
                ("num_experts", "128"),
                ("num_experts_per_tok", "8"),
                ("rms_norm_eps", "1e-6"),
                ("rope_theta", "10000.0"),
                ("tie_word_embeddings", "false"),
                ("use_sliding_window", "false"),
            ],
            aliases: &[("num_local_experts", "num_experts")],
        },
        most_rows: usize::MAX,
        build: qwen3_moe,
    },
    Family {
        known: Known {
            model_type: "smollm3",
            architecture: "SmolLM3ForCausalLM",
            read: "attention_bias hidden_act hidden_size intermediate_size max_position_embeddings max_window_layers mlp_bias no_rope_layer_interval \
                no_rope_layers num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope_theta tie_word_embeddings vocab_size \
                layer_types sliding_window",
            fixed: &[("partial_rotary_factor", "1"), ("use_sliding_window", "false")],
            defaults: &[
                ("hidden_act", "\"silu\""),
                ("no_rope_layer_interval", "4"),
                ("rms_norm_eps", "1e-6"),
                ("rope_theta", "2000000.0"),
                ("tie_word_embeddings", "true"),
            ],
            aliases: &[],
        },
        most_rows: usize::MAX,
        build: smollm3,
    },
];

fn gemma(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let mut settings = settings.clone();
    let act = settings.insert("hidden_act".to_owned(), json!("gelu_pytorch_tanh"));
    // The first releases write `gelu` but compute its tanh approximation, as transformers does for them.
    if !act.is_some_and(|act| act == "gelu" || act == "gelu_pytorch_tanh") {
        return Err(Error::msg("`hidden_act` of a `gemma` model is not `gelu_pytorch_tanh` (use another checkpoint)"));
    }
    settings.remove("hidden_activation");
    let config: gemma::Config = read(&settings)?;
    let (width, eps) = (config.hidden_size, config.rms_norm_eps as f32);
    let embedding = candle_nn::embedding(config.vocab_size, width, weights.pp("model.embed_tokens"))?;
    let norm = (weights.get(width, "model.norm.weight")? + 1.0)?;
    let model = gemma::Model::new(false, &config, weights)?;
    Ok(Box::new(move |ids| {
        let mask = build_additive_causal_mask(ids.dim(1)?, 0, None, ids.device(), norm.dtype())?;
        let x = model.clone().forward_embeds_without_projection(&embedding.forward(ids)?, Some(&mask), 0)?;
        ops::rms_norm(&x.contiguous()?, &norm, eps)
    }))
}

fn glm4(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let model = glm4_new::Model::new(&read(settings)?, weights)?;
    Ok(Box::new(move |ids| model.clone().forward(ids, 0)))
}

fn qwen3_moe(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let config: qwen3_moe::Config = read(settings)?;
    // candle does not check the number of selected experts.
    if config.num_experts_per_tok > config.num_experts || config.decoder_sparse_step == 0 {
        return Err(Error::msg(format!(
            "`num_experts_per_tok` is {} of `num_experts` {}, every `decoder_sparse_step` {} layers (correct `config.json`)",
            config.num_experts_per_tok, config.num_experts, config.decoder_sparse_step
        )));
    }
    let model = qwen3_moe::Model::new(&config, weights)?;
    Ok(Box::new(move |ids| model.clone().forward(ids, 0)))
}

fn smollm3(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let layers = size(settings, "num_hidden_layers");
    let full = settings.get("layer_types").and_then(Value::as_array);
    if full.is_some_and(|kinds| kinds.iter().any(|kind| kind != "full_attention")) {
        return Err(Error::msg(
            "`layer_types` of a `smollm3` model is not `full_attention` throughout (use another checkpoint)",
        ));
    }
    let config: smollm3::Config = read(settings)?;
    if config.no_rope_layers.as_ref().is_some_and(|listed| listed.len() != layers)
        || config.no_rope_layer_interval == Some(0)
    {
        return Err(Error::msg(
            "`no_rope_layers` or `no_rope_layer_interval` does not fit the number of layers (correct `config.json`)",
        ));
    }
    let model = Arc::new(smollm3::Model::new(&config, weights)?);
    Ok(Box::new(move |ids| smollm3::Model::clone(&model).forward(ids, 0)))
}
