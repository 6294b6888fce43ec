//! `[data]`: the prompts, and the form in which the model reads them.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::omission::{is_default, may_be_left_out};
use crate::data::{
    Chat, ChatOptions, Date, Demands, Filter, OnBadRow, Preset, Purpose, TEMPLATE_FILE, Tokenizer, with_eos_token,
};
use crate::model::{ModelFiles, Policy};

/// Section `[data]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// A file or a folder of rows, the id of a dataset in the Hub's cache, or `embedded:arithmetic`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dataset_name: String,
    /// The dataset's configuration, if it has several.
    pub dataset_config: Option<String>,
    /// Split of the training prompts; default `train`.
    pub dataset_train_split: Option<String>,
    /// Split of the held-out prompts; default `test` of `eval_dataset_name`.
    pub dataset_test_split: Option<String>,
    /// Dataset of held-out prompts; not used with `embedded:arithmetic`, which has its own.
    pub eval_dataset_name: Option<String>,
    /// Layout of a well-known dataset; its rows get the columns `prompt`, `answer` and `solution`.
    pub preset: Option<Preset>,
    /// Text around each prompt, with `{prompt}` in the prompt's place; default is the preset's template.
    pub prompt_template: Option<String>,
    /// Name of the column with the prompt text.
    #[serde(default = "prompt_column")]
    pub prompt_column: String,
    /// Name of the column with the expected answer.
    #[serde(default = "answer_column")]
    pub answer_column: String,
    /// Name of the column with the worked solution, for `host sft`; a row without one uses the answer.
    #[serde(default = "solution_column")]
    pub solution_column: String,
    /// Longest prompt in tokens; a row with a longer prompt is a bad row.
    #[serde(default = "max_prompt_length")]
    pub max_prompt_length: usize,
    /// True if rows with longer prompts are left out instead.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filter_overlong_prompts: bool,
    /// Treatment of a row that cannot be used: `error` or `skip`.
    #[serde(default)]
    pub on_bad_row: OnBadRow,
    /// True if training rows are put in random order, a new one in each epoch.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub shuffle_dataset: bool,
    /// Largest number of training rows of each dataset, drawn by the seed; 0 is all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_train_samples: usize,
    /// Form of prompts. `text` is plain text. `chat` is a conversation or one message, which the model's chat template formats.
    #[serde(default, skip_serializing_if = "is_default")]
    pub format: Format,
    /// True if prompts of plain text begin with the special tokens that the tokenizer puts before a text.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub add_special_tokens: bool,
    /// Token that ends completions, besides those that the model's files name; default is the tokenizer's own.
    pub eos_token: Option<String>,
    /// System prompt: first message of conversations that have no system message.
    pub system_prompt: Option<String>,
    /// Value of `enable_thinking` for the chat template; `None` leaves the variable undefined.
    pub enable_thinking: Option<bool>,
    /// File with a chat template that replaces the model's own.
    pub chat_template: Option<String>,
    /// Date that the chat template takes as today; default is the day on which the run began.
    pub date: Option<Date>,
    /// Allowed values of columns; only training rows with these values are used.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filter: Filter,
    /// Several datasets in place of one; prompts are drawn by the datasets' weights if they have any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<SourceConfig>,
    /// True if a row needs no answer, because no reward of the run reads it.
    #[serde(skip)]
    pub answer_is_unread: bool,
}

/// Entry of `[[data.datasets]]`; absent keys have the values of `[data]`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceConfig {
    /// A file or a folder of rows, or the id of a dataset in the Hub's cache.
    pub path: String,
    /// The dataset's configuration, if it has several.
    pub name: Option<String>,
    /// The dataset's split; default `train`.
    pub split: Option<String>,
    /// Sampling weight of this dataset, relative to the others; either all datasets have a weight, or none.
    pub weight: Option<f64>,
    pub preset: Option<Preset>,
    pub prompt_template: Option<String>,
    pub prompt_column: Option<String>,
    pub answer_column: Option<String>,
    pub solution_column: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub filter: Filter,
}

/// Form of prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Plain text, which is the model's input unchanged.
    #[default]
    Text,
    Chat,
}

fn prompt_column() -> String {
    "prompt".into()
}

fn answer_column() -> String {
    "answer".into()
}

fn solution_column() -> String {
    "solution".into()
}

fn max_prompt_length() -> usize {
    512
}

fn yes() -> bool {
    true
}

fn is_yes(value: &bool) -> bool {
    may_be_left_out(*value)
}

impl DataConfig {
    /// Requirements on rows that are used for `purpose`; `chat` formats the prompts that are conversations.
    pub fn demands<'a>(
        &self,
        chat: Option<&'a Chat>,
        purpose: Purpose,
        tokenizer: &'a Tokenizer,
        policy: &Policy,
    ) -> Demands<'a> {
        Demands {
            tokenizer,
            chat,
            vocab_size: policy.config().vocab_size,
            max_prompt_length: self.max_prompt_length,
            positions: policy.config().max_position_embeddings,
            filter_overlong_prompts: self.filter_overlong_prompts,
            on_bad_row: self.on_bad_row,
            purpose,
        }
    }

    /// Replaces the chat template and the end token among the files of a model, if the settings name them.
    pub fn amend(&self, mut files: ModelFiles) -> Result<ModelFiles> {
        if let Some(path) = &self.chat_template {
            files = files.with(TEMPLATE_FILE, Path::new(path)).context("`data.chat_template` cannot be used")?;
        }
        match &self.eos_token {
            Some(token) => {
                let replaced = with_eos_token(&files, token).context("`data.eos_token` cannot be used")?;
                Ok(files.with_contents(replaced))
            }
            None => Ok(files),
        }
    }

    /// The tokenizer among the files of a model, for prompts in this form.
    pub fn tokenizer(&self, files: &ModelFiles) -> Result<Tokenizer> {
        Tokenizer::open(files)?.with_special_tokens(self.format == Format::Text && self.add_special_tokens)
    }

    /// The chat template that formats conversations; `None` if prompts are plain text. Warns if it ends turns with no end of `tokenizer`.
    pub fn chat(&self, files: &ModelFiles, purpose: Purpose, tokenizer: &Tokenizer) -> Result<Option<Chat>> {
        if self.format == Format::Text {
            return Ok(None);
        }
        let options = ChatOptions {
            system_prompt: self.system_prompt.clone(),
            enable_thinking: self.enable_thinking,
            date: self.date.unwrap_or_default(),
            teaches: purpose == Purpose::Teaching,
        };
        let chat = Chat::open(files, options)?;
        chat.warn_of_end(tokenizer);
        Ok(Some(chat))
    }
}
