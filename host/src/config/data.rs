//! `[data]`: which prompts there are, and how the model reads them.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::omission::{is_default, may_be_left_out};
use super::source::SourceConfig;
use crate::data::{Chat, ChatOptions, Date, Demands, Filter, OnBadRow, Preset, Purpose, TEMPLATE_FILE, Tokenizer};
use crate::model::{ModelFiles, Policy};

/// `[data]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// A file or a folder of rows, the id of a dataset in the Hub's cache, or `embedded:arithmetic`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dataset_name: String,
    /// Its configuration, where it has several.
    pub dataset_config: Option<String>,
    /// Its split of training prompts; `train` where it is not said.
    pub dataset_train_split: Option<String>,
    /// Its split of held-out prompts; `test` of `eval_dataset_name` where it is not said.
    pub dataset_test_split: Option<String>,
    /// A dataset of held-out prompts; not used with `embedded:arithmetic`, which has its own.
    pub eval_dataset_name: Option<String>,
    /// Layout of a well-known dataset, whose rows it gives the columns `prompt`, `answer` and `solution`.
    pub preset: Option<Preset>,
    /// A text around each prompt, `{prompt}` in its place; the preset's where it is not said.
    pub prompt_template: Option<String>,
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
    /// True if rows with longer prompts are left out in place of it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filter_overlong_prompts: bool,
    /// Treatment of a row that cannot be used: `error` or `skip`.
    #[serde(default)]
    pub on_bad_row: OnBadRow,
    /// True if training rows are put in a random order, another in each epoch.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub shuffle_dataset: bool,
    /// Most training rows of each dataset, drawn by the seed; 0 is all.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_train_samples: usize,
    /// Form of prompts: `text`, or `chat`, a conversation or a single message of it, which the model's chat template writes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub format: Format,
    /// The first message of conversations that have no system message.
    pub system_prompt: Option<String>,
    /// Value of `enable_thinking` for the chat template; the template does not see the variable where this is not set.
    pub enable_thinking: Option<bool>,
    /// A file with the chat template to use in place of the model's own.
    pub chat_template: Option<String>,
    /// The day that the chat template takes for today; the day on which the run began where it is not said.
    pub date: Option<Date>,
    /// Training rows are used where these columns have one of these values.
    #[serde(default, skip_serializing_if = "is_default")]
    pub filter: Filter,
    /// Several datasets in place of one, drawn from by their weights where they have some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<SourceConfig>,
}

/// Form of prompts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// The model's input as it is.
    #[default]
    Text,
    /// Conversations.
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
    /// Requirements on rows that are used for `purpose`; `chat` writes those prompts that are conversations.
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

    /// The files of a model, with the chat template that is named here in place of its own.
    pub fn amend(&self, files: ModelFiles) -> Result<ModelFiles> {
        match &self.chat_template {
            Some(path) => files.with(TEMPLATE_FILE, Path::new(path)).context("`data.chat_template` cannot be used"),
            None => Ok(files),
        }
    }

    /// The chat template that writes conversations; none where prompts are plain text.
    pub fn chat(&self, files: &ModelFiles, purpose: Purpose) -> Result<Option<Chat>> {
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
