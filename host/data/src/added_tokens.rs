//! Tokens that only the files beside a `tokenizer.json` name. Source: `_from_pretrained` of
//! transformers' tokenizers.

use anyhow::{Result, anyhow, ensure};
use capo_system::contain::contain;
use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use super::tokenizer_configs::{TokenizerConfigs, text};

/// Stands for an id that is not stated.
const NO_ID: u64 = u64::MAX;

/// Adds the tokens of `tokenizer_config.json`; if it lists none by id, also those of
/// `special_tokens_map.json` and `added_tokens.json`.
///
/// A token for which the model has no embedding stays unknown. It is an error if a new token gets
/// another id than the file gives it.
pub(super) fn add(tokenizer: &mut Tokenizer, configs: &TokenizerConfigs) -> Result<()> {
    let decoder = configs.tokenizer["added_tokens_decoder"].as_object();
    let [map, added] = [&configs.special, &configs.added]
        .map(|other| other.as_object().filter(|_| decoder.is_none()));
    let special: Vec<&str> = [configs.tokenizer.as_object(), map]
        .into_iter()
        .flatten()
        .flat_map(special)
        .collect();
    let by_id = decoder.into_iter().flatten();
    let by_id = by_id.map(|(id, token)| {
        (
            id.parse().unwrap_or(NO_ID),
            text(token).unwrap_or_default(),
            token,
        )
    });
    let by_text = added.into_iter().flatten();
    let by_text =
        by_text.map(|(text, id)| (id.as_u64().unwrap_or(NO_ID), text.as_str(), &Value::Null));
    let mut tokens: Vec<(u64, &str, &Value)> = by_id.chain(by_text).collect();
    tokens.sort_by_key(|(id, ..)| *id);
    tokens.extend(special.iter().map(|text| (NO_ID, *text, &Value::Null)));
    for (id, text, flags) in tokens {
        let known = tokenizer.token_to_id(text);
        let next = tokenizer.get_vocab_size(true) as u64;
        let has_row =
            known.is_some() || id.min(next) < configs.model["vocab_size"].as_u64().unwrap_or(0);
        if !has_row
            || tokenizer
                .get_added_vocabulary()
                .get_vocab()
                .contains_key(text)
        {
            continue;
        }
        let is_special = is_set(flags, "special") || special.contains(&text);
        let token = AddedToken::from(text, is_special)
            .normalized(flags["normalized"].as_bool().unwrap_or(!is_special))
            .single_word(is_set(flags, "single_word"))
            .lstrip(is_set(flags, "lstrip"))
            .rstrip(is_set(flags, "rstrip"));
        contain(|| tokenizer.add_tokens([token]))?
            .map_err(|error| anyhow!("the token `{text}` cannot be added: {error}"))?;
        ensure!(
            known.is_some() || [NO_ID, next].contains(&id),
            "the token `{text}` has the id {id} in a file beside `tokenizer.json`, \
             whose next free id is {next} (fetch the tokenizer again)"
        );
    }
    Ok(())
}

fn is_set(flags: &Value, key: &str) -> bool {
    flags[key].as_bool() == Some(true)
}

/// The special tokens that a file names, in the order in which transformers numbers new ones:
/// `bos_token` and the like, then lists.
fn special(config: &Map<String, Value>) -> Vec<&str> {
    const FIRST: [&str; 7] = [
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
    ];
    let mut named: Vec<(&String, &Value)> = config
        .iter()
        .filter(|(key, _)| key.ends_with("_token") || is_list(key))
        .collect();
    named.sort_by_key(|(key, _)| {
        let place = FIRST.iter().position(|name| name == key);
        (is_list(key), place.unwrap_or(FIRST.len()))
    });
    named
        .into_iter()
        .flat_map(|(_, value)| texts(value))
        .collect()
}

/// True for a key whose value lists special tokens.
fn is_list(key: &str) -> bool {
    ["additional_special_tokens", "extra_special_tokens"].contains(&key)
}

/// The texts of a token, or of several.
fn texts(value: &Value) -> Vec<&str> {
    match (text(value), value) {
        (None, Value::Array(list)) => list.iter().filter_map(text).collect(),
        (None, Value::Object(others)) => others.values().filter_map(text).collect(),
        (text, _) => Vec::from_iter(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{Tokenizer, TokenizerConfigs};

    #[test]
    fn encodes_and_decodes_as_transformers_does() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/");
        let read = |file: &str| -> Value {
            serde_json::from_slice(&std::fs::read(format!("{folder}{file}")).unwrap()).unwrap()
        };
        for case in read("tokens-golden/golden.json").as_array().unwrap() {
            let mut json = read("chat-golden/tokenizer.json");
            json["post_processor"] = case
                .get("processor")
                .unwrap_or(&json["post_processor"])
                .clone();
            let [tokenizer, added, special] = [
                "tokenizer_config.json",
                "added_tokens.json",
                "special_tokens_map.json",
            ]
            .map(|name| case[name].clone());
            let configs = TokenizerConfigs {
                tokenizer,
                added,
                special,
                model: json!({"vocab_size": 275}),
                generation: Value::Null,
            };
            let plain = Tokenizer::from_bytes(json.to_string().as_bytes(), &configs).unwrap();
            let begun = plain.clone().with_special_tokens(true).unwrap();
            for text in case["texts"].as_array().unwrap() {
                let written = text["text"].as_str().unwrap();
                let ids = plain.encode(written).unwrap();
                let (decoded, prompt) = (
                    plain.decode(&ids).unwrap(),
                    begun.encode_prompt(written).unwrap(),
                );
                let ours =
                    json!({"text": written, "ids": ids, "decoded": decoded, "prompt": prompt});
                assert_eq!(ours, *text, "{}", case["name"]);
            }
        }
    }

    #[test]
    fn refuses_an_id_that_is_not_the_next_one() {
        let (added, model) = (json!({"<tool>": 20}), json!({"vocab_size": 30}));
        let configs = TokenizerConfigs {
            added,
            model,
            ..TokenizerConfigs::default()
        };
        let error = Tokenizer::from_bytes(Tokenizer::TINY_ARITHMETIC[0].1, &configs)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(
                "the token `<tool>` has the id 20 in a file beside `tokenizer.json`, whose next free id is 15"
            ),
            "{error}"
        );
    }
}
