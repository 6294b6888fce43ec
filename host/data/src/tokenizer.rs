//! Converts text to token ids and back with any Hugging Face `tokenizer.json`, and finds the ids
//! that end and pad a completion.

use std::collections::BTreeSet;
use std::sync::Once;

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_system::NamedFiles;
use capo_system::contain::contain;
use capo_system::terminal;
use serde_json::{Value, json};
use tokenizers::{Encoding, Token};

use super::quote::quote;
use super::special::special_ids;
use super::tokenizer_configs::{TokenizerConfigs, text};
use super::tokenizer_json;

/// Error message after a panic of the tokenizers crate over a text.
const UNUSABLE: &str = "`tokenizer.json` cannot be used";
/// Number of tokens that are decoded to test the decoder.
const SAMPLES: u32 = 1000;

/// A tokenizer with its end and padding ids.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    pub(crate) inner: tokenizers::Tokenizer,
    eos: Vec<u32>,
    pad: u32,
    /// Tokens with which text prompts begin.
    begin: Vec<u32>,
    /// True if the tokenizer puts a space before every text, as SentencePiece does.
    pub(super) puts_space: bool,
    /// Special ids, which no text from an environment may contain.
    pub(crate) special: BTreeSet<u32>,
}

impl Tokenizer {
    /// Files of a model directory with a tokenizer or its texts, besides `config.json`. Some are
    /// read by other modules. Only the first must exist.
    pub const FILES: [&'static str; 11] = [
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "tokenizer.model",
    ];
    /// The embedded character-level tokenizer as pairs of file name and contents: `<pad>`, `<eos>`,
    /// ten digits, `+`, `=` and the space. It has no `<unk>`, so other text is an error instead of
    /// a silent substitute.
    pub const TINY_ARITHMETIC: [(&'static str, &'static [u8]); 2] = [
        (
            "tokenizer.json",
            include_bytes!("../../assets/tiny-arithmetic/tokenizer.json"),
        ),
        (
            "tokenizer_config.json",
            include_bytes!("../../assets/tiny-arithmetic/tokenizer_config.json"),
        ),
    ];

    /// The embedded tokenizer of the arithmetic task, with 15 tokens.
    pub fn tiny_arithmetic() -> Result<Self> {
        let [json, config] = Self::TINY_ARITHMETIC.map(|(_, bytes)| bytes);
        Self::from_bytes(
            json,
            &TokenizerConfigs {
                tokenizer: serde_json::from_slice(config)?,
                ..Default::default()
            },
        )
    }

    /// Opens the tokenizer among the files of a model; the config files may be absent.
    ///
    /// Errors: those of [`Tokenizer::from_bytes`], and a file that cannot be read or is not JSON.
    pub fn open(files: &dyn NamedFiles) -> Result<Self> {
        let bytes = files.read("tokenizer.json")?;
        let configs = TokenizerConfigs::of(files)?;
        Self::from_bytes(&bytes, &configs)
            .with_context(|| format!("cannot use {}", files.describe("tokenizer.json")))
    }

    /// Reads a tokenizer from the bytes of a `tokenizer.json`; its own truncation and padding
    /// settings are turned off.
    ///
    /// Errors: bytes that are not a tokenizer, no end token, or an end or padding token outside the
    /// vocabulary.
    pub fn from_bytes(tokenizer_json: &[u8], configs: &TokenizerConfigs) -> Result<Self> {
        let inner = tokenizer_json::read(tokenizer_json, configs)?;
        let eos = eos_ids(&inner, configs)?;
        let pad = pad_id(&inner, configs)?.unwrap_or(eos[0]);
        if let Some(size) = configs.model["vocab_size"].as_u64()
            && let Some(id) = eos.iter().chain([&pad]).find(|id| u64::from(**id) >= size)
        {
            bail!(
                "token {id} ends or fills completions, but the model's `vocab_size` is {size} \
                 (use the model's tokenizer)"
            );
        }
        // Encoding is tested when rows are checked. Decoding is tested here, because no completion
        // has been sampled yet.
        let ids: Vec<u32> = (0..SAMPLES).collect();
        contain(|| inner.decode(&ids, true).is_ok())?;
        let special = special_ids(&inner);
        let mut tokenizer = Tokenizer {
            inner,
            eos,
            pad,
            begin: Vec::new(),
            puts_space: false,
            special,
        };
        tokenizer.puts_space = tokenizer.begins_texts_anew();
        Ok(tokenizer)
    }

    /// This tokenizer; if `add_special_tokens`, prompts begin with the special tokens that it puts
    /// before a text, as in transformers.
    ///
    /// Special tokens that it would put after a text are left out, because the completion continues
    /// there.
    pub fn with_special_tokens(mut self, add_special_tokens: bool) -> Result<Self> {
        if !add_special_tokens {
            return Ok(self);
        }
        // The tokens before one that stands for a text.
        let one = Encoding::from_tokens(vec![Token::new(0, String::new(), (0, 0))], 0);
        let whole = contain(|| self.inner.post_process(one, None, true)).context(UNUSABLE)?;
        let whole = whole.map_err(|error| anyhow!("{UNUSABLE}: {error}"))?;
        let ids = whole.get_ids().iter().zip(whole.get_special_tokens_mask());
        self.begin = ids
            .take_while(|(_, special)| **special == 1)
            .map(|(id, _)| *id)
            .collect();
        Ok(self)
    }

    /// The special tokens with which text prompts begin; none for conversations.
    pub fn begin(&self) -> &[u32] {
        &self.begin
    }

    /// Token ids of a prompt: its text's after the special tokens, unless the text begins with
    /// them. Errors are those of [`Self::encode`].
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>> {
        static REPEATED: Once = Once::new();
        if text.is_empty() && !self.begin.is_empty() {
            return Ok(self.begin.clone());
        }
        let ids = self.encode(text)?;
        if self.begin.is_empty() || !ids.starts_with(&self.begin) {
            return Ok([&self.begin[..], &ids].concat());
        }
        REPEATED.call_once(|| {
            let token = self.inner.id_to_token(ids[0]).unwrap_or_default();
            terminal::warn(&format!(
                "a prompt begins with `{token}`, which the tokenizer puts before texts: \
                 it gets no second one (leave it out of the text)"
            ));
        });
        Ok(ids)
    }

    /// Token ids of a text, without special tokens. Text that the vocabulary cannot express, or
    /// that gives no token, is an error.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let ids = self
            .ids(text)
            .with_context(|| format!("cannot encode `{}`", quote(text)))?;
        ensure!(
            !ids.is_empty(),
            "`{}` encodes to no tokens (does the tokenizer fit the dataset?)",
            quote(text)
        );
        Ok(ids)
    }

    /// The first special token of a text, if no completion ends at it.
    pub fn unending(&self, text: &str) -> Option<String> {
        let added = self.inner.get_added_vocabulary();
        for id in self.ids(text).ok()? {
            let token = self.inner.id_to_token(id);
            if let Some(token) = token.filter(|token| added.is_special_token(token)) {
                return (!self.eos.contains(&id)).then_some(token);
            }
        }
        None
    }

    pub(super) fn ids(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.encoding(text)?.map_err(|error| {
            let unknown = text.chars().map(String::from).find(|c| self.is_unknown(c));
            match unknown {
                Some(c) => anyhow!("the tokenizer has no id for `{}`", quote(&c)),
                None => anyhow!("{error}"),
            }
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    fn encoding(&self, text: &str) -> Result<tokenizers::Result<Encoding>> {
        contain(|| self.inner.encode_fast(text, false)).context(UNUSABLE)
    }

    /// True if the vocabulary cannot express a text.
    fn is_unknown(&self, text: &str) -> bool {
        self.encoding(text).is_ok_and(|encoding| encoding.is_err())
    }

    /// Text of completion ids, without special tokens; ids outside the vocabulary give no text.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decode_with(ids, &[])
    }

    /// Text of completion ids, as from [`Tokenizer::decode`], with those special tokens that are
    /// among `kept`.
    pub(super) fn decode_with(&self, ids: &[u32], kept: &[&str]) -> Result<String> {
        let added = self.inner.get_added_vocabulary();
        let mut ids = ids.to_vec();
        ids.retain(|id| match self.inner.id_to_token(*id) {
            Some(token) => !added.is_special_token(&token) || kept.contains(&token.as_str()),
            None => true,
        });
        self.decode_with_special(&ids)
    }

    /// Text of completion ids, with special tokens.
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String> {
        contain(|| self.inner.decode(ids, false))
            .context(UNUSABLE)?
            .map_err(|error| anyhow!("cannot decode {} tokens: {error}", ids.len()))
    }

    /// A function that returns the text that each id adds after `prompt`, without special tokens.
    /// It returns `None` while a character is incomplete.
    pub fn stream(&self, prompt: &[u32]) -> Result<impl FnMut(u32) -> Result<Option<String>>> {
        let mut stream = self.inner.decode_stream(true);
        let mut step = move |id| {
            contain(|| stream.step(id))
                .context(UNUSABLE)?
                .map_err(|error| anyhow!("cannot decode token {id}: {error}"))
        };
        prompt.iter().try_for_each(|id| step(*id).map(drop))?;
        Ok(step)
    }

    /// Byte range in `text`, the text of completion `ids`, that each id stands for. A character of
    /// several tokens belongs to the last of them.
    pub fn spans(&self, ids: &[u32], text: &str) -> Result<Vec<[u32; 2]>> {
        let pieces: tokenizers::Result<Vec<Option<String>>> = contain(|| {
            let mut stream = self.inner.decode_stream(true);
            ids.iter().map(|&id| stream.step(id)).collect()
        })
        .context(UNUSABLE)?;
        let pieces = pieces.unwrap_or_default();
        let mut spans = Vec::with_capacity(ids.len());
        let mut start = 0;
        if pieces.len() == ids.len()
            && text.starts_with(&pieces.iter().flatten().cloned().collect::<String>())
        {
            for piece in &pieces {
                let end = start + piece.as_ref().map_or(0, String::len) as u32;
                spans.push([start, end]);
                start = end;
            }
            return Ok(spans);
        }
        // The decoder's words depend on what follows, so a span ends where the text of the ids so
        // far stops to agree with the whole.
        for count in 1..=ids.len() {
            let end = common(&self.decode(&ids[..count])?, text).max(start);
            spans.push([start, end]);
            start = end;
        }
        Ok(spans)
    }

    /// The ids that end a completion, at least one; the first is appended to training targets.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    /// The padding id; the first end id if the model names no other.
    pub fn pad_id(&self) -> u32 {
        self.pad
    }

    /// Number of tokens, added ones included; a model may pad its vocabulary to more.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

/// Names and contents of the files that must replace those of a model, so that the token `eos` ends
/// completions before all others. Source: `eos_token` of TRL's `SFTConfig`.
pub fn with_eos_token(files: &dyn NamedFiles, eos: &str) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let configs = TokenizerConfigs::of(files)?;
    let inner = tokenizer_json::read(&files.read("tokenizer.json")?, &configs)?;
    let id = inner.token_to_id(eos);
    let id = id.with_context(|| {
        format!(
            "`{eos}` is no token of {} (name one)",
            files.describe("tokenizer.json")
        )
    })?;
    let mut ids = vec![id];
    ids.extend(
        eos_ids(&inner, &configs)
            .unwrap_or_default()
            .into_iter()
            .filter(|other| *other != id),
    );
    let mut replaced = vec![
        (
            "tokenizer_config.json",
            with(&configs.tokenizer, "eos_token", json!(eos)),
        ),
        (
            "generation_config.json",
            with(&configs.generation, "eos_token_id", json!(ids)),
        ),
    ];
    if configs.special.is_object() {
        replaced.push((
            "special_tokens_map.json",
            with(&configs.special, "eos_token", json!(eos)),
        ));
    }
    Ok(replaced)
}

/// A config with another value for a key, as JSON.
fn with(config: &Value, key: &str, value: Value) -> Vec<u8> {
    let mut config = config.as_object().cloned().unwrap_or_default();
    config.insert(key.to_owned(), value);
    Value::Object(config).to_string().into_bytes()
}

/// Length in bytes of the common beginning of two texts.
fn common(a: &str, b: &str) -> u32 {
    a.chars()
        .zip(b.chars())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len_utf8() as u32)
        .sum()
}

/// The tokenizer's own end token first, then the ids of the generation config, or else of the
/// model's config.
fn eos_ids(inner: &tokenizers::Tokenizer, configs: &TokenizerConfigs) -> Result<Vec<u32>> {
    static UNKNOWN: Once = Once::new();
    let mut ids: Vec<u32> = named_token(inner, &configs.tokenizer, "eos_token")?
        .into_iter()
        .collect();
    let Numbered { known, unknown } = Numbered::of(inner, configs, "eos_token_id")?;
    for id in known {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let mend = "(set `eos_token` in `tokenizer_config.json` \
                or `eos_token_id` in `generation_config.json`)";
    let Some(unknown) = unknown else {
        ensure!(!ids.is_empty(), "no end-of-sequence token is known {mend}");
        return Ok(ids);
    };
    ensure!(
        !ids.is_empty(),
        "no end-of-sequence token is known: {unknown} {mend}"
    );
    UNKNOWN.call_once(|| terminal::warn(&format!("{unknown}: no completion ends at it")));
    Ok(ids)
}

/// The padding id; `None` if the files name none, or one that the vocabulary lacks, which
/// transformers never reads either.
fn pad_id(inner: &tokenizers::Tokenizer, configs: &TokenizerConfigs) -> Result<Option<u32>> {
    if let Some(id) = named_token(inner, &configs.tokenizer, "pad_token")? {
        return Ok(Some(id));
    }
    Ok(Numbered::of(inner, configs, "pad_token_id")?
        .known
        .first()
        .copied())
}

/// Id of the token whose text (or `{"content": text}`) is under `key`.
pub(super) fn named_token(
    inner: &tokenizers::Tokenizer,
    config: &Value,
    key: &str,
) -> Result<Option<u32>> {
    let entry = &config[key];
    let Some(text) = text(entry) else {
        ensure!(
            entry.is_null(),
            "`{key}` in `tokenizer_config.json` is `{entry}`, expected the text of a token"
        );
        return Ok(None);
    };
    let id = inner.token_to_id(text);
    id.with_context(|| {
        format!("`{key}` `{text}` of `tokenizer_config.json` is not in the vocabulary")
    })
    .map(Some)
}

/// The ids under a key of a config.
#[derive(Default)]
struct Numbered {
    /// The ids that the tokenizer or the model has; the tokenizer's come first.
    known: Vec<u32>,
    /// A sentence about the first id that neither has. Some configs have `-1` for no token, or an
    /// id of another tokenizer.
    unknown: Option<String>,
}

impl Numbered {
    /// Ids under `key` of the generation config, else of the model's config.
    fn of(inner: &tokenizers::Tokenizer, configs: &TokenizerConfigs, key: &str) -> Result<Self> {
        let sources = [
            (&configs.generation, "generation_config.json"),
            (&configs.model, "config.json"),
        ];
        let entry = sources
            .into_iter()
            .map(|(config, file)| (&config[key], file))
            .find(|(entry, _)| !entry.is_null());
        let Some((entry, file)) = entry else {
            return Ok(Self::default());
        };
        // A model may have more tokens than its tokenizer, and draw them.
        let rows = configs.model["vocab_size"].as_u64().unwrap_or(0);
        let mut ids = Self::default();
        for value in entry
            .as_array()
            .map_or(std::slice::from_ref(entry), Vec::as_slice)
        {
            ensure!(
                value.is_i64() || value.is_u64(),
                "`{key}` in `{file}` is `{entry}`, expected a token id or a list of them"
            );
            match value
                .as_u64()
                .and_then(|id| u32::try_from(id).ok())
                .filter(|id| has(inner, *id) || u64::from(*id) < rows)
            {
                Some(id) => ids.known.push(id),
                None => {
                    let size = inner.get_vocab_size(true);
                    ids.unknown.get_or_insert_with(|| {
                        format!(
                            "`{key}` {value} of `{file}` is not in the vocabulary of {size} tokens"
                        )
                    });
                }
            }
        }
        // The first one ends training targets.
        ids.known.sort_by_key(|id| !has(inner, *id));
        Ok(ids)
    }
}

fn has(inner: &tokenizers::Tokenizer, id: u32) -> bool {
    inner.id_to_token(id).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Arithmetic;

    #[test]
    fn the_task_round_trips_one_token_per_character() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        assert_eq!(
            (
                tokenizer.vocab_size(),
                tokenizer.pad_id(),
                tokenizer.eos_ids()
            ),
            (15, 0, &[1][..])
        );
        assert_eq!(tokenizer.encode("09+= ").unwrap(), [2, 11, 12, 13, 14]);
        for cursor in 0..200 {
            let example = Arithmetic::named(Arithmetic::NAME, 0)
                .unwrap()
                .train(cursor);
            for text in [example.prompt.as_str(), example.target()] {
                let ids = tokenizer.encode(text).unwrap();
                assert_eq!(ids.len(), text.len());
                assert_eq!(tokenizer.decode(&ids).unwrap(), text);
            }
        }
    }

    #[test]
    fn decoding_leaves_special_tokens_out() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        assert_eq!(tokenizer.decode(&[3, 13, 5, 1, 0, 0]).unwrap(), "1=3");
        assert_eq!(tokenizer.decode(&[3, 999]).unwrap(), "1");
        assert_eq!(tokenizer.decode(&[]).unwrap(), "");
    }

    #[test]
    fn text_outside_the_vocabulary_is_an_error() {
        let tokenizer = Tokenizer::tiny_arithmetic().unwrap();
        assert!(
            tokenizer
                .encode("1+x=")
                .unwrap_err()
                .to_string()
                .starts_with("cannot encode `1+x=`")
        );
        assert!(tokenizer.encode("1\n2").is_err());
        assert!(
            tokenizer
                .encode("")
                .unwrap_err()
                .to_string()
                .contains("no tokens")
        );
    }

    fn with(tokenizer: Value, model: Value, generation: Value) -> Result<Tokenizer> {
        let configs = TokenizerConfigs {
            tokenizer,
            model,
            generation,
            ..Default::default()
        };
        Tokenizer::from_bytes(Tokenizer::TINY_ARITHMETIC[0].1, &configs)
    }

    #[test]
    fn end_and_padding_ids_come_from_any_of_the_configs() {
        let ids = |tokenizer: Result<Tokenizer>| {
            tokenizer
                .map(|found| (found.eos.clone(), found.pad))
                .unwrap()
        };
        assert_eq!(
            ids(with(Value::Null, json!({"eos_token_id": 5}), Value::Null)),
            (vec![5], 5)
        );
        let generation = json!({"eos_token_id": [7, 1], "pad_token_id": 4});
        assert_eq!(
            ids(with(
                Value::Null,
                json!({"eos_token_id": 5}),
                generation.clone()
            )),
            (vec![7, 1], 4)
        );
        let config = json!({"eos_token": {"content": "<eos>"}, "pad_token": null});
        assert_eq!(ids(with(config, Value::Null, generation)), (vec![1, 7], 4));
        // No token of the vocabulary: -1 as in old configs, and ids of another tokenizer.
        for pad in [json!(-1), json!(32000), json!(u64::MAX)] {
            let generation = json!({"eos_token_id": [15, 7, -1], "pad_token_id": pad});
            assert_eq!(
                ids(with(Value::Null, Value::Null, generation)),
                (vec![7], 7)
            );
        }
        let generation = json!({"eos_token_id": [16, 7]});
        assert_eq!(
            ids(with(Value::Null, json!({"vocab_size": 17}), generation)),
            (vec![7, 16], 7)
        );
    }

    #[test]
    fn end_and_padding_errors_name_key_value_and_file() {
        let error = |tokenizer: Result<Tokenizer>| tokenizer.unwrap_err().to_string();
        assert!(
            error(with(Value::Null, Value::Null, Value::Null))
                .starts_with("no end-of-sequence token is known")
        );
        assert_eq!(
            error(with(Value::Null, json!({"eos_token_id": 15}), Value::Null)),
            "no end-of-sequence token is known: `eos_token_id` 15 of `config.json` is not in the vocabulary of 15 tokens (set `eos_token` in `tokenizer_config.json` or `eos_token_id` in `generation_config.json`)"
        );
        assert_eq!(
            error(with(json!({"eos_token": "</s>"}), Value::Null, Value::Null)),
            "`eos_token` `</s>` of `tokenizer_config.json` is not in the vocabulary"
        );
        assert_eq!(
            error(with(
                Value::Null,
                Value::Null,
                json!({"eos_token_id": [1, "2"]})
            )),
            "`eos_token_id` in `generation_config.json` is `[1,\"2\"]`, expected a token id or a list of them"
        );
        let broken = Tokenizer::from_bytes(b"{", &TokenizerConfigs::default());
        assert!(error(broken).starts_with("`tokenizer.json` cannot be read"));
    }

    #[test]
    fn a_directory_works_without_its_config_files() {
        let directory = tempfile::tempdir().unwrap();
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).unwrap();
        let files = directory.path().to_path_buf();
        let error = || format!("{:#}", Tokenizer::open(&files).unwrap_err());
        assert!(error().contains("tokenizer.json"));
        write("tokenizer.json", Tokenizer::TINY_ARITHMETIC[0].1);
        assert!(error().contains("no end-of-sequence"));
        write("generation_config.json", b"{\"eos_token_id\": 1}");
        assert_eq!(Tokenizer::open(&files).unwrap().eos_ids(), [1]);
        write("config.json", b"{");
        assert!(error().contains("config.json` is not valid JSON"));
    }
}
