//! The tokenizer, in the form of `tokenizer.json` and `tokenizer_config.json`.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value as Json, json};

use super::metadata::{Metadata, missing};
use crate::family::shown_text;

/// Kinds of tokens. Source: `TokenType` of the `gguf` package.
const UNKNOWN: f64 = 2.0;
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;
const UNUSED: f64 = 5.0;

/// Keys of special token ids, and the names that transformers gives these tokens.
const NAMED: [(&str, &str); 4] = [
    ("bos", "bos_token"),
    ("eos", "eos_token"),
    ("unknown", "unk_token"),
    ("padding", "pad_token"),
];
/// Keys of additional ids that end a completion.
const ENDS: [&str; 2] = ["eot", "eom"];
/// Longest token that a merge may produce, characters.
const LONGEST: usize = 256;
/// Upper limit of the merges that scores imply. Real files have a few times as many merges as
/// tokens.
const MOST_MERGES: usize = 1 << 22;

/// Patterns that split text before tokenization, named as in llama.cpp. Sources: the
/// `tokenizer.json` of the models.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// The tokens of a file, ordered by id.
struct Tokens<'a> {
    texts: Vec<&'a str>,
    kinds: Vec<f64>,
    /// Ids of special tokens, which stand for no text.
    special: BTreeSet<usize>,
}

/// Builds both files from the metadata, and adds the ids of special tokens to the model's
/// `config.json`.
pub(super) fn files(metadata: &Metadata, model: &mut Map<String, Json>) -> Result<[Json; 2]> {
    let tokens = Tokens::new(metadata)?;
    let mut config = Map::new();
    for (key, name) in NAMED {
        let Some(id) = tokens.named(metadata, key)? else {
            continue;
        };
        model.insert(format!("{name}_id"), json!(id));
        config.insert(name.to_owned(), json!(tokens.texts[id]));
    }
    let mut ends: Vec<Json> = model.get("eos_token_id").cloned().into_iter().collect();
    for key in ENDS {
        ends.extend(
            tokens
                .named(metadata, key)?
                .map(|id| json!(id))
                .filter(|id| !ends.contains(id)),
        );
    }
    if ends.len() > 1 {
        model.insert("eos_token_id".to_owned(), json!(ends));
    }
    config.extend(
        metadata
            .text("tokenizer.chat_template")?
            .map(|text| ("chat_template".to_owned(), json!(text))),
    );
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    config.insert(
        "tokenizer_class".to_owned(),
        json!("PreTrainedTokenizerFast"),
    );
    Ok([tokens.json(metadata, &config)?, Json::Object(config)])
}

impl<'a> Tokens<'a> {
    fn new(metadata: &'a Metadata) -> Result<Self> {
        let texts = metadata
            .texts("tokenizer.ggml.tokens")?
            .with_context(|| missing("tokenizer.ggml.tokens"))?;
        let kinds = per_token(metadata, "tokenizer.ggml.token_type", texts.len())?;
        let kinds = kinds.unwrap_or_else(|| vec![1.0; texts.len()]);
        let mut tokens = Self {
            texts,
            kinds,
            special: BTreeSet::new(),
        };
        let kinds = tokens
            .kinds
            .iter()
            .enumerate()
            .filter(|(_, kind)| [UNKNOWN, CONTROL].contains(kind));
        let mut special: BTreeSet<usize> = kinds.map(|(id, _)| id).collect();
        for key in NAMED.iter().map(|(key, _)| *key).chain(ENDS) {
            special.extend(tokens.named(metadata, key)?);
        }
        tokens.special = special;
        Ok(tokens)
    }

    /// The id that the file gives for a purpose.
    fn named(&self, metadata: &Metadata, purpose: &str) -> Result<Option<usize>> {
        let key = format!("tokenizer.ggml.{purpose}_token_id");
        let Some(id) = metadata.number(&key)? else {
            return Ok(None);
        };
        let count = self.texts.len();
        let known = usize::try_from(id).ok().filter(|id| *id < count);
        known.map(Some).with_context(|| {
            format!("`{key}` is {id}, but there are {count} tokens (fetch the file again)")
        })
    }

    /// The contents of `tokenizer.json`.
    fn json(&self, metadata: &Metadata, config: &Map<String, Json>) -> Result<Json> {
        let kind = metadata.needed("tokenizer.ggml.model")?;
        let (is_bytes, steps, merges) = match kind {
            "gpt2" => (
                true,
                byte_level(metadata.needed("tokenizer.ggml.pre")?)?,
                stated_merges(metadata)?,
            ),
            "llama" => (false, pieces(metadata)?, self.merges(metadata)?),
            other => bail!(
                "`tokenizer.ggml.model` is `{}`, supported are `gpt2` and `llama` \
                 (use another model)",
                shown_text(other)
            ),
        };
        let vocab: Map<String, Json> = self
            .used()
            .map(|(id, text)| (text.to_owned(), json!(id)))
            .collect();
        let added: Vec<Json> = self
            .used()
            .filter(|(id, _)| self.special.contains(id) || self.kinds[*id] == USER_DEFINED)
            .map(|(id, text)| self.added(id, text))
            .collect();
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": steps.normalizer,
            "pre_tokenizer": steps.split,
            "decoder": steps.decoder,
            "post_processor": begun_and_ended(metadata, config, &vocab, steps.begins)?,
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": config.get("unk_token").filter(|_| !is_bytes),
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": !is_bytes,
                "byte_fallback": !is_bytes,
                "ignore_merges": steps.whole_words,
                "vocab": vocab,
                "merges": merges,
            },
        }))
    }

    /// Ids and texts of the tokens in use.
    fn used(&self) -> impl Iterator<Item = (usize, &'a str)> {
        let tokens = self.texts.iter().copied().enumerate();
        tokens.filter(|(id, _)| self.kinds[*id] != UNUSED)
    }

    /// A token that is found in a text before the text is split.
    fn added(&self, id: usize, text: &str) -> Json {
        json!({
            "id": id,
            "content": text,
            "single_word": false,
            "lstrip": false,
            "rstrip": false,
            "normalized": false,
            "special": self.special.contains(&id),
        })
    }

    /// The merges that scores imply: tokens that join two others, ordered by score, best first.
    /// Source: `generate_merges` of transformers.
    fn merges(&self, metadata: &Metadata) -> Result<Json> {
        if metadata.texts("tokenizer.ggml.merges")?.is_some() {
            return stated_merges(metadata);
        }
        let key = "tokenizer.ggml.scores";
        let scores = per_token(metadata, key, self.texts.len())?.with_context(|| missing(key))?;
        let ids: HashMap<&str, usize> = self.used().map(|(id, text)| (text, id)).collect();
        let mut merges = Vec::new();
        for (id, text) in self.used() {
            if text.chars().nth(LONGEST).is_some() {
                continue;
            }
            merges.extend(merges_into(text, scores[id] + 0.0, &ids));
            ensure!(
                merges.len() <= MOST_MERGES,
                "its tokens have more than {MOST_MERGES} merges (fetch the file again)"
            );
        }
        // At equal scores longer parts come first; otherwise the order of tokens is preserved.
        merges.sort_by(|a, b| {
            b.score
                .total_cmp(&a.score)
                .then(b.left_length.cmp(&a.left_length))
                .then_with(|| b.right.chars().count().cmp(&a.right.chars().count()))
        });
        Ok(merges
            .into_iter()
            .map(|merge| json!([merge.left, merge.right]))
            .collect())
    }
}

/// Two tokens that together are a third.
struct Merge<'a> {
    /// Score of the third token.
    score: f64,
    /// Length of the left token, characters.
    left_length: usize,
    left: &'a str,
    right: &'a str,
}

/// The merges that produce `text`, in the order of the ids of their left and right tokens.
fn merges_into<'a>(text: &'a str, score: f64, ids: &HashMap<&str, usize>) -> Vec<Merge<'a>> {
    let mut found = Vec::new();
    for (left_length, (end, _)) in text.char_indices().enumerate().skip(1) {
        let (left, right) = text.split_at(end);
        if let (Some(left_id), Some(right_id)) = (ids.get(left), ids.get(right)) {
            let merge = Merge {
                score,
                left_length,
                left,
                right,
            };
            found.push((left_id, right_id, merge));
        }
    }
    found.sort_by_key(|(left_id, right_id, _)| (*left_id, *right_id));
    found.into_iter().map(|(_, _, merge)| merge).collect()
}

/// The numbers under `key`, one for each of `tokens` tokens; `None` if the key is absent.
fn per_token(metadata: &Metadata, key: &str, tokens: usize) -> Result<Option<Vec<f64>>> {
    let numbers = metadata.numbers(key)?;
    let count = numbers.as_ref().map_or(tokens, Vec::len);
    ensure!(
        count == tokens,
        "`{key}` has {count} values for {tokens} tokens (fetch the file again)"
    );
    Ok(numbers)
}

/// The tokenizer's steps before and after its model.
struct Steps {
    normalizer: Json,
    split: Json,
    decoder: Json,
    /// True if a word that is a token skips the merges.
    whole_words: bool,
    /// True if a text begins with the begin token, in a file that does not say so (llama.cpp,
    /// `llama-vocab.cpp`).
    begins: bool,
}

/// The steps of a byte-level tokenizer, by the name of its split pattern.
fn byte_level(name: &str) -> Result<Steps> {
    let digits = json!({"type": "Digits", "individual_digits": true});
    let (splits, whole_words) = match name {
        "gpt-2" => (vec![bytes(true)], false),
        "smollm" | "starcoder" | "refact" => (vec![digits, bytes(true)], false),
        "llama-bpe" | "llama3" | "llama-v3" | "smaug-bpe" => {
            (vec![regex(LLAMA3), bytes(false)], true)
        }
        "qwen2" | "deepseek-r1-qwen" => (vec![regex(QWEN2), bytes(false)], false),
        "tekken" => (vec![regex(TEKKEN), bytes(false)], true),
        other => bail!(
            "`tokenizer.ggml.pre` is `{}`, supported are `gpt-2`, `smollm`, `starcoder`, `refact`, \
             `llama-bpe`, `smaug-bpe`, `qwen2`, `deepseek-r1-qwen` and `tekken` \
             (use the original model)",
            shown_text(other)
        ),
    };
    let normalizer = if name == "qwen2" {
        json!({"type": "NFC"})
    } else {
        Json::Null
    };
    let split = json!({"type": "Sequence", "pretokenizers": splits});
    let begins = matches!(name, "llama-bpe" | "llama3" | "llama-v3" | "tekken");
    Ok(Steps {
        normalizer,
        split,
        decoder: bytes(true),
        whole_words,
        begins,
    })
}

/// The step that maps bytes to characters, and that splits words if `splits` is true.
fn bytes(splits: bool) -> Json {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": splits,
    })
}

/// The step that splits a text at the matches of `pattern`.
fn regex(pattern: &str) -> Json {
    json!({
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": false,
    })
}

/// The steps of a SentencePiece tokenizer.
fn pieces(metadata: &Metadata) -> Result<Steps> {
    let key = "tokenizer.ggml.remove_extra_whitespaces";
    ensure!(
        metadata.switch(key)? != Some(true),
        "`{key}` is true, which is not supported (use the original model)"
    );
    let begins = metadata
        .switch("tokenizer.ggml.add_space_prefix")?
        .unwrap_or(true);
    let scheme = if begins { "first" } else { "never" };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    decoders
        .extend(begins.then(|| json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})));
    Ok(Steps {
        normalizer: Json::Null,
        split: json!({
            "type": "Metaspace",
            "replacement": "▁",
            "prepend_scheme": scheme,
            "split": false,
        }),
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        whole_words: false,
        begins: true,
    })
}

/// The merges that the file lists.
fn stated_merges(metadata: &Metadata) -> Result<Json> {
    let key = "tokenizer.ggml.merges";
    let merges = metadata.texts(key)?.with_context(|| missing(key))?;
    let mut pairs = Vec::with_capacity(merges.len());
    for merge in merges {
        let (left, right) = merge
            .split_once(' ')
            .with_context(|| format!("`{key}` has `{}`, expected two parts", shown_text(merge)))?;
        pairs.push(json!([left, right]));
    }
    Ok(pairs.into())
}

/// The processor that adds the begin and end tokens to a text on request.
fn begun_and_ended(
    metadata: &Metadata,
    config: &Map<String, Json>,
    vocab: &Map<String, Json>,
    begins: bool,
) -> Result<Json> {
    let begins = metadata
        .switch("tokenizer.ggml.add_bos_token")?
        .unwrap_or(begins);
    let ends = metadata
        .switch("tokenizer.ggml.add_eos_token")?
        .unwrap_or(false);
    let token = |name: &str| config.get(name).and_then(Json::as_str);
    let first = token("bos_token").filter(|_| begins);
    let last = token("eos_token").filter(|_| ends);
    if first.or(last).is_none() {
        return Ok(Json::Null);
    }
    let mut special = Map::new();
    for text in [first, last].into_iter().flatten() {
        let ids = [vocab.get(text)];
        special.insert(
            text.to_owned(),
            json!({"id": text, "ids": ids, "tokens": [text]}),
        );
    }
    Ok(json!({
        "type": "TemplateProcessing",
        "single": template(first, &["A"], last),
        "pair": template(first, &["A", "B"], last),
        "special_tokens": special,
    }))
}

/// A template of the begin token, the texts called `texts` and the end token.
fn template(first: Option<&str>, texts: &[&str], last: Option<&str>) -> Vec<Json> {
    let special = |text: &str| json!({"SpecialToken": {"id": text, "type_id": 0}});
    let mut pieces = Vec::new();
    pieces.extend(first.map(special));
    for text in texts {
        pieces.push(json!({"Sequence": {"id": text, "type_id": 0}}));
    }
    pieces.extend(last.map(special));
    pieces
}
