//! The Qwen2 architecture as Hugging Face's `config.json` states it.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::files::ModelFiles;

/// The name of the configuration file in a model directory.
pub const CONFIG_FILE: &str = "config.json";

/// No size is larger: kernels and token ids count in 32 bits, and products of four sizes stay within 128.
const LARGEST: usize = i32::MAX as usize;
/// Most layers: each is made one after another, and no model has a tenth of these.
const MOST_LAYERS: usize = 4096;

/// A Qwen2 configuration; keys that the model does not need are kept and written back unchanged.
///
/// Source: `transformers.Qwen2Config`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Must be `qwen2`.
    pub model_type: String,
    /// Number of token ids, V.
    pub vocab_size: usize,
    /// Width of the residual stream, D.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head; `hidden_size / num_attention_heads` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Longest sequence that the model was made for, tokens.
    pub max_position_embeddings: usize,
    /// Whether the head is the embedding matrix.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Base of the rotary frequencies.
    #[serde(default = "default_rope_theta")]
    pub rope_theta: f64,
    /// Added to the mean square inside RMSNorm.
    #[serde(default = "default_rms_norm_eps")]
    pub rms_norm_eps: f64,
    /// Standard deviation of fresh weights.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
    /// Must be `silu`.
    #[serde(default = "default_hidden_act")]
    pub hidden_act: String,
    /// Ids that end a completion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eos_token_id: Option<TokenIds>,
    /// Every other key, as read.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One token id or a list of them, as Hugging Face writes `eos_token_id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TokenIds {
    /// A single id.
    One(u32),
    /// Several ids.
    Many(Vec<u32>),
}

fn default_rope_theta() -> f64 {
    10_000.0
}

fn default_rms_norm_eps() -> f64 {
    1e-6
}

fn default_initializer_range() -> f64 {
    0.02
}

fn default_hidden_act() -> String {
    "silu".to_owned()
}

impl Config {
    /// Reads and checks `config.json`; a missing, malformed or unsupported file is an error that names its path.
    pub fn load(files: &ModelFiles) -> Result<Self> {
        let bytes = files.read(CONFIG_FILE)?;
        Self::from_json(&bytes).with_context(|| format!("cannot use {}", files.describe(CONFIG_FILE)))
    }

    /// Parses and checks the text of a `config.json`; anything unsupported is an error.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let mut json: Map<String, Value> = serde_json::from_slice(bytes).context("not a JSON object")?;
        check_model_type(&json)?;
        check_attention(&json)?;
        check_rope(&mut json)?;
        ensure!(
            is_unset(json.get("quantization_config")),
            "`quantization_config` is set, but quantized weights are not supported (use the unquantized checkpoint)"
        );
        let config: Self = serde_json::from_value(Value::Object(json))?;
        config.check()?;
        Ok(config)
    }

    /// The text of `config.json` for weights saved in 32-bit floats.
    pub fn to_json(&self) -> Result<String> {
        let mut config = self.clone();
        config.extra.remove("dtype");
        config.extra.insert("torch_dtype".to_owned(), json!("float32"));
        config.extra.entry("architectures").or_insert_with(|| json!(["Qwen2ForCausalLM"]));
        let mut text = serde_json::to_string_pretty(&config)?;
        text.push('\n');
        Ok(text)
    }

    /// Width of one attention head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// Ids that end a completion; empty when the file states none.
    pub fn eos_token_ids(&self) -> Vec<u32> {
        match &self.eos_token_id {
            None => Vec::new(),
            Some(TokenIds::One(id)) => vec![*id],
            Some(TokenIds::Many(ids)) => ids.clone(),
        }
    }

    /// Checks the numbers against one another; call it on a configuration made by hand.
    pub fn check(&self) -> Result<()> {
        let positive = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        for (key, value) in positive {
            ensure!(value > 0, "`{key}` is 0, expected at least 1 (correct `config.json`)");
            ensure!(value <= LARGEST, "`{key}` is {value}, expected at most {LARGEST} (correct `config.json`)");
        }
        let layers = self.num_hidden_layers;
        ensure!(
            layers <= MOST_LAYERS,
            "`num_hidden_layers` is {layers}, expected at most {MOST_LAYERS} (correct `config.json`)"
        );
        let numbers = [
            ("rope_theta", self.rope_theta, f64::MIN_POSITIVE),
            ("rms_norm_eps", self.rms_norm_eps, 0.0),
            ("initializer_range", self.initializer_range, 0.0),
        ];
        for (key, value, least) in numbers {
            let limit = if least > 0.0 { "above 0" } else { "0 or more" };
            ensure!(
                value >= least && value <= f64::from(f32::MAX),
                "`{key}` is {value}, expected a number {limit} (correct `config.json`)"
            );
        }
        let (heads, groups) = (self.num_attention_heads, self.num_key_value_heads);
        ensure!(
            heads.is_multiple_of(groups),
            "`num_attention_heads` {heads} is not a multiple of `num_key_value_heads` {groups} (correct `config.json`)"
        );
        ensure!(
            self.head_dim.is_some() || self.hidden_size.is_multiple_of(heads),
            "`hidden_size` {} is not a multiple of `num_attention_heads` {heads} (correct `config.json`)",
            self.hidden_size
        );
        let head_dim = self.head_dim();
        ensure!(head_dim <= LARGEST, "`head_dim` is {head_dim}, expected at most {LARGEST} (correct `config.json`)");
        ensure!(
            head_dim > 0 && head_dim.is_multiple_of(2),
            "the head width {head_dim} is odd or 0, rotary embeddings need an even one (correct `config.json`)"
        );
        ensure!(
            self.hidden_act == "silu",
            "`hidden_act` is `{}`, only `silu` is supported (use a Qwen2 checkpoint)",
            self.hidden_act
        );
        Ok(())
    }
}

fn is_unset(value: Option<&Value>) -> bool {
    matches!(value, None | Some(Value::Null))
}

fn check_model_type(json: &Map<String, Value>) -> Result<()> {
    match json.get("model_type").and_then(Value::as_str) {
        Some("qwen2") => Ok(()),
        Some(other) => {
            bail!("`model_type` is `{other}`, only `qwen2` is supported (use a Qwen2 or Qwen2.5 checkpoint)")
        }
        None => bail!("`model_type` is missing, expected `qwen2` (use a Hugging Face `config.json`)"),
    }
}

fn check_attention(json: &Map<String, Value>) -> Result<()> {
    let sliding_layers = json
        .get("layer_types")
        .and_then(Value::as_array)
        .is_some_and(|layers| layers.iter().any(|kind| kind != "full_attention"));
    if json.get("use_sliding_window") == Some(&Value::Bool(true)) || sliding_layers {
        bail!("sliding-window attention is not supported (set `use_sliding_window` to `false` in `config.json`)");
    }
    if json.get("use_mrope") == Some(&Value::Bool(true)) {
        bail!("`use_mrope` is `true`, multimodal rotary embeddings are not supported (use a text-only checkpoint)");
    }
    Ok(())
}

/// Refuses scaled rotary embeddings and lifts `rope_parameters.rope_theta` (transformers 5) to the top level.
fn check_rope(json: &mut Map<String, Value>) -> Result<()> {
    if let Some(scaling) = json.get("rope_scaling").filter(|value| !value.is_null()) {
        bail!("`rope_scaling` is `{scaling}`, only unscaled rotary embeddings are supported (set it to `null`)");
    }
    let Some(Value::Object(rope)) = json.remove("rope_parameters") else {
        return Ok(());
    };
    let kind = rope.get("rope_type").and_then(Value::as_str).unwrap_or("default");
    if kind != "default" {
        bail!("`rope_type` is `{kind}`, only `default` is supported (use an unscaled checkpoint)");
    }
    if let Some(theta) = rope.get("rope_theta") {
        json.insert("rope_theta".to_owned(), theta.clone());
    }
    Ok(())
}
