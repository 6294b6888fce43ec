//! `[model]`: the weights to train, and the adapter that is trained instead, if any.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::limits::{at_least_one, at_most};
use crate::model::{LoraConfig, Targets};

/// Largest rank of an adapter: no matrix is wider.
const LARGEST_RANK: usize = 1 << 20;

/// Section `[model]`; adapter settings have TRL's names and defaults.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// A Hugging Face directory, a GGUF file, an adapter's directory, a model id in the Hub's cache, or `embedded:tiny-arithmetic`.
    pub model_name_or_path: String,
    /// Reference model of a penalty on the distance from a reference, named as above and of any supported family. `None` is the model
    /// from which training starts.
    pub ref_model_name_or_path: Option<String>,
    /// True to start from random weights with the architecture and tokenizer of this model, without reading its weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fresh_weights: bool,
    /// True to train a LoRA adapter and leave the model's weights unchanged.
    pub use_peft: Option<bool>,
    /// Rank of the adapter; default 16.
    pub lora_r: Option<usize>,
    /// Factor of the adapter's product, before the division by the rank; default 32.
    pub lora_alpha: Option<f64>,
    /// Dropout: share of the adapter's inputs that a training pass leaves out; default 0.05.
    pub lora_dropout: Option<f64>,
    /// Modules that get an adapter: their names, or `all-linear`; default `q_proj` and `v_proj`.
    pub lora_target_modules: Option<TargetModules>,
    /// True to divide by the square root of the rank instead of the rank; default false.
    pub use_rslora: Option<bool>,
}

/// Value of `model.lora_target_modules`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected `all-linear` or a list of names")]
pub enum TargetModules {
    /// All linear modules: `all-linear`.
    All(String),
    /// Modules with these names, or whose names end in them.
    Named(Vec<String>),
}

impl ModelConfig {
    /// Refuses numbers that are out of range, and adapter settings if no adapter is trained.
    pub(super) fn check(&self) -> Result<()> {
        if self.use_peft != Some(true) {
            if let Some((key, value)) = self.adapter_key() {
                bail!(
                    "`model.{key}` is {value}, but no adapter is trained (set `model.use_peft` to `true`, or remove it)"
                );
            }
            return Ok(());
        }
        ensure!(
            !self.fresh_weights,
            "`model.fresh_weights` and `model.use_peft` are both true, but an adapter belongs to weights that a file holds (set one of them to `false`)"
        );
        let LoraConfig { r, alpha, dropout, .. } = self.lora_config();
        at_least_one(&[("model.lora_r", r as u64)])?;
        at_most(&[("model.lora_r", r, LARGEST_RANK)])?;
        ensure!(
            alpha > 0.0 && alpha <= f64::from(f32::MAX),
            "`model.lora_alpha` is {alpha} (it must be finite and above 0; twice the rank is usual)"
        );
        ensure!(
            (0.0..1.0).contains(&dropout),
            "`model.lora_dropout` is {dropout} (it must be 0 or more and less than 1; 0 is off)"
        );
        if let Some(TargetModules::All(name)) = &self.lora_target_modules {
            ensure!(
                name == "all-linear",
                "`model.lora_target_modules` is `{name}` (write `all-linear`, or a list of names as in `[\"{name}\"]`)"
            );
        }
        Ok(())
    }

    /// Configuration of a fresh adapter; `None` if the run does not begin with one.
    pub fn lora(&self) -> Option<LoraConfig> {
        (self.use_peft == Some(true)).then(|| self.lora_config())
    }

    fn lora_config(&self) -> LoraConfig {
        let targets = match &self.lora_target_modules {
            None => Targets::OfFamily,
            Some(TargetModules::All(_)) => Targets::AllLinear,
            Some(TargetModules::Named(names)) => Targets::Named(names.clone()),
        };
        LoraConfig {
            r: self.lora_r.unwrap_or(16),
            alpha: self.lora_alpha.unwrap_or(32.0),
            dropout: self.lora_dropout.unwrap_or(0.05),
            targets,
            rslora: self.use_rslora.unwrap_or(false),
            rest: Map::new(),
        }
    }

    /// Refuses settings that the adapter's folder already has, when `model_name_or_path` is such a folder.
    pub fn check_continued(&self) -> Result<()> {
        let name = &self.model_name_or_path;
        ensure!(
            self.use_peft != Some(false) && !self.fresh_weights,
            "`{name}` is an adapter, but {} (remove it to go on with the adapter, or merge it with `host export` first)",
            if self.fresh_weights { "`model.fresh_weights` is true" } else { "`model.use_peft` is false" }
        );
        if let Some((key, value)) = self.adapter_key() {
            bail!(
                "`model.{key}` is {value}, but `{name}` is an adapter, which has its own (remove it, or name the base model to begin with a fresh one)"
            );
        }
        Ok(())
    }

    /// The first adapter setting that is given, with its value.
    fn adapter_key(&self) -> Option<(&'static str, String)> {
        let targets = self.lora_target_modules.as_ref().map(|targets| match targets {
            TargetModules::All(name) => format!("`{name}`"),
            TargetModules::Named(names) => format!("`{}`", names.join("`, `")),
        });
        [
            ("lora_r", self.lora_r.map(|r| r.to_string())),
            ("lora_alpha", self.lora_alpha.map(|alpha| alpha.to_string())),
            ("lora_dropout", self.lora_dropout.map(|dropout| dropout.to_string())),
            ("lora_target_modules", targets),
            ("use_rslora", self.use_rslora.map(|on| on.to_string())),
        ]
        .into_iter()
        .find_map(|(key, value)| Some((key, value?)))
    }
}
