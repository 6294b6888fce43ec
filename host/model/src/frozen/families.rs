//! Language models of which `candle-transformers` computes every position, with the known settings of each.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use candle_nn::{Module, VarBuilder, ops};
use candle_transformers::models::{gemma, glm4_new, qwen3_moe, smol::smollm3};
use candle_transformers::utils::build_additive_causal_mask;
use serde_json::{Map, Value, json};

use super::known::{Family, read, size};

/// Maps ids `[B, S]` (u32), padded on the right, to features `[B, S, D]`. The product of features and head gives the logits.
pub(super) type Body = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

pub(super) struct Model {
    /// Most rows in one forward pass.
    pub most_rows: usize,
    /// Builds the body from checked settings and weights.
    pub build: fn(&Map<String, Value>, VarBuilder<'static>) -> Result<Body>,
}

/// All families. Every pass runs a clone of the model with an empty KV cache; clones share the weights.
pub(super) const FAMILIES: &[Family<Model>] = &[
    Family {
        model_type: "gemma",
        architecture: "GemmaForCausalLM",
        read: "num_key_value_heads",
        fixed: r#"{"hidden_activation": "gelu_pytorch_tanh", "partial_rotary_factor": 1,
            "tie_word_embeddings": true, "use_bidirectional_attention": false}"#,
        defaults: r#"{"attention_bias": false, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": true}"#,
        aliases: &[],
        model: Model { most_rows: usize::MAX, build: gemma },
    },
    Family {
        model_type: "glm4",
        architecture: "Glm4ForCausalLM",
        read: "num_key_value_heads",
        fixed: "{}",
        defaults: r#"{"attention_bias": false, "head_dim": 128, "hidden_act": "silu", "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1.5625e-7, "rope_theta": 10000.0, "tie_word_embeddings": false}"#,
        aliases: &[],
        // Its rotation covers the first row only.
        model: Model { most_rows: 1, build: glm4 },
    },
    Family {
        model_type: "qwen3_moe",
        architecture: "Qwen3MoeForCausalLM",
        read: "moe_intermediate_size num_key_value_heads sliding_window output_router_logits \
            router_aux_loss_coef",
        fixed: r#"{"mlp_only_layers": [], "partial_rotary_factor": 1, "use_sliding_window": false}"#,
        defaults: r#"{"attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu",
            "max_window_layers": 0, "norm_topk_prob": false, "num_experts": 128, "num_experts_per_tok": 8,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
            "use_sliding_window": false}"#,
        aliases: &[("num_local_experts", "num_experts")],
        model: Model { most_rows: usize::MAX, build: qwen3_moe },
    },
    Family {
        model_type: "smollm3",
        architecture: "SmolLM3ForCausalLM",
        read: "attention_bias max_window_layers mlp_bias no_rope_layers num_key_value_heads layer_types \
            sliding_window",
        fixed: r#"{"partial_rotary_factor": 1, "use_sliding_window": false}"#,
        defaults: r#"{"hidden_act": "silu", "no_rope_layer_interval": 4, "rms_norm_eps": 1e-6,
            "rope_theta": 2000000.0, "tie_word_embeddings": true}"#,
        aliases: &[],
        model: Model { most_rows: usize::MAX, build: smollm3 },
    },
];

fn gemma(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let mut settings = settings.clone();
    let act = settings.insert("hidden_act".to_owned(), json!("gelu_pytorch_tanh"));
    // The first releases write `gelu` but compute its tanh approximation, as transformers does for them.
    if !act.is_some_and(|act| act == "gelu" || act == "gelu_pytorch_tanh") {
        bail!("`hidden_act` of a `gemma` model is not `gelu_pytorch_tanh` (use another checkpoint)");
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
        bail!(
            "`num_experts_per_tok` is {} of `num_experts` {}, every `decoder_sparse_step` {} layers (correct `config.json`)",
            config.num_experts_per_tok,
            config.num_experts,
            config.decoder_sparse_step
        );
    }
    let model = qwen3_moe::Model::new(&config, weights)?;
    Ok(Box::new(move |ids| model.clone().forward(ids, 0)))
}

fn smollm3(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let layers = size(settings, "num_hidden_layers");
    let full = settings.get("layer_types").and_then(Value::as_array);
    if full.is_some_and(|kinds| kinds.iter().any(|kind| kind != "full_attention")) {
        bail!("`layer_types` of a `smollm3` model is not `full_attention` throughout (use another checkpoint)");
    }
    let config: smollm3::Config = read(settings)?;
    if config.no_rope_layers.as_ref().is_some_and(|listed| listed.len() != layers)
        || config.no_rope_layer_interval == Some(0)
    {
        bail!("`no_rope_layers` or `no_rope_layer_interval` does not fit the number of layers (correct `config.json`)");
    }
    let model = Arc::new(smollm3::Model::new(&config, weights)?);
    Ok(Box::new(move |ids| smollm3::Model::clone(&model).forward(ids, 0)))
}
