//! A prompt with its answer and other data, and the row that it came from.

use std::sync::Arc;

use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};

use super::files::Unit;

/// One prompt with its answer and other data.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// The model's input as text; a conversation is formatted by the chat template.
    pub prompt: String,
    /// Final answer of a correct completion; empty only if the row has none, and no reward reads
    /// it.
    pub answer: String,
    /// A worked completion, including the answer, for supervised training.
    pub solution: Option<String>,
    /// Text to learn after the prompt, including its end, as a chat template formats it; `None`
    /// without a template.
    pub reply: Option<String>,
    /// Every column of the row except the prompt, as a JSON object.
    pub columns: String,
    /// The row that it was read from; `None` for a generated example.
    pub row: Option<Row>,
}

/// A row of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Path of the file, as it was given.
    pub file: Arc<str>,
    /// Word for the row in messages: line or row.
    pub(super) unit: Unit,
    /// Number of the row, from 1.
    pub number: usize,
}

impl Row {
    /// Beginning of the error message about a bad row: its place, and advice.
    pub(super) fn is_bad(&self) -> String {
        let Self { file, unit, number } = self;
        let mend = "(mend it, or set `data.on_bad_row` to `skip`)";
        match unit {
            Unit::Line => format!("bad row at line {number} of `{file}` {mend}"),
            Unit::Row => format!("bad row {number} of `{file}` {mend}"),
        }
    }
}

impl Example {
    /// The completion that supervised training should teach: the worked solution, or the bare
    /// answer if there is none.
    pub fn target(&self) -> &str {
        self.solution.as_deref().unwrap_or(&self.answer)
    }

    pub(super) fn digest(&self, hash: &mut Sha256) {
        for text in [
            &self.prompt,
            &self.answer,
            self.solution.as_deref().unwrap_or_default(),
            &self.columns,
        ] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
    }
}

/// Hash of rows with their formatted prompts; `None` for generated examples.
pub fn fingerprint(examples: &[Example]) -> Option<String> {
    examples.first()?.row.as_ref()?;
    let mut hash = Sha256::new();
    examples
        .iter()
        .for_each(|example| example.digest(&mut hash));
    Some(hex(hash))
}

pub(super) fn hex(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub(super) fn ensure_available(source: &str, available: usize, count: usize) -> Result<()> {
    ensure!(
        count <= available,
        "{source} has {available} held-out prompts, {count} were asked for \
         (set `num_prompts` of `[eval]` to at most {available})"
    );
    Ok(())
}
