//! `[data]`: which prompts there are, and how the model reads them.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::is_default;
use crate::data::{Chat, ChatOptions, Columns, Dataset, Date, Demands, OnBadRow, Purpose, TEMPLATE_FILE, Tokenizer};
use crate::model::{ModelFiles, Policy};

/// `[data]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// A JSONL file, or `embedded:arithmetic`.
    pub dataset_name: String,
    /// A JSONL file of held-out prompts; not used with `embedded:arithmetic`, which has its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_dataset_name: Option<String>,
    /// Column of the prompt text.
    #[serde(default = "prompt_column")]
    pub prompt_column: String,
    /// Column of the expected answer.
    #[serde(default = "answer_column")]
    pub answer_column: String,
    /// Column of the worked solution, for `host sft`; the answer stands in where a row has none.
    #[serde(default = "solution_column")]
    pub solution_column: String,
    /// Longer prompts are bad rows, tokens.
    #[serde(default = "max_prompt_length")]
    pub max_prompt_length: usize,
    /// What is done about a row that cannot be used: `error` or `skip`.
    #[serde(default)]
    pub on_bad_row: OnBadRow,
    /// What prompts are: `text`, or `chat`, a conversation or one message of it, which the model's chat template writes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub format: Format,
    /// The first message of conversations that have no system message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// What the chat template knows as `enable_thinking`; it knows nothing of it where this is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_thinking: Option<bool>,
    /// A file with the chat template to use in place of the model's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// The day that the chat template takes for today; the day on which the run began where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<Date>,
}

/// What prompts are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The model's input as it is.
    #[default]
    Text,
    /// Conversations.
    Chat,
}

pub(super) fn prompt_column() -> String {
    "prompt".into()
}

pub(super) fn answer_column() -> String {
    "answer".into()
}

pub(super) fn solution_column() -> String {
    "solution".into()
}

fn max_prompt_length() -> usize {
    512
}

impl DataConfig {
    /// Opens the dataset for `purpose`, its training order drawn from `seed`; its rows are checked against tokenizer and model.
    ///
    /// # Errors
    ///
    /// When there is no such dataset, or a row of it cannot be used.
    pub fn open(
        &self,
        seed: u64,
        purpose: Purpose,
        files: &ModelFiles,
        tokenizer: &Tokenizer,
        policy: &Policy,
    ) -> Result<Dataset> {
        let columns = Columns {
            prompt: self.prompt_column.clone(),
            answer: self.answer_column.clone(),
            solution: self.solution_column.clone(),
        };
        let chat = self.chat(files, purpose)?;
        let demands = Demands {
            tokenizer,
            chat: chat.as_ref(),
            vocab_size: policy.config().vocab_size,
            max_prompt_length: self.max_prompt_length,
            on_bad_row: self.on_bad_row,
            purpose,
        };
        Dataset::open(&self.dataset_name, self.eval_dataset_name.as_deref().map(Path::new), &columns, seed, &demands)
    }

    /// The files of a model, with the chat template that is named here in place of its own.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn amend(&self, files: ModelFiles) -> Result<ModelFiles> {
        match &self.chat_template {
            Some(path) => files.with(TEMPLATE_FILE, Path::new(path)).context("`data.chat_template` cannot be used"),
            None => Ok(files),
        }
    }

    /// What writes conversations; none where prompts are texts.
    fn chat(&self, files: &ModelFiles, purpose: Purpose) -> Result<Option<Chat>> {
        if self.format == Format::Text {
            return Ok(None);
        }
        let options = ChatOptions {
            system_prompt: self.system_prompt.clone(),
            enable_thinking: self.enable_thinking,
            date: self.date.unwrap_or_default(),
            teaches: purpose == Purpose::Teaching,
        };
        Chat::open(files, options).map(Some)
    }
}
