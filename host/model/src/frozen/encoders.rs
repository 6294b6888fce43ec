//! Encoders of `candle-transformers` for text classification, with the known settings and the head
//! of each.

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, debertav2, modernbert, xlm_roberta};
use serde_json::{Map, Value, json};

use super::known::{Family, read, size};

/// Maps ids and mask `[B, S]` (u32; 1 is a token, 0 is padding) to features `[B, S, D]`.
pub(super) type Body = Box<dyn Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync>;

/// A body, and the head `output(norm(activation(dense(x))))` of its features `x`.
pub(super) struct Model {
    /// Builds the body from checked settings and weights.
    pub build: fn(&Map<String, Value>, VarBuilder<'static>) -> Result<Body>,
    /// Name of the first matrix. It has a bias unless a norm follows.
    pub dense: &'static str,
    pub activation: fn(&Tensor) -> Result<Tensor>,
    /// Name of a norm without a bias.
    pub norm: Option<&'static str>,
    /// Name of the matrix whose rows are the outputs.
    pub output: &'static str,
}

/// Upper limit of the positions, which bounds tables whose length is a setting.
const MOST_POSITIONS: usize = 1 << 20;

pub(super) const FAMILIES: &[Family<Model>] = &[
    Family {
        model_type: "bert",
        architecture: "BertForSequenceClassification",
        read: "tie_word_embeddings gradient_checkpointing",
        fixed: r#"{"add_cross_attention": false, "is_decoder": false,
            "position_embedding_type": "absolute"}"#,
        defaults: r#"{"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "initializer_range": 0.02,
            "layer_norm_eps": 1e-12, "pad_token_id": 0, "type_vocab_size": 2}"#,
        aliases: &[],
        model: Model {
            build: bert,
            dense: "bert.pooler.dense",
            activation: Tensor::tanh,
            norm: None,
            output: "classifier",
        },
    },
    Family {
        model_type: "deberta-v2",
        architecture: "DebertaV2ForSequenceClassification",
        read: "norm_rel_ebd padding_idx pooler_hidden_size position_buckets share_att_key \
            tie_word_embeddings",
        fixed: r#"{"conv_kernel_size": 0, "pooler_hidden_act": "gelu"}"#,
        defaults: r#"{"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-7,
            "max_relative_positions": -1, "pos_att_type": [], "position_biased_input": true,
            "relative_attention": false, "type_vocab_size": 0}"#,
        aliases: &[],
        model: Model {
            build: deberta_v2,
            dense: "pooler.dense",
            activation: Tensor::gelu_erf,
            norm: None,
            output: "classifier",
        },
    },
    Family {
        model_type: "modernbert",
        architecture: "ModernBertForSequenceClassification",
        read: "deterministic_flash_attn layer_types reference_compile repad_logits_with_grad \
            sparse_pred_ignore_index sparse_prediction tie_word_embeddings gradient_checkpointing \
            position_embedding_type",
        fixed: r#"{"attention_bias": false, "classifier_activation": "gelu",
            "classifier_bias": false, "hidden_activation": "gelu", "mlp_bias": false,
            "norm_bias": false}"#,
        defaults: r#"{"classifier_pooling": "cls", "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0, "layer_norm_eps": 1e-5, "local_attention": 128,
            "local_rope_theta": 10000.0, "pad_token_id": 50283}"#,
        aliases: &[("norm_eps", "layer_norm_eps")],
        model: Model {
            build: modernbert,
            dense: "head.dense",
            activation: Tensor::gelu_erf,
            norm: Some("head.norm"),
            output: "classifier",
        },
    },
    Family {
        model_type: "xlm-roberta",
        architecture: "XLMRobertaForSequenceClassification",
        read: "output_past tie_word_embeddings",
        fixed: r#"{"add_cross_attention": false, "is_decoder": false,
            "position_embedding_type": "absolute"}"#,
        defaults: r#"{"attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-12, "pad_token_id": 1,
            "position_embedding_type": "absolute", "type_vocab_size": 2}"#,
        aliases: &[],
        model: Model {
            build: xlm_roberta,
            dense: "classifier.dense",
            activation: Tensor::tanh,
            norm: None,
            output: "classifier.out_proj",
        },
    },
];

impl Family<Model> {
    /// Maximum length of a text, tokens.
    pub(super) fn positions(&self, settings: &Map<String, Value>) -> Result<usize> {
        let stated = size(settings, "max_position_embeddings");
        if stated > MOST_POSITIONS {
            bail!(
                "`max_position_embeddings` is {stated}, expected at most {MOST_POSITIONS} \
                 (correct `config.json`)"
            );
        }
        // Positions of XLM-RoBERTa begin after that of the padding token.
        let before = if self.model_type == "xlm-roberta" {
            size(settings, "pad_token_id") + 1
        } else {
            0
        };
        Ok(stated.saturating_sub(before))
    }
}

fn bert(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let mut settings = settings.clone();
    // With a `model_type`, candle would try other tensor names when these are missing.
    settings.remove("model_type");
    let model = bert::BertModel::load(weights.pp("bert"), &read(&settings)?)?;
    Ok(Box::new(move |ids, mask| {
        model.forward(ids, &ids.zeros_like()?, Some(mask))
    }))
}

fn deberta_v2(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let mut settings = settings.clone();
    settings
        .retain(|key, _| !["id2label", "label2id", "pooler_hidden_act"].contains(&key.as_str()));
    let width = size(&settings, "hidden_size");
    if settings
        .get("pooler_hidden_size")
        .is_some_and(|pooled| pooled.as_u64() != Some(width as u64))
    {
        bail!("`pooler_hidden_size` is not `hidden_size` (use another checkpoint)");
    }
    let model = debertav2::DebertaV2Model::load(weights.pp("deberta"), &read(&settings)?)?;
    if settings["position_biased_input"] != true {
        return Ok(Box::new(move |ids, mask| {
            model.forward(ids, None, Some(mask.clone()))
        }));
    }
    // candle adds the positions' embeddings to one row only.
    Ok(Box::new(move |ids, mask| {
        let mut rows = Vec::new();
        for row in 0..ids.dim(0)? {
            let ids = ids.narrow(0, row, 1)?;
            let mask = mask.narrow(0, row, 1)?;
            rows.push(model.forward(&ids, None, Some(mask))?);
        }
        Tensor::cat(&rows, 0)
    }))
}

fn modernbert(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let mut settings = settings.clone();
    let every = size(&settings, "global_attn_every_n_layers").max(1);
    if let Some(Value::Array(kinds)) = settings.remove("layer_types") {
        for (layer, stated) in kinds.iter().enumerate() {
            let expected = if layer % every == 0 {
                "full_attention"
            } else {
                "sliding_attention"
            };
            if *stated != json!(expected) {
                bail!(
                    "`layer_types` is not one `full_attention` every {every} layers \
                     (use another checkpoint)"
                );
            }
        }
    }
    settings.insert("global_attn_every_n_layers".to_owned(), every.into());
    settings
        .retain(|key, _| !["id2label", "label2id", "classifier_pooling"].contains(&key.as_str()));
    let model = modernbert::ModernBert::load(weights, &read(&settings)?)?;
    Ok(Box::new(move |ids, mask| model.forward(ids, mask)))
}

fn xlm_roberta(settings: &Map<String, Value>, weights: VarBuilder<'static>) -> Result<Body> {
    let model = xlm_roberta::XLMRobertaModel::new(&read(settings)?, weights.pp("roberta"))?;
    Ok(Box::new(move |ids, mask| {
        model.forward(ids, mask, &ids.zeros_like()?, None, None, None)
    }))
}
