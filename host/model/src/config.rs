//! The architecture of a model, as given in Hugging Face's `config.json`.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::family::Family;
use super::files::ModelFiles;
use super::rotary::{Rotary, Scaling};

/// The name of the configuration file in a model directory.
pub const CONFIG_FILE: &str = "config.json";

/// Upper limit of every size. Kernels and token ids use 32 bits, and products of four sizes fit
/// into 128 bits.
pub(super) const LARGEST: usize = i32::MAX as usize;
/// Upper limit of the number of layers, more than ten times that of any known model. It bounds the
/// time to build the layers.
pub(super) const MOST_LAYERS: usize = 4096;

/// Settings of a decoder from `config.json`. The complete JSON is stored, and written again with
/// the weights.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Family of the model.
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
    /// Longest sequence that the model was trained for, tokens.
    pub max_position_embeddings: usize,
    /// True if the head shares its weight with the embedding.
    pub tie_word_embeddings: bool,
    /// True if the attention projections have biases, in families that leave this open; see
    /// [`Config::biases`].
    attention_bias: bool,
    /// True if the feed-forward projections have biases, in families that leave this open.
    mlp_bias: bool,
    /// Term added to the mean square in RMSNorm.
    pub rms_norm_eps: f64,
    /// Standard deviation of fresh weights.
    pub initializer_range: f64,
    /// Activation function; must be `silu`.
    pub hidden_act: String,
    /// Rotary position embedding of queries and keys.
    #[serde(skip, default = "unread")]
    pub rotary: Rotary,
    /// All keys of the file, as read.
    #[serde(skip)]
    json: Map<String, Value>,
}

/// Projections of a layer that have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Biases {
    /// True if the projections to queries, keys and values have biases.
    pub heads: bool,
    /// True if the output projection of attention has a bias.
    pub output: bool,
    /// True if the three projections of the feed-forward layer have biases.
    pub mlp: bool,
}

/// Placeholder until the rotary settings are read.
fn unread() -> Rotary {
    Rotary {
        theta: 0.0,
        scaling: Scaling::Default,
    }
}

impl Config {
    /// Reads and checks `config.json`; a missing, malformed or unsupported file is an error that
    /// names its path.
    pub fn load(files: &ModelFiles) -> Result<Self> {
        let bytes = files.read(CONFIG_FILE)?;
        Self::from_json(&bytes)
            .with_context(|| format!("cannot use {}", files.describe(CONFIG_FILE)))
    }

    /// Parses and checks the text of a `config.json`. An unsupported or unknown setting is an
    /// error.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        let json: Map<String, Value> =
            serde_json::from_slice(bytes).context("not a JSON object")?;
        let family = Family::of(&json)?;
        family.check(&json)?;
        let stated = with_defaults(family, json.clone());
        let mut config: Self = serde_json::from_value(Value::Object(stated))?;
        config.rotary = Rotary::of(&json, config.max_position_embeddings)?;
        config.json = json;
        config.check()?;
        Ok(config)
    }

    /// The text of `config.json` for weights saved in 32-bit floats, with all keys as they were
    /// read.
    ///
    /// The `rope_parameters` of transformers 5 are also written under the keys of release 4, which
    /// ignores `rope_parameters`.
    pub fn to_json(&self) -> Result<String> {
        let mut json = self.json.clone();
        json.insert("torch_dtype".to_owned(), json!("float32"));
        if let Some(dtype) = json.get_mut("dtype") {
            *dtype = json!("float32");
        }
        json.entry("architectures")
            .or_insert_with(|| json!([self.model_type.architecture()]));
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

    /// Width of one attention head: `head_dim` or the family's default, else
    /// `hidden_size / num_attention_heads`.
    pub fn head_dim(&self) -> usize {
        self.head_dim
            .unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// The projections that have biases.
    pub fn biases(&self) -> Biases {
        match self.model_type {
            Family::Qwen2 => Biases {
                heads: true,
                output: false,
                mlp: false,
            },
            _ => Biases {
                heads: self.attention_bias,
                output: self.attention_bias,
                mlp: self.mlp_bias,
            },
        }
    }

    /// True if each head of queries and keys has an RMSNorm before rotation.
    pub fn norms_heads(&self) -> bool {
        self.model_type == Family::Qwen3
    }

    /// The id whose embedding gets no gradient from its use as an input: `pad_token_id`, counted
    /// from the end if negative. In transformers, it is the `padding_idx` of `nn.Embedding`.
    pub fn padding(&self) -> Option<u32> {
        let stated = self.json.get("pad_token_id")?.as_i64()?;
        let id = if stated < 0 {
            stated.checked_add_unsigned(self.vocab_size as u64)?
        } else {
            stated
        };
        u32::try_from(id).ok()
    }

    /// Checks the sizes and the numbers.
    fn check(&self) -> Result<()> {
        self.check_sizes()?;
        let numbers = [
            ("rms_norm_eps", self.rms_norm_eps),
            ("initializer_range", self.initializer_range),
        ];
        for (key, value) in numbers {
            ensure!(
                value >= 0.0 && value <= f64::from(f32::MAX),
                "`{key}` is {value}, expected a number 0 or more (correct `config.json`)"
            );
        }
        self.check_heads()?;
        ensure!(
            self.hidden_act == "silu",
            "`hidden_act` is `{}`, only `silu` is supported (use a checkpoint that has it)",
            self.hidden_act
        );
        Ok(())
    }

    /// Checks the range of every size.
    fn check_sizes(&self) -> Result<()> {
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
            ensure!(
                value > 0,
                "`{key}` is 0, expected at least 1 (correct `config.json`)"
            );
            ensure!(
                value <= LARGEST,
                "`{key}` is {value}, expected at most {LARGEST} (correct `config.json`)"
            );
        }
        let layers = self.num_hidden_layers;
        ensure!(
            layers <= MOST_LAYERS,
            "`num_hidden_layers` is {layers}, expected at most {MOST_LAYERS} \
             (correct `config.json`)"
        );
        Ok(())
    }

    /// Checks that the numbers and widths of the heads fit each other.
    fn check_heads(&self) -> Result<()> {
        let heads = self.num_attention_heads;
        let key_heads = self.num_key_value_heads;
        ensure!(
            heads.is_multiple_of(key_heads),
            "`num_attention_heads` {heads} is not a multiple of `num_key_value_heads` {key_heads} \
             (correct `config.json`)"
        );
        ensure!(
            self.head_dim.is_some() || self.hidden_size.is_multiple_of(heads),
            "`hidden_size` {} is not a multiple of `num_attention_heads` {heads} \
             (correct `config.json`)",
            self.hidden_size
        );
        let head_dim = self.head_dim();
        ensure!(
            head_dim <= LARGEST,
            "`head_dim` is {head_dim}, expected at most {LARGEST} (correct `config.json`)"
        );
        ensure!(
            head_dim > 0 && head_dim.is_multiple_of(2),
            "the head width {head_dim} is odd or 0, rotary embeddings need an even one \
             (correct `config.json`)"
        );
        Ok(())
    }
}

/// The settings of `json` without null values, and with the family's defaults for absent keys.
fn with_defaults(family: Family, mut json: Map<String, Value>) -> Map<String, Value> {
    // A key with the value null counts as absent.
    json.retain(|_, value| !value.is_null());
    if family == Family::Llama
        && let Some(heads) = json.get("num_attention_heads").cloned()
    {
        json.entry("num_key_value_heads").or_insert(heads);
    }
    if family == Family::Qwen3 {
        json.entry("head_dim").or_insert(json!(128));
    }
    let defaults = [
        ("tie_word_embeddings", json!(false)),
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("rms_norm_eps", json!(1e-6)),
        ("initializer_range", json!(0.02)),
        ("hidden_act", json!("silu")),
    ];
    for (key, default) in defaults {
        json.entry(key).or_insert(default);
    }
    json
}
