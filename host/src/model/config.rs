//! The architecture of a model as Hugging Face's `config.json` states it.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::family::Family;
use super::files::ModelFiles;
use super::rotary::{Rotary, Scaling};

/// The name of the configuration file in a model directory.
pub const CONFIG_FILE: &str = "config.json";

/// No size is larger: kernels and token ids count in 32 bits, and products of four sizes stay within 128.
pub(super) const LARGEST: usize = i32::MAX as usize;
/// Most layers: each is made one after another, and no model has a tenth of these.
pub(super) const MOST_LAYERS: usize = 4096;

/// Settings of a decoder from `config.json`; the whole file is kept and written back with the weights.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Which family it is of.
    pub model_type: Family,
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
    /// Width of one head; see [`Config::head_dim`].
    pub head_dim: Option<usize>,
    /// Longest sequence that the model was made for, tokens.
    pub max_position_embeddings: usize,
    /// True if the head is the embedding matrix.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// True if the projections of attention have biases, in families where that is a choice; see [`Config::biases`].
    #[serde(default)]
    attention_bias: bool,
    /// True if the projections of the feed-forward layer have biases, in families where that is a choice.
    #[serde(default)]
    mlp_bias: bool,
    /// Added to the mean square inside RMSNorm.
    #[serde(default = "default_rms_norm_eps")]
    pub rms_norm_eps: f64,
    /// Standard deviation of fresh weights.
    #[serde(default = "default_initializer_range")]
    pub initializer_range: f64,
    /// Must be `silu`.
    #[serde(default = "default_hidden_act")]
    pub hidden_act: String,
    /// How heads are rotated by their position.
    #[serde(skip, default = "unread")]
    pub rotary: Rotary,
    /// The file as it was read.
    #[serde(skip)]
    json: Map<String, Value>,
}

/// Which projections of a layer have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// Those to queries, keys and values.
    pub heads: bool,
    /// That of the mixed values.
    pub output: bool,
    /// The three of the feed-forward layer.
    pub mlp: bool,
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

/// Stands for what is read after the rest.
fn unread() -> Rotary {
    Rotary { theta: 0.0, scaling: Scaling::Default }
}

impl Config {
    /// Reads and checks `config.json`; a missing, malformed or unsupported file is an error that names its path.
    pub fn load(files: &ModelFiles) -> Result<Self> {
        let bytes = files.read(CONFIG_FILE)?;
        Self::from_json(&bytes).with_context(|| format!("cannot use {}", files.describe(CONFIG_FILE)))
    }

    /// Parses and checks the text of a `config.json`; anything unsupported is an error, and so is a setting that is not known.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let json: Map<String, Value> = serde_json::from_slice(bytes).context("not a JSON object")?;
        let family = Family::of(&json)?;
        family.check(&json)?;
        let mut stated = json.clone();
        let key_heads = stated.get("num_key_value_heads");
        if key_heads.map_or(family.may_leave_out_key_heads(), Value::is_null) {
            let heads = stated.get("num_attention_heads").cloned().unwrap_or(Value::Null);
            stated.insert("num_key_value_heads".to_owned(), heads);
        }
        // A key with the value null counts as absent.
        stated.retain(|_, value| !value.is_null());
        let mut config: Self = serde_json::from_value(Value::Object(stated))?;
        config.rotary = Rotary::of(&json, config.max_position_embeddings)?;
        config.json = json;
        config.check()?;
        Ok(config)
    }

    /// The text of `config.json` for weights saved in 32-bit floats: all keys as they were read.
    ///
    /// The `rope_parameters` of transformers 5 are written under the keys of release 4 too, which would otherwise miss them.
    pub fn to_json(&self) -> Result<String> {
        let mut json = self.json.clone();
        json.insert("torch_dtype".to_owned(), json!("float32"));
        if let Some(dtype) = json.get_mut("dtype") {
            *dtype = json!("float32");
        }
        json.entry("architectures").or_insert_with(|| json!([self.model_type.architecture()]));
        if let Some(Value::Object(parameters)) = self.json.get("rope_parameters") {
            json.insert("rope_theta".to_owned(), json!(self.rotary.theta));
            if self.rotary.scaling != Scaling::Default {
                let mut scaling = parameters.clone();
                scaling.remove("rope_theta");
                json.insert("rope_scaling".to_owned(), Value::Object(scaling));
            }
        }
        let mut text = serde_json::to_string_pretty(&json)?;
        text.push('\n');
        Ok(text)
    }

    /// Width of one attention head: `head_dim`, else the family's, else `hidden_size / num_attention_heads`.
    pub fn head_dim(&self) -> usize {
        let stated = self.head_dim.or(self.model_type.default_head_dim());
        stated.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// Which projections have biases.
    pub fn biases(&self) -> Biases {
        match self.model_type {
            Family::Qwen2 => Biases { heads: true, output: false, mlp: false },
            _ => Biases { heads: self.attention_bias, output: self.attention_bias, mlp: self.mlp_bias },
        }
    }

    /// True if queries and keys are normed, head by head.
    pub fn norms_heads(&self) -> bool {
        self.model_type.norms_heads()
    }

    /// The id whose embedding an input does not train: transformers makes it the padding of its `nn.Embedding`. It is `pad_token_id`, of which a
    /// negative one counts from the end.
    pub fn padding(&self) -> Option<u32> {
        let stated = self.json.get("pad_token_id")?.as_i64()?;
        let id = if stated < 0 { stated.checked_add_unsigned(self.vocab_size as u64)? } else { stated };
        u32::try_from(id).ok()
    }

    /// Checks the numbers against one another.
    fn check(&self) -> Result<()> {
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
        let numbers = [("rms_norm_eps", self.rms_norm_eps), ("initializer_range", self.initializer_range)];
        for (key, value) in numbers {
            ensure!(
                value >= 0.0 && value <= f64::from(f32::MAX),
                "`{key}` is {value}, expected a number 0 or more (correct `config.json`)"
            );
        }
        let (heads, groups) = (self.num_attention_heads, self.num_key_value_heads);
        ensure!(
            heads.is_multiple_of(groups),
            "`num_attention_heads` {heads} is not a multiple of `num_key_value_heads` {groups} (correct `config.json`)"
        );
        ensure!(
            self.head_dim.or(self.model_type.default_head_dim()).is_some() || self.hidden_size.is_multiple_of(heads),
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
            "`hidden_act` is `{}`, only `silu` is supported (use a checkpoint that has it)",
            self.hidden_act
        );
        Ok(())
    }
}
