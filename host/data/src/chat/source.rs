//! Finds a model's chat template, and the special tokens that the template can use.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail};
use capo_system::NamedFiles;
use serde_json::Value as Json;

use crate::exact;

/// File that consists of a model's default template.
pub const TEMPLATE_FILE: &str = "chat_template.jinja";
/// File that consists of the template for conversations with tools.
pub const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";
/// File that contains templates among other settings.
const CONFIG: &str = "tokenizer_config.json";
/// File with special tokens beside a tokenizer from an earlier transformers.
const TOKENS: &str = "special_tokens_map.json";
const NAMES: [&str; 7] = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];

/// Finds the template of a model, as transformers does: with tools the one called `tool_use`, if
/// there is one, else the default one. Files of their own come before the templates in the config.
/// Returns its text, and its name in error messages.
pub(super) fn find(files: &dyn NamedFiles, has_tools: bool) -> Result<(String, String)> {
    let wanted: &[&str] = if has_tools {
        &[TOOL_USE_FILE, TEMPLATE_FILE]
    } else {
        &[TEMPLATE_FILE]
    };
    if let Some(file) = wanted.iter().find(|file| files.contains(file)) {
        let place = files.describe(file);
        let bytes = files.read(file)?.into_owned();
        let text = String::from_utf8(bytes)
            .map_err(|_| anyhow!("the chat template {place} is not text in UTF-8"))?;
        return Ok((text, place));
    }
    let place = format!("of {}", files.describe(CONFIG));
    let templates = match files.json(CONFIG)?["chat_template"].take() {
        Json::Null => bail!(
            "the model has no chat template: there is no {}, and no `chat_template` in {} \
             (write one to the model's folder, name a file with `data.chat_template`, \
             or have plain prompts: `data.format` `text`, or no `--chat`)",
            files.describe(TEMPLATE_FILE),
            files.describe(CONFIG)
        ),
        Json::String(text) => return Ok((text, place)),
        templates @ (Json::Array(_) | Json::Object(_)) => templates,
        _ => bail!("`chat_template` {place} is neither text nor a list"),
    };
    let wanted: &[&str] = if has_tools {
        &["tool_use", "default"]
    } else {
        &["default"]
    };
    let text = wanted.iter().find_map(|name| called(&templates, name));
    let text = text.with_context(|| {
        format!(
            "none of the chat templates {place} is called `default` \
             (write one to `{TEMPLATE_FILE}` in the model's folder, \
             or name a file with `data.chat_template`)"
        )
    })?;
    Ok((text.to_owned(), place))
}

/// The text of a template in a config, which has a list of templates or an object.
fn called<'t>(templates: &'t Json, name: &str) -> Option<&'t str> {
    match templates {
        Json::Array(list) => {
            list.iter().find(|template| template["name"] == name)?["template"].as_str()
        }
        by_name => by_name[name].as_str(),
    }
}

/// Texts of the special tokens that have a name.
pub(super) fn special_tokens(files: &dyn NamedFiles) -> Result<BTreeMap<String, exact::Json>> {
    let config = files.json(CONFIG)?;
    // A config that lists tokens with their ids takes precedence, so the other file is not read.
    let other = if config["added_tokens_decoder"].is_null() {
        files.json(TOKENS)?
    } else {
        Json::Null
    };
    let mut tokens = BTreeMap::new();
    for name in NAMES {
        if let Some(text) = text(&other[name]).or_else(|| text(&config[name])) {
            tokens.insert(name.to_owned(), exact::Json::from(text));
        }
    }
    Ok(tokens)
}

/// The text of a token: a string, or an object with `content`.
fn text(token: &Json) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}
