//! Reads prompts with their completions from a JSONL file, as ids or as text, one row after
//! another.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use capo_system::NamedFiles;
use capo_system::files;
use serde_json::{Map, Value};

use super::Tokenizer;
use super::lenient::{self, BYTE_ORDER};

/// Longest line in bytes: longer than any real row, and smaller than any machine's memory.
const LONGEST_LINE: u64 = 64 << 20;

/// A prompt with its completion, as token ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// Token ids of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// Token ids of the completion; may be empty.
    pub completion: Vec<u32>,
}

/// Limits of a model on its input.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of tokens in its vocabulary.
    pub vocab_size: usize,
    /// Largest number of tokens in a sequence.
    pub positions: usize,
}

/// The rows of a file, read on demand and checked against a model.
///
/// A row is a JSON object with `prompt_ids` or `prompt`, and `completion_ids` or `completion`; ids
/// take precedence. Prompt and completion text are encoded separately, and only a prompt may begin
/// with special tokens. Empty lines are skipped.
pub struct Pairs<'a> {
    name: String,
    lines: Box<dyn BufRead>,
    line: usize,
    limits: Limits,
    model_files: &'a dyn NamedFiles,
    /// Opened for the first text: ids need no tokenizer.
    tokenizer: Option<Tokenizer>,
    add_special_tokens: bool,
}

impl<'a> Pairs<'a> {
    /// Opens the file at `path`, or standard input for `-`, for the model in `model_files`. With
    /// `add_special_tokens`, the text of a prompt begins with those of the tokenizer.
    pub fn open(
        path: &Path,
        model_files: &'a dyn NamedFiles,
        limits: Limits,
        add_special_tokens: bool,
    ) -> Result<Self> {
        let (name, lines): (_, Box<dyn BufRead>) = if path == Path::new("-") {
            let lines = BufReader::new(io::stdin());
            ("standard input".to_owned(), Box::new(lines))
        } else {
            let name = format!("`{}`", path.display());
            let lines = open(path).with_context(|| format!("cannot read {name}"))?;
            (name, Box::new(lines))
        };
        Ok(Self {
            name,
            lines,
            line: 0,
            limits,
            model_files,
            tokenizer: None,
            add_special_tokens,
        })
    }

    /// Returns the next row; an error names its line.
    fn read(&mut self) -> Result<Option<Pair>> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let read = self
                .lines
                .by_ref()
                .take(LONGEST_LINE)
                .read_until(b'\n', &mut bytes);
            if read.with_context(|| format!("cannot read {}", self.name))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if !bytes.trim_ascii().is_empty() {
                let place = format!("bad row at line {} of {}", self.line, self.name);
                return self.pair(&bytes).context(place).map(Some);
            }
        }
    }

    fn pair(&mut self, line: &[u8]) -> Result<Pair> {
        ensure!(
            (line.len() as u64) < LONGEST_LINE,
            "it has {LONGEST_LINE} bytes or more (is it JSONL, with a row on each line?)"
        );
        let row: Map<String, Value> =
            match lenient::parse(line.strip_prefix(BYTE_ORDER).unwrap_or(line)) {
                Ok(Value::Object(row)) => row,
                Ok(_) => bail!("expected a JSON object"),
                Err(error) => return Err(anyhow!("not valid JSON: {error}")),
            };
        let prompt = self.ids(&row, "prompt_ids", "prompt")?;
        let completion = self.ids(&row, "completion_ids", "completion")?;
        ensure!(
            !prompt.is_empty(),
            "the prompt has no token (give at least one)"
        );
        let length = prompt.len() + completion.len();
        let positions = self.limits.positions;
        ensure!(
            length <= positions,
            "it has {length} tokens, the model has {positions} positions (shorten it)"
        );
        let vocab = self.limits.vocab_size;
        if let Some(id) = prompt
            .iter()
            .chain(&completion)
            .find(|id| **id as usize >= vocab)
        {
            bail!(
                "token id {id} is outside the model's vocabulary of {vocab} \
                 (use the model's tokenizer)"
            );
        }
        Ok(Pair { prompt, completion })
    }

    /// Returns the ids under the key `ids`, else the ids of the text under the key `text`.
    fn ids(&mut self, row: &Map<String, Value>, ids: &str, text: &str) -> Result<Vec<u32>> {
        match (row.get(ids), row.get(text)) {
            (Some(list), _) => {
                let all: Option<Vec<u32>> = list
                    .as_array()
                    .and_then(|list| list.iter().map(id).collect());
                all.with_context(|| format!("`{ids}` is not a list of token ids"))
            }
            (None, Some(Value::String(said))) if said.is_empty() => Ok(if text == "prompt" {
                self.tokenizer()?.begin().to_vec()
            } else {
                Vec::new()
            }),
            (None, Some(Value::String(said))) if text == "prompt" => {
                self.tokenizer()?.encode_prompt(said)
            }
            (None, Some(Value::String(said))) => self.tokenizer()?.encode_after(said),
            (None, Some(_)) => {
                bail!("`{text}` is not text (write it as one string, or give `{ids}`)")
            }
            (None, None) => bail!("neither `{ids}` nor `{text}` is there (give one of them)"),
        }
    }

    fn tokenizer(&mut self) -> Result<&Tokenizer> {
        Ok(match &mut self.tokenizer {
            Some(tokenizer) => tokenizer,
            none => {
                let tokenizer = Tokenizer::open(self.model_files)
                    .context("text needs the model's tokenizer (or give ids)")?;
                none.insert(tokenizer.with_special_tokens(self.add_special_tokens)?)
            }
        })
    }
}

fn open(path: &Path) -> Result<BufReader<File>> {
    files::size(path)?;
    Ok(BufReader::new(File::open(path)?))
}

fn id(id: &Value) -> Option<u32> {
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}

impl Iterator for Pairs<'_> {
    type Item = Result<Pair>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the rows of `text`, up to the first bad one.
    fn read(text: &str) -> Result<Vec<Pair>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.jsonl");
        std::fs::write(&path, text).unwrap();
        for (name, bytes) in Tokenizer::TINY_ARITHMETIC {
            std::fs::write(directory.path().join(name), bytes).unwrap();
        }
        let (files, limits) = (
            directory.path().to_owned(),
            Limits {
                vocab_size: 15,
                positions: 64,
            },
        );
        let pairs = Pairs::open(&path, &files, limits, true)
            .unwrap()
            .collect::<Result<Vec<_>>>();
        pairs.map_err(|error| {
            anyhow!(
                "{}",
                format!("{error:#}").replace(&directory.path().display().to_string(), "DIR")
            )
        })
    }

    fn pair(prompt: &[u32], completion: &[u32]) -> Pair {
        Pair {
            prompt: prompt.to_vec(),
            completion: completion.to_vec(),
        }
    }

    #[test]
    fn rows_are_ids_or_text() {
        let text = "{\"prompt_ids\": [3, 12], \"completion_ids\": [4]}\n\n{\"prompt\": \"1+\", \"completion\": \"2\", \"answer\": 3}\r\n\
            {\"prompt\": \"1\", \"completion_ids\": []}\n{\"prompt\": \"1\", \"completion\": \"2\", \"completion_ids\": [14, 1]}";
        let expected = [
            pair(&[3, 12], &[4]),
            pair(&[3, 12], &[4]),
            pair(&[3], &[]),
            pair(&[3], &[14, 1]),
        ];
        assert_eq!(read(text).unwrap(), expected);
    }

    #[test]
    fn errors_name_the_line_of_a_bad_row() {
        let good = "{\"prompt\": \"1\", \"completion\": \"2\"}\n\n";
        let cases = include_str!("../tests/data/rows/bad-pairs.jsonl").lines();
        for (row, expected) in
            cases.map(|case| serde_json::from_str::<(String, String)>(case).unwrap())
        {
            let error = read(&format!("{good}{row}")).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("bad row at line 3 of `DIR/rows.jsonl`: {expected}")
            );
        }
    }
}
