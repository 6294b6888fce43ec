//! Settings of an adapter, and the modules of a model that they target.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use serde_json::{Map, Value};

use crate::config::Config;
use crate::shapes::shapes;

/// Name suffix of a module's first factor, `[r, in]`.
pub(super) const A: &str = "lora_A.weight";
/// Name suffix of a module's second factor, `[out, r]`.
pub(super) const B: &str = "lora_B.weight";

/// PEFT's targets in every family that can be trained here. Source:
/// `peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`.
pub(super) const OF_FAMILY: [&str; 2] = ["q_proj", "v_proj"];
/// Every linear module of a layer, in the order of the forward pass.
pub(super) const ALL: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];
/// Modules that cannot be targets.
const NEVER: [&str; 2] = ["lm_head", "embed_tokens"];

/// Settings of an adapter, under PEFT's names.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank of the factors.
    pub r: usize,
    /// Numerator of the scale of the factors' product; the rank divides it.
    pub alpha: f64,
    /// Probability that an input of A is dropped in a training pass.
    pub dropout: f64,
    /// The modules that have an adapter.
    pub targets: Targets,
    /// True if the root of the rank divides `alpha` instead. Source:
    /// <https://arxiv.org/abs/2312.03732>.
    pub rslora: bool,
    /// All other keys of the `adapter_config.json` that was read, to be written again.
    pub rest: Map<String, Value>,
}

/// The modules that have an adapter.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// PEFT's default modules for this family.
    OfFamily,
    /// All linear modules in the layers.
    AllLinear,
    /// Modules whose name equals one of these texts, or ends in a dot followed by one.
    Named(Vec<String>),
    /// The modules in the adapter's file. The text is the regular expression that selected them.
    Pattern(String),
}

impl LoraConfig {
    /// Scale of the product of both factors: `alpha / r`, or `alpha / √r` with `rslora`.
    pub fn scale(&self) -> f64 {
        let r = self.r as f64;
        self.alpha / if self.rslora { r.sqrt() } else { r }
    }
}

/// Shape of a linear module's weight, `[outputs, inputs]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matrix {
    pub(super) outputs: usize,
    pub(super) inputs: usize,
}

/// The target modules by name; `key` is the setting's name for messages.
pub(super) fn modules(
    key: &str,
    targets: &Targets,
    config: &Config,
) -> Result<BTreeMap<String, Matrix>> {
    let mut modules = linear(config);
    let names: Vec<String> = match targets {
        Targets::AllLinear => return Ok(modules),
        Targets::OfFamily => OF_FAMILY.map(str::to_owned).to_vec(),
        Targets::Named(names) => names.clone(),
        Targets::Pattern(pattern) => {
            bail!("`{key}` is `{pattern}` (give a list of names, or `all-linear`)")
        }
    };
    ensure!(
        !names.is_empty(),
        "`{key}` names no module (name one or more of `{}`, or write `all-linear`)",
        ALL.join("`, `")
    );
    for name in &names {
        check(key, name, &modules)?;
    }
    modules.retain(|module, _| names.iter().any(|name| is(module, name)));
    Ok(modules)
}

/// Every module that can be a target, by name.
pub(super) fn linear(config: &Config) -> BTreeMap<String, Matrix> {
    let mut modules = BTreeMap::new();
    for (name, shape) in shapes(config) {
        if let Some(module) = name.strip_suffix(".weight")
            && let &[outputs, inputs] = shape.as_slice()
            && !NEVER.iter().any(|never| is(module, never))
        {
            modules.insert(module.to_owned(), Matrix { outputs, inputs });
        }
    }
    modules
}

/// True if the setting's entry `name` selects `module`. Source:
/// `peft.tuners.tuners_utils.check_target_module_exists`.
fn is(module: &str, name: &str) -> bool {
    module
        .strip_suffix(name)
        .is_some_and(|front| front.is_empty() || front.ends_with('.'))
}

/// Refuses an entry `name` of the setting `key` that selects no module.
fn check(key: &str, name: &str, modules: &BTreeMap<String, Matrix>) -> Result<()> {
    if let Some(never) = NEVER.into_iter().find(|never| is(name, never)) {
        bail!(
            "`{key}` has `{name}`, but `{never}` cannot be a target: embedding and head stay as \
             they are, which is what masks and step controls reckon with (leave it out)"
        );
    }
    ensure!(
        modules.keys().any(|module| is(module, name)),
        "`{key}` has `{name}`, which no matrix of the model is called \
         (name one or more of `{}`, or write `all-linear`)",
        ALL.join("`, `")
    );
    Ok(())
}
