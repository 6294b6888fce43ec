//! `[model]`: the weights to train, and the adapter that is trained instead, if any.

use anyhow::Result;
use host_model::{LoraConfig, Targets};
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::setting::{Setting, Settings, given, settings};
use crate::{refuse, require};

/// Largest rank of an adapter: no matrix is wider.
const LARGEST_RANK: usize = 1 << 20;

/// Section `[model]`; adapter settings have TRL's names and defaults.
#[settings]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelConfig {
    /// A Hugging Face directory, a GGUF file, an adapter's directory, the id of a model in the
    /// Hub's cache, or `embedded:tiny-arithmetic`; see [models](../docs/models.md).
    #[setting(trl, verl = ["model.path"])]
    #[setting(
        differs = "a directory, or an id in the Hub's cache; `host download` fetches one. \
         [Families](../docs/models.md)"
    )]
    pub model_name_or_path: String,
    /// The reference model for an objective's `beta`; see
    /// [a reference](../docs/models.md#a-reference).
    #[setting(
        unset = "the model that training starts from",
        differs = "it is not synchronised"
    )]
    #[setting(trl = [
        "ref_model", "sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"
    ])]
    pub ref_model_name_or_path: Option<String>,
    /// True starts from random weights in that model's architecture, drawn from `train.seed`. Its
    /// own weights are not read.
    #[setting(default = false)]
    pub fresh_weights: bool,
    /// True trains a LoRA adapter and freezes the model's weights:
    /// [adapters](../docs/models.md#adapters).
    #[setting(
        unset = "false",
        trl,
        differs = "no DoRA, no `modules_to_save`, no quantised base"
    )]
    pub use_peft: Option<bool>,
    /// The adapter's rank. This and the next four need `use_peft`.
    #[setting(default = 16, at_least = 1, at_most = LARGEST_RANK, trl, verl = ["model.lora_rank"])]
    #[setting(needs = "adapter")]
    pub lora_r: usize,
    /// The adapter's product is multiplied by `lora_alpha / lora_r`.
    #[setting(default = 32.0, above = 0, at_most = f32::MAX, hint = "twice the rank is usual", trl)]
    #[setting(verl = ["model.lora_alpha"], needs = "adapter")]
    pub lora_alpha: f64,
    /// Dropout on the adapter's inputs in training passes. Above 0, the completions of a prompt do
    /// not share its computation there.
    #[setting(
        default = 0.05,
        at_least = 0,
        below = 1,
        hint = "0 is off",
        trl,
        needs = "adapter"
    )]
    pub lora_dropout: f64,
    /// Names of modules, or endings of names, or `"all-linear"`.
    #[setting(unset = "`[\"q_proj\", \"v_proj\"]`", trl, verl = ["model.target_modules"])]
    #[setting(needs = "adapter")]
    pub lora_target_modules: Option<TargetModules>,
    /// True divides `lora_alpha` by the root of the rank instead.
    #[setting(default = false, trl, needs = "adapter")]
    pub use_rslora: bool,
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
    /// Refuses adapter settings if no adapter is trained, and unknown target modules.
    pub(super) fn check(&self) -> Result<()> {
        if self.use_peft != Some(true) {
            if let Some((key, value)) = given(self, "adapter") {
                refuse!(
                    [format!("model.{key}"), "model.use_peft"],
                    "`model.{key}` is {value}, but no adapter is trained (set `model.use_peft` to \
                     `true`, or remove it)"
                );
            }
            return Ok(());
        }
        require!(
            ["model.fresh_weights", "model.use_peft"],
            !self.fresh_weights,
            "`model.fresh_weights` and `model.use_peft` are both true, but an adapter belongs to \
             weights that a file holds (set one of them to `false`)"
        );
        if let Some(TargetModules::All(name)) = &self.lora_target_modules {
            require!(
                ["model.lora_target_modules"],
                name == "all-linear",
                "`model.lora_target_modules` is `{name}` (write `all-linear`, or a list of names \
                 as in `[\"{name}\"]`)"
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
            r: self.lora_r,
            alpha: self.lora_alpha,
            dropout: self.lora_dropout,
            targets,
            rslora: self.use_rslora,
            rest: Map::new(),
        }
    }

    /// Refuses settings that the adapter's folder already has, when `model_name_or_path` is such a
    /// folder.
    pub fn check_continued(&self) -> Result<()> {
        let name = &self.model_name_or_path;
        require!(
            ["model.fresh_weights", "model.use_peft"],
            self.use_peft != Some(false) && !self.fresh_weights,
            "`{name}` is an adapter, but {} (remove it to go on with the adapter, or merge it \
             with `host export` first)",
            if self.fresh_weights {
                "`model.fresh_weights` is true"
            } else {
                "`model.use_peft` is false"
            }
        );
        if let Some((key, value)) = given(self, "adapter") {
            refuse!(
                [format!("model.{key}")],
                "`model.{key}` is {value}, but `{name}` is an \
             adapter, which has its own (remove it, or name the base model to begin with a fresh \
             one)"
            );
        }
        Ok(())
    }
}
