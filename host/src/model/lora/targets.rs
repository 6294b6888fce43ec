//! Target modules: the modules of a model that have an adapter.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};

use super::settings::Targets;
use crate::model::config::Config;
use crate::model::shapes::shapes;

/// PEFT's targets in every family that can be trained here. Source:
/// `peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`.
pub(super) const OF_FAMILY: [&str; 2] = ["q_proj", "v_proj"];
/// Every linear module of a layer, in the order of the forward pass.
pub(super) const ALL: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
/// Modules that cannot be targets.
const NEVER: [&str; 2] = ["lm_head", "embed_tokens"];

/// The target modules by name, with their shapes `[out, in]`; `key` is the setting's name for messages.
pub(super) fn modules(key: &str, targets: &Targets, config: &Config) -> Result<BTreeMap<String, (usize, usize)>> {
    let mut modules = linear(config);
    let names: Vec<String> = match targets {
        Targets::AllLinear => return Ok(modules),
        Targets::OfFamily => OF_FAMILY.map(str::to_owned).to_vec(),
        Targets::Named(names) => names.clone(),
        Targets::Pattern(pattern) => bail!("`{key}` is `{pattern}` (give a list of names, or `all-linear`)"),
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

/// Every module that can be a target, by name, with its shape `[out, in]`.
pub(super) fn linear(config: &Config) -> BTreeMap<String, (usize, usize)> {
    let module = |(name, shape): (String, Vec<usize>)| match (name.strip_suffix(".weight"), shape.as_slice()) {
        (Some(name), &[outputs, inputs]) if NEVER.iter().all(|never| !is(name, never)) => {
            Some((name.to_owned(), (outputs, inputs)))
        }
        _ => None,
    };
    shapes(config).into_iter().filter_map(module).collect()
}

/// True if the setting's entry `name` selects `module`. Source: `peft.tuners.tuners_utils.check_target_module_exists`.
fn is(module: &str, name: &str) -> bool {
    module.strip_suffix(name).is_some_and(|front| front.is_empty() || front.ends_with('.'))
}

fn check(key: &str, name: &str, modules: &BTreeMap<String, (usize, usize)>) -> Result<()> {
    if let Some(never) = NEVER.into_iter().find(|never| is(name, never)) {
        bail!(
            "`{key}` has `{name}`, but `{never}` cannot be a target: embedding and head stay as they are, which is what masks and step controls reckon with (leave it out)"
        );
    }
    ensure!(
        modules.keys().any(|module| is(module, name)),
        "`{key}` has `{name}`, which no matrix of the model is called (name one or more of `{}`, or write `all-linear`)",
        ALL.join("`, `")
    );
    Ok(())
}
