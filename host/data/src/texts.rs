//! Converts whole texts to token ids with a model's `tokenizer.json`. No completion ends here, so
//! no end token is needed.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_system::NamedFiles;
use capo_system::contain::contain;
use tokenizers::{PostProcessor, TruncationDirection};

use super::quote::quote;
use super::tokenizer::named_token;
use super::tokenizer_configs::TokenizerConfigs;
use super::tokenizer_json;

/// A tokenizer of whole texts.
#[derive(Clone, Debug)]
pub struct Texts {
    inner: tokenizers::Tokenizer,
    special: bool,
    /// Largest number of tokens of a text, without added special tokens.
    room: usize,
    pad: Option<u32>,
}

impl Texts {
    /// Opens the tokenizer among the files of a model. If `special`, it adds the tokens with which
    /// its model begins and ends a text.
    ///
    /// Texts are cut to their first `longest` tokens.
    pub fn open(files: &dyn NamedFiles, longest: usize, special: bool) -> Result<Self> {
        let bytes = files.read("tokenizer.json")?;
        let configs = TokenizerConfigs::of(files)?;
        let place = format!("cannot use {}", files.describe("tokenizer.json"));
        let inner = tokenizer_json::read(&bytes, &configs).context(place.clone())?;
        let processor = inner.get_post_processor().filter(|_| special);
        let added = processor.map_or(0, |processor| processor.added_tokens(false));
        ensure!(
            longest > added,
            "texts of {longest} tokens have no room beside the {added} that the tokenizer adds \
             (raise `max_length`)"
        );
        let pad = pad_id(&inner, &configs).context(place)?;
        Ok(Self {
            inner,
            special,
            room: longest - added,
            pad,
        })
    }

    /// Token ids of a text, and true if it was cut; text that the vocabulary cannot express is an
    /// error.
    pub fn encode(&self, text: &str) -> Result<(Vec<u32>, bool)> {
        contain(|| self.encoded(text))
            .and_then(|encoded| encoded.map_err(|error| anyhow!("{error}")))
            .with_context(|| format!("cannot encode `{}`", quote(text)))
    }

    fn encoded(&self, text: &str) -> tokenizers::Result<(Vec<u32>, bool)> {
        let mut encoding = self.inner.encode_fast(text, false)?;
        let is_cut = encoding.len() > self.room;
        if is_cut {
            encoding.truncate(self.room, 0, TruncationDirection::Right);
        }
        if self.special {
            encoding = self.inner.post_process(encoding, None, true)?;
        }
        Ok((encoding.get_ids().to_vec(), is_cut))
    }

    /// The padding id: the padding token, else the end token, else the model's `pad_token_id`;
    /// `None` if none is named.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad
    }
}

/// The padding token, else the end token, else the model's `pad_token_id`.
fn pad_id(inner: &tokenizers::Tokenizer, configs: &TokenizerConfigs) -> Result<Option<u32>> {
    let pad = named_token(inner, &configs.tokenizer, "pad_token")?;
    let eos = named_token(inner, &configs.tokenizer, "eos_token")?;
    let numbered = configs.model["pad_token_id"].as_u64();
    let numbered = numbered.and_then(|id| u32::try_from(id).ok());
    Ok(pad.or(eos).or(numbered))
}

/// Refuses a reference with another vocabulary than the policy: both must have the same token at
/// every id, added tokens included.
pub fn same_tokens(policy: &dyn NamedFiles, reference: &dyn NamedFiles) -> Result<()> {
    let ours = vocabulary(policy)?;
    let theirs = vocabulary(reference)?;
    let ids = ours.keys().chain(theirs.keys());
    let Some(id) = ids.filter(|id| ours.get(id) != theirs.get(id)).min() else {
        return Ok(());
    };
    bail!(
        "{} has other tokens than {}: {id} is {} there and {} here \
         (use a reference with the policy's tokenizer)",
        reference.describe("tokenizer.json"),
        policy.describe("tokenizer.json"),
        shown(theirs.get(id)),
        shown(ours.get(id))
    )
}

fn shown(token: Option<&String>) -> String {
    token.map_or("no token".to_owned(), |token| format!("`{token}`"))
}

/// Every token of a model's tokenizer by its id, added ones included.
fn vocabulary(files: &dyn NamedFiles) -> Result<BTreeMap<u32, String>> {
    let tokenizer = tokenizer_json::read(
        &files.read("tokenizer.json")?,
        &TokenizerConfigs::of(files)?,
    );
    let tokenizer =
        tokenizer.with_context(|| format!("cannot use {}", files.describe("tokenizer.json")))?;
    Ok(tokenizer
        .get_vocab(true)
        .into_iter()
        .map(|(token, id)| (id, token))
        .collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Tokenizer;

    /// The embedded tokenizer's directory. If special tokens are requested, it puts texts between
    /// `<eos>` and `<eos>`.
    fn folder(config: Option<&Value>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut tokenizer: Value = serde_json::from_slice(Tokenizer::TINY_ARITHMETIC[0].1).unwrap();
        let special = json!({"SpecialToken": {"id": "<eos>", "type_id": 0}});
        let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [special, text("A"), special],
            "pair": [special, text("A"), special, text("B"), special],
            "special_tokens": {"<eos>": {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]}},
        });
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        if let Some(config) = config {
            std::fs::write(
                folder.path().join("tokenizer_config.json"),
                config.to_string(),
            )
            .unwrap();
        }
        folder
    }

    fn open(folder: &tempfile::TempDir, longest: usize, special: bool) -> Result<Texts> {
        Texts::open(&folder.path().to_owned(), longest, special)
    }

    #[test]
    fn texts_keep_their_beginning() {
        let folder = folder(None);
        let plain = open(&folder, 3, false).unwrap();
        let whole = plain.encode("1+1").unwrap();
        assert_eq!((whole.0.len(), whole.1), (3, false));
        assert_eq!(plain.encode("1+1=2").unwrap(), (whole.0.clone(), true));
        let special = open(&folder, 5, true).unwrap();
        assert_eq!(
            special.encode("1+1").unwrap(),
            ([&[1], &whole.0[..], &[1]].concat(), false)
        );
        assert_eq!(
            special.encode("1+1=2").unwrap(),
            ([&[1], &whole.0[..], &[1]].concat(), true)
        );
        let error = open(&folder, 2, true).err().unwrap().to_string();
        assert!(
            error.starts_with("texts of 2 tokens have no room beside the 2 that"),
            "{error}"
        );
        assert!(
            plain
                .encode("?")
                .unwrap_err()
                .to_string()
                .starts_with("cannot encode `?`")
        );
    }

    #[test]
    fn finds_the_padding_id() {
        let pad = |config: Option<&Value>, model: &Value| {
            let folder = folder(config);
            std::fs::write(folder.path().join("config.json"), model.to_string()).unwrap();
            open(&folder, 8, false).map(|texts| texts.pad_id())
        };
        let numbered = json!({"pad_token_id": 7});
        assert_eq!(pad(None, &json!({})).unwrap(), None);
        assert_eq!(pad(None, &numbered).unwrap(), Some(7));
        assert_eq!(
            pad(Some(&json!({"eos_token": "<eos>"})), &numbered).unwrap(),
            Some(1)
        );
        assert_eq!(
            pad(
                Some(&json!({"eos_token": "<eos>", "pad_token": "+"})),
                &numbered
            )
            .unwrap(),
            Some(12)
        );
        assert!(pad(Some(&json!({"pad_token": "<none>"})), &numbered).is_err());
    }
}
