//! Finds a model's chat template, and the special tokens that the template can use.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail};
use capo_loader::NamedFiles;
use minijinja::Value;
use serde_json::Value as Json;

/// File that consists of a template.
pub const TEMPLATE_FILE: &str = "chat_template.jinja";
/// File that contains a template among other settings.
const CONFIG: &str = "tokenizer_config.json";
/// File with special tokens beside a tokenizer from an earlier transformers.
const TOKENS: &str = "special_tokens_map.json";
const NAMES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Finds the template of a model, as transformers does. Returns its text, and its name in error messages.
pub(super) fn find(files: &dyn NamedFiles) -> Result<(String, String)> {
    if files.contains(TEMPLATE_FILE) {
        let place = files.describe(TEMPLATE_FILE);
        let bytes = files.read(TEMPLATE_FILE)?.into_owned();
        let text = String::from_utf8(bytes).map_err(|_| anyhow!("the chat template {place} is not text in UTF-8"))?;
        return Ok((text, place));
    }
    let place = format!("of {}", files.describe(CONFIG));
    match &files.json(CONFIG)?["chat_template"] {
        Json::Null => {}
        Json::String(text) => return Ok((text.clone(), place)),
        Json::Array(templates) => {
            let default = templates.iter().find(|template| template["name"] == "default");
            let text = default.and_then(|template| template["template"].as_str()).with_context(|| {
                format!(
                    "none of the chat templates {place} is called `default` (write one to `{TEMPLATE_FILE}` in the model's folder, or name a file with `data.chat_template`)"
                )
            })?;
            return Ok((text.to_owned(), place));
        }
        _ => bail!("`chat_template` {place} is neither text nor a list"),
    }
    bail!(
        "the model has no chat template: there is no {}, and no `chat_template` in {} (write one to the model's folder, name a file with `data.chat_template`, or have plain prompts: `data.format` `text`, or no `--chat`)",
        files.describe(TEMPLATE_FILE),
        files.describe(CONFIG)
    )
}

/// Texts of the special tokens that have a name.
pub(super) fn special_tokens(files: &dyn NamedFiles) -> Result<BTreeMap<String, Value>> {
    let config = files.json(CONFIG)?;
    // A config that lists tokens with their ids takes precedence, so the other file is not read.
    let other = if config["added_tokens_decoder"].is_null() { files.json(TOKENS)? } else { Json::Null };
    let text = |json: &Json| json.as_str().or_else(|| json["content"].as_str()).map(Value::from);
    let token = |name: &&str| Some((name.to_string(), text(&other[name]).or_else(|| text(&config[name]))?));
    Ok(NAMES.iter().filter_map(token).collect())
}
