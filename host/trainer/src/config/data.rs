//! `[data]`: the prompts, and the form in which the model reads them.

use std::path::Path;

use anyhow::{Context, Result};
use host_data::{
    Chat, ChatOptions, Date, Demands, Filter, OnBadRow, Preset, Purpose, TEMPLATE_FILE,
    TOOL_USE_FILE, Tokenizer, Tool, with_eos_token,
};
use host_model::{ModelFiles, Policy};
use serde::{Deserialize, Serialize};

use super::rollout::LONGEST;
use super::setting::{Setting, Settings, settings};

/// Section `[data]`.
#[settings]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DataConfig {
    /// A file of JSON lines, parquet or arrow, a folder of such files, the id of a dataset in the
    /// Hub's cache, or `embedded:arithmetic`: [data](../docs/data.md).
    #[setting(default = "", unset = "required", trl, verl = ["data.train_files"])]
    #[setting(differs = "files, saved folders and the Hub's cache: [data.md](../docs/data.md)")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dataset_name: String,
    /// The dataset's configuration.
    #[setting(unset = "the only one", trl, needs = "rows")]
    pub dataset_config: Option<String>,
    /// The split of training prompts.
    #[setting(unset = "`train`", trl, needs = "rows")]
    pub dataset_train_split: Option<String>,
    /// The split of held-out prompts; without `eval_dataset_name` a split of `dataset_name`.
    #[setting(unset = "`test` of `eval_dataset_name`", trl)]
    pub dataset_test_split: Option<String>,
    /// The dataset of held-out prompts. The embedded task has its own.
    #[setting(verl = ["data.val_files"])]
    pub eval_dataset_name: Option<String>,
    /// Layout of a well-known dataset: [what a row says](../docs/data.md#what-a-row-says).
    #[setting(needs = "rows")]
    pub preset: Option<Preset>,
    /// A text around each prompt, with `{prompt}` in its place.
    #[setting(unset = "the preset's", needs = "rows")]
    pub prompt_template: Option<String>,
    /// The column with the prompt.
    #[setting(default = "prompt", verl = ["data.prompt_key"], needs = "columns")]
    pub prompt_column: String,
    /// The column with the expected answer.
    #[setting(default = "answer", needs = "columns")]
    pub answer_column: String,
    /// The column with the worked solution, for `host sft`. A row without one uses the answer.
    #[setting(default = "solution", needs = "columns")]
    pub solution_column: String,
    /// The longest prompt. A row with a longer one is a bad row.
    #[setting(default = 512, unit = "tokens", at_least = 1, at_most = LONGEST, trl)]
    #[setting(verl = ["data.max_prompt_length"])]
    #[setting(
        differs = "TRL has removed it. Longer prompts are an error, or left out and counted; none \
         is cut"
    )]
    pub max_prompt_length: usize,
    /// True leaves rows with longer prompts out instead.
    #[setting(default = false, verl = ["data.filter_overlong_prompts"], needs = "rows")]
    pub filter_overlong_prompts: bool,
    /// How to treat a row that cannot be used.
    #[setting(default = OnBadRow::Error)]
    pub on_bad_row: OnBadRow,
    /// True shuffles the training rows, anew in each pass.
    #[setting(default = true, trl, verl = ["data.shuffle"], needs = "rows")]
    pub shuffle_dataset: bool,
    /// Most training rows of each dataset, drawn by `train.seed`; 0 is all.
    #[setting(default = 0, verl = ["data.train_max_samples"], needs = "rows")]
    pub max_train_samples: usize,
    /// Form of prompts. With `chat` they are messages, formatted by the model's chat template; see
    /// [conversations](../docs/models.md#conversations).
    #[setting(default = Format::Text)]
    pub format: Format,
    /// With `text`: prompts begin with the special tokens that the tokenizer puts before a text
    /// ([where a prompt begins](../docs/data.md#where-a-prompt-begins)).
    #[setting(default = true)]
    pub add_special_tokens: bool,
    /// A token that ends completions, besides those of the model's files;
    /// [saved with the model](../docs/models.md#where-completions-end-and-how-they-are-sampled).
    #[setting(
        unset = "the tokenizer's",
        trl,
        differs = "of TRL's SFT; here for `host train` and `host eval` too"
    )]
    pub eos_token: Option<String>,
    /// With `chat`: the first message of conversations that have no system message.
    #[setting(needs = "chat")]
    pub system_prompt: Option<String>,
    /// With `chat`: the template's variable of this name. Qwen3's template asks for an answer
    /// without thoughts if it is `false`.
    #[setting(unset = "undefined", needs = "chat")]
    pub enable_thinking: Option<bool>,
    /// With `chat`: a Jinja file to use in place of the model's template. Checkpoints include it.
    #[setting(unset = "the model's", verl = ["model.custom_chat_template"], needs = "chat")]
    pub chat_template: Option<String>,
    /// With `chat`: today's date for the template, as `2026-07-31`. It is saved in a run's
    /// `config.toml`.
    #[setting(unset = "the day on which the run began", needs = "chat")]
    pub date: Option<Date>,
    /// Columns with the values that training rows must have: `{ level = ["Level 3", "Level 4"] }`.
    #[setting(default = Filter::default(), needs = "rows")]
    pub filter: Filter,
    /// Tables `[[data.datasets]]`, in place of `dataset_name`:
    /// [several datasets](../docs/data.md#several-datasets).
    #[setting(default = Vec::new(), trl)]
    pub datasets: Vec<SourceConfig>,
    /// True if a row needs no answer, because no reward of the run reads it.
    #[serde(skip)]
    pub answer_is_unread: bool,
    /// The tools of the run's environment, of which the chat template tells the model.
    #[serde(skip)]
    pub tools: Vec<Tool>,
}

/// Entry of `[[data.datasets]]`; absent keys have the values of `[data]`.
#[settings]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceConfig {
    /// A file or a folder of rows, or the id of a dataset in the Hub's cache.
    pub path: String,
    /// The dataset's configuration.
    #[setting(unset = "the only one")]
    pub name: Option<String>,
    /// The dataset's split.
    #[setting(unset = "`train`")]
    pub split: Option<String>,
    /// Sampling weight of this dataset, relative to the others. Either all datasets have a weight,
    /// or none.
    pub weight: Option<f64>,
    /// Layout of its rows.
    #[setting(unset = "as in `[data]`")]
    pub preset: Option<Preset>,
    /// Text around each prompt, with `{prompt}` in the prompt's place.
    #[setting(unset = "as in `[data]`")]
    pub prompt_template: Option<String>,
    /// The column with the prompt.
    #[setting(unset = "as in `[data]`", needs = "columns")]
    pub prompt_column: Option<String>,
    /// The column with the expected answer.
    #[setting(unset = "as in `[data]`", needs = "columns")]
    pub answer_column: Option<String>,
    /// The column with the worked solution.
    #[setting(unset = "as in `[data]`", needs = "columns")]
    pub solution_column: Option<String>,
    /// Columns with the values that training rows must have.
    #[setting(unset = "as in `[data]`")]
    pub filter: Option<Filter>,
}

/// Form of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Plain text, which is the model's input unchanged.
    Text,
    Chat,
}

impl DataConfig {
    /// Requirements on rows that are used for `purpose`; `chat` formats the prompts that are
    /// conversations.
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

    /// Replaces the chat template and the end token among the files of a model, if the settings
    /// name them.
    pub fn amend(&self, mut files: ModelFiles) -> Result<ModelFiles> {
        if let Some(path) = &self.chat_template {
            // The model's own template for tools would else come before it.
            let replaced = [TEMPLATE_FILE, TOOL_USE_FILE].into_iter();
            for name in replaced
                .filter(|name| *name == TEMPLATE_FILE || files.contains(name))
                .collect::<Vec<_>>()
            {
                files = files
                    .with(name, Path::new(path))
                    .context("`data.chat_template` cannot be used")?;
            }
        }
        match &self.eos_token {
            Some(token) => {
                let replaced =
                    with_eos_token(&files, token).context("`data.eos_token` cannot be used")?;
                Ok(files.with_contents(replaced))
            }
            None => Ok(files),
        }
    }

    /// The tokenizer among the files of a model, for prompts in this form.
    pub fn tokenizer(&self, files: &ModelFiles) -> Result<Tokenizer> {
        Tokenizer::open(files)?
            .with_special_tokens(self.format == Format::Text && self.add_special_tokens)
    }

    /// The chat template that formats conversations; `None` if prompts are plain text. Warns if it
    /// ends turns with no end of `tokenizer`.
    pub fn chat(
        &self,
        files: &ModelFiles,
        purpose: Purpose,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Chat>> {
        if self.format == Format::Text {
            return Ok(None);
        }
        let options = ChatOptions {
            system_prompt: self.system_prompt.clone(),
            enable_thinking: self.enable_thinking,
            date: self.date.unwrap_or_default(),
            teaches: purpose == Purpose::Teaching,
            tools: self.tools.clone(),
        };
        let chat = Chat::open(files, options)?;
        chat.warn_of_end(tokenizer);
        Ok(Some(chat))
    }
}
