//! An adapter's files as PEFT writes and reads them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, Var};
use capo_system::files::write_atomic;
use serde_json::{Map, Value, json};

use super::settings::{self, A, B, LoraConfig, Matrix, Targets};
use crate::config::Config;
use crate::family::shown;
use crate::files::ModelFiles;
use crate::params::Params;
use crate::tensors::TensorFile;

/// The file that identifies a folder as an adapter.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";
/// The file with the adapter's weights.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// Prefix of tensor names in the file; the module's name in the base follows.
const PREFIX: &str = "base_model.model.";

/// Keys that are read, and keys without effect on an adapter's computation. Any other key must be
/// off.
const KNOWN: &[&str] = &[
    "base_model_name_or_path bias init_lora_weights lora_alpha lora_dropout peft_type r",
    "target_modules use_rslora",
    "auto_mapping corda_config eva_config inference_mode loftq_config lora_ga_config",
    "megatron_config megatron_core peft_version qalora_group_size task_type",
];

/// Initializations of fresh factors that leave the base unchanged.
const INITIAL: &[&str] = &["gaussian", "eva", "orthogonal"];

/// Advice for a tensor that does not fit the settings and the base.
const BELONG: &str = "weights, settings and base model must be those of one adapter";

/// The base that the adapter in `files` names.
pub fn base_name(files: &ModelFiles) -> Result<String> {
    let json = files.object(ADAPTER_CONFIG_FILE)?;
    let name = json.get("base_model_name_or_path").and_then(Value::as_str);
    name.map(str::to_owned).with_context(|| {
        format!(
            "{} names no base model \
             (write the model that it belongs to as `base_model_name_or_path`)",
            files.describe(ADAPTER_CONFIG_FILE)
        )
    })
}

/// The settings in `adapter_config.json`, and the name of the base.
pub(super) fn read_config(files: &ModelFiles) -> Result<(LoraConfig, String)> {
    let config = parse(files.object(ADAPTER_CONFIG_FILE)?)
        .with_context(|| format!("cannot use {}", files.describe(ADAPTER_CONFIG_FILE)))?;
    Ok((config, base_name(files)?))
}

/// The settings of `adapter_config.json`, checked.
fn parse(json: Map<String, Value>) -> Result<LoraConfig> {
    let kind = json
        .get("peft_type")
        .map_or_else(|| "not set".to_owned(), shown);
    ensure!(
        kind == "LORA",
        "`peft_type` is `{kind}`, only `LORA` is supported (use a LoRA adapter)"
    );
    for (key, value) in &json {
        check_key(key, value)?;
    }
    let dropout = number(&json, "lora_dropout")?.unwrap_or(0.0);
    ensure!(
        (0.0..1.0).contains(&dropout),
        "`lora_dropout` is {dropout}, expected 0 or more and less than 1"
    );
    Ok(LoraConfig {
        r: rank(&json)?,
        alpha: number(&json, "lora_alpha")?.unwrap_or(8.0),
        dropout,
        targets: targets(&json)?,
        rslora: json.get("use_rslora") == Some(&Value::Bool(true)),
        rest: json,
    })
}

/// The number under `key`; `None` if the key is absent.
fn number(json: &Map<String, Value>, key: &str) -> Result<Option<f64>> {
    let Some(value) = json.get(key) else {
        return Ok(None);
    };
    value
        .as_f64()
        .map(Some)
        .with_context(|| format!("`{key}` is `{}`, expected a number", shown(value)))
}

/// The rank of the factors.
fn rank(json: &Map<String, Value>) -> Result<usize> {
    let Some(r) = json.get("r") else {
        return Ok(8);
    };
    r.as_u64()
        .filter(|r| *r > 0)
        .and_then(|r| usize::try_from(r).ok())
        .with_context(|| format!("`r` is `{}`, expected 1 or more", shown(r)))
}

/// The modules that have an adapter.
fn targets(json: &Map<String, Value>) -> Result<Targets> {
    Ok(match json.get("target_modules") {
        None | Some(Value::Null) => Targets::OfFamily,
        Some(Value::String(name)) if name == "all-linear" => Targets::AllLinear,
        Some(Value::String(pattern)) => Targets::Pattern(pattern.clone()),
        Some(names) => {
            Targets::Named(serde_json::from_value(names.clone()).with_context(|| {
                format!("`target_modules` is `{}`, expected names", shown(names))
            })?)
        }
    })
}

/// Refuses a setting that changes the adapter's computation in a way that is not supported.
fn check_key(key: &str, value: &Value) -> Result<()> {
    let off = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    match key {
        "bias" => ensure!(
            value == "none",
            "`bias` is `{}`, but biases stay as they are \
             (only `none` is supported; use another adapter)",
            shown(value)
        ),
        "init_lora_weights" => ensure!(
            off || *value == true || INITIAL.iter().any(|known| value == known),
            "`init_lora_weights` is `{}`, which changes the base model too \
             (convert it to a plain adapter with PEFT, or use another one)",
            shown(value)
        ),
        "use_rslora" => {
            ensure!(
                off || value.is_boolean(),
                "`use_rslora` is `{}`, expected `true` or `false`",
                shown(value)
            )
        }
        "revision" => ensure!(
            off || value == "main",
            "`revision` is `{}`, but only the newest one of a model is looked for \
             (give the base's folder as `base_model_name_or_path`)",
            shown(value)
        ),
        _ => ensure!(
            off || KNOWN
                .iter()
                .flat_map(|keys| keys.split(' '))
                .any(|known| known == key),
            "`{key}` is `{}`, which an adapter cannot have here (use an adapter without it)",
            shown(value)
        ),
    }
    Ok(())
}

/// The factors of every module in the file. The modules that `lora` targets must be there.
pub(super) fn read_params(
    files: &ModelFiles,
    lora: &LoraConfig,
    config: &Config,
    device: &Device,
) -> Result<Params> {
    let file = TensorFile::open(files, ADAPTER_FILE)?;
    factors(file, lora, config, device)
        .with_context(|| format!("cannot use {}", files.describe(ADAPTER_FILE)))
}

/// The factors of every module in `file`.
fn factors(
    mut file: TensorFile<'_>,
    lora: &LoraConfig,
    config: &Config,
    device: &Device,
) -> Result<Params> {
    let names = file.names();
    let expected = expected(lora, config, &names)?;
    let mut vars = BTreeMap::new();
    for full in &names {
        let known = full
            .strip_prefix(PREFIX)
            .and_then(|name| Some((name, expected.get(name)?)));
        let Some((name, shape)) = known else {
            bail!("unexpected tensor `{full}` ({BELONG})");
        };
        let found = file.shape(full)?;
        ensure!(
            found == shape.as_slice(),
            "tensor `{full}` has shape {found:?}, expected {shape:?} ({BELONG})"
        );
        vars.insert(
            name.to_owned(),
            Var::from_tensor(&file.floats(full, device)?)?,
        );
    }
    if let Some(missing) = expected.keys().find(|name| !vars.contains_key(*name)) {
        bail!("tensor `{PREFIX}{missing}` is missing (fetch the file again)");
    }
    Ok(vars.into_iter().collect())
}

/// The shape of every factor, by its name in the base model.
fn expected(
    lora: &LoraConfig,
    config: &Config,
    found: &[String],
) -> Result<BTreeMap<String, Vec<usize>>> {
    let targets = match &lora.targets {
        // The file has exactly the modules that the expression matched in the base.
        Targets::Pattern(_) => {
            let suffix = format!(".{A}");
            let names = found
                .iter()
                .filter_map(|name| name.strip_prefix(PREFIX)?.strip_suffix(&suffix));
            Targets::Named(names.map(str::to_owned).collect())
        }
        named => named.clone(),
    };
    let modules = settings::modules("target_modules", &targets, config)?;
    let mut shapes = BTreeMap::new();
    for (module, Matrix { outputs, inputs }) in modules {
        shapes.insert(format!("{module}.{A}"), vec![lora.r, inputs]);
        shapes.insert(format!("{module}.{B}"), vec![outputs, lora.r]);
    }
    Ok(shapes)
}

/// Writes both files into `directory` (created when missing).
pub(super) fn write(
    lora: &LoraConfig,
    base: &str,
    params: &Params,
    directory: &Path,
) -> Result<()> {
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create `{}`", directory.display()))?;
    params.save_file(&directory.join(ADAPTER_FILE), PREFIX)?;
    write_atomic(
        &directory.join(ADAPTER_CONFIG_FILE),
        &serde_json::to_vec_pretty(&to_json(lora, base))?,
    )
}

/// The text of `adapter_config.json`: the settings, and all other keys as they were read.
fn to_json(lora: &LoraConfig, base: &str) -> Map<String, Value> {
    let targets = match &lora.targets {
        Targets::OfFamily => json!(settings::OF_FAMILY),
        Targets::AllLinear => json!(settings::ALL),
        Targets::Named(names) => json!(names),
        Targets::Pattern(pattern) => json!(pattern),
    };
    let whole = (lora.alpha.fract() == 0.0 && lora.alpha.abs() < 1e15).then_some(lora.alpha as i64);
    let written = json!({
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_alpha": whole.map_or(json!(lora.alpha), |whole| json!(whole)),
        "lora_dropout": lora.dropout,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": lora.r,
        "target_modules": targets,
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": lora.rslora,
    });
    let mut json = lora.rest.clone();
    if let Value::Object(written) = written {
        json.extend(written);
    }
    json
}
