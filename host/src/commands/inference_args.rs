//! The flags of the commands that use a model without changing it: `host generate` and
//! `host score`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use host_data::{Chat, ChatOptions, Tokenizer, with_eos_token};
use host_model::device::{self, CPU, Dtype};
use host_model::{ModelFiles, Policy, embedded};

use super::output;
use super::own_run::RunTrustArgs;
use super::shared_args::PluginArgs;
use crate::run::checkpoint;

#[derive(Args)]
pub(super) struct ModelArgs {
    /// The model: a Hugging Face folder, a GGUF file, the id of a cached model, a run (its best
    /// checkpoint), another checkpoint, or `embedded:tiny-arithmetic`.
    #[arg(long, value_name = "DIR")]
    pub(super) model: String,
    /// Where the model computes: `cpu`, or `cuda:N` in a host built with CUDA.
    #[arg(long, value_name = "DEVICE", default_value = CPU)]
    device: String,
    /// Dtype in which the model computes.
    #[arg(long, value_name = "DTYPE", value_parser = dtypes(), default_value = "f32")]
    dtype: Dtype,
}

fn dtypes() -> impl TypedValueParser<Value = Dtype> {
    let help = [
        ("f32", "32-bit floats"),
        (
            "bf16",
            "16-bit bfloat16; weights, moments, logits and losses stay 32-bit floats",
        ),
    ];
    PossibleValuesParser::new(help.map(|(name, help)| PossibleValue::new(name).help(help)))
        .try_map(|name| serde_json::from_value(name.into()))
}

impl ModelArgs {
    /// The files of the model, and the model.
    pub(super) fn open(&self) -> Result<(ModelFiles, Policy)> {
        let files = embedded::model_files(&checkpoint::model_of(&self.model)?)?;
        device::tf32::choose(None, self.dtype);
        let device = device::open(&self.device)?;
        let policy = Policy::load(&files, &device)?.with_dtype(self.dtype.into());
        Ok((files, policy))
    }
}

#[derive(Args)]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Prompts to complete.
    #[arg(value_name = "PROMPT", required_unless_present = "input")]
    pub(super) prompts: Vec<String>,
    /// Formats each prompt as a message of the user, with the model's chat template. A prompt in a
    /// `.jsonl` file may also be a list of messages.
    #[arg(long)]
    pub(super) chat: bool,
    /// The system message, before all others.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(super) system: Option<String>,
    /// Makes the chat template ask for thoughts before the answer (`enable_thinking`).
    #[arg(long, requires = "chat", conflicts_with = "no_thinking")]
    pub(super) thinking: bool,
    /// Makes the chat template ask for an answer without thoughts.
    #[arg(long, requires = "chat")]
    pub(super) no_thinking: bool,
    /// Leaves out the special tokens that the tokenizer puts before a text.
    #[arg(long, conflicts_with = "chat")]
    pub(super) no_special_tokens: bool,
    /// A token that ends completions, besides those that the model's files name.
    #[arg(long, value_name = "TOKEN")]
    pub(super) eos_token: Option<String>,
    /// A file with a prompt on each line, or a `.jsonl` file with the column `prompt`.
    #[arg(long, value_name = "FILE", conflicts_with = "prompts")]
    pub(super) input: Option<PathBuf>,
    /// Writes JSON lines, which `host score` can read, to this file instead of text to the
    /// terminal; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
    /// Lets the model act in this environment, and prints the episodes turn by turn. `--set
    /// environment.KEY=VALUE` sets the environment's keys.
    #[arg(long, value_name = "ID", group = "acts")]
    pub(super) environment: Option<String>,
    /// Settings of a run as TOML. The model acts in their `[environment]`, with prompts in the form
    /// of their `[data]`; the flags decide how it samples. The `config.toml` in a run's folder also
    /// loads the run's plugins.
    #[arg(long, value_name = "FILE", group = "acts")]
    pub(super) config: Option<PathBuf>,
    /// Overrides one setting. Repeatable.
    #[arg(long, value_name = "SECTION.KEY=VALUE", requires = "acts")]
    pub(super) set: Vec<String>,
    #[command(flatten)]
    pub(super) plugins: PluginArgs,
    #[command(flatten)]
    pub(super) run: RunTrustArgs,
    /// Completions per prompt.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) num_generations: usize,
    /// Longest completion, tokens.
    /// [default: 256, or what the longest prompt leaves of the model's positions]
    #[arg(long, value_name = "N")]
    pub(super) max_completion_length: Option<usize>,
    /// Divides the logits; 0 takes the most likely token.
    #[arg(
        long,
        value_name = "T",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub(super) temperature: f64,
    /// Samples among this many of the most likely tokens; 0 is off.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(super) top_k: usize,
    /// Samples among the most likely tokens with this total probability; 1 is off.
    #[arg(
        long,
        value_name = "P",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    pub(super) top_p: f64,
    /// Seed of all random draws.
    #[arg(long, value_name = "SEED", default_value_t = 42)]
    pub(super) seed: u64,
    /// Number of completions that are sampled at a time with `--out`.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(super) batch_size: usize,
}

impl GenerateArgs {
    /// True if the model acts in an environment.
    pub(super) fn acts(&self) -> bool {
        self.environment.is_some() || self.config.is_some()
    }

    /// Refuses counts of 0, and an output that is also read.
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.batch_size > 0,
            "`--batch-size` is 0, expected at least 1"
        );
        ensure!(
            self.num_generations > 0,
            "`--num-generations` is 0, expected at least 1"
        );
        let read = self.input.iter().chain(&self.config).cloned();
        self.out.as_ref().map_or(Ok(()), |out| {
            output::check_not_read("--out", out, &self.model.model, read)
        })
    }

    /// The flags as settings, in the form of `--set`, for a model of this many positions.
    pub(super) fn settings(&self, positions: usize) -> Vec<String> {
        let length = self.max_completion_length.or(self
            .config
            .is_none()
            .then_some((positions / 2).clamp(1, 256)));
        let prompt = length
            .filter(|_| self.config.is_none())
            .map(|length| positions.saturating_sub(length));
        let said = [
            ("environment.use", self.environment.as_deref().map(quoted)),
            (
                "rollout.max_completion_length",
                length.map(|length| length.to_string()),
            ),
            (
                "data.max_prompt_length",
                prompt.map(|length| length.to_string()),
            ),
            ("data.format", self.chat.then(|| "chat".to_owned())),
            ("data.system_prompt", self.system.as_deref().map(quoted)),
            (
                "data.enable_thinking",
                (self.thinking || self.no_thinking).then(|| self.thinking.to_string()),
            ),
            ("data.eos_token", self.eos_token.as_deref().map(quoted)),
            (
                "data.add_special_tokens",
                self.no_special_tokens.then(|| "false".to_owned()),
            ),
        ];
        said.into_iter()
            .filter_map(|(key, value)| Some(format!("{key}={}", value?)))
            .collect()
    }

    /// The tokenizer, and the chat template that writes conversations; none where prompts are plain
    /// text.
    pub(super) fn open_texts(&self, files: ModelFiles) -> Result<(Tokenizer, Option<Chat>)> {
        let files = match &self.eos_token {
            Some(token) => {
                let replaced =
                    with_eos_token(&files, token).context("`--eos-token` cannot be used")?;
                files.with_contents(replaced)
            }
            None => files,
        };
        let tokenizer =
            Tokenizer::open(&files)?.with_special_tokens(!self.chat && !self.no_special_tokens)?;
        if !self.chat {
            return Ok((tokenizer, None));
        }
        let enable_thinking = (self.thinking || self.no_thinking).then_some(self.thinking);
        let options = ChatOptions {
            system_prompt: self.system.clone(),
            enable_thinking,
            ..ChatOptions::default()
        };
        let chat = Chat::open(&files, options)?;
        chat.warn_of_end(&tokenizer);
        Ok((tokenizer, Some(chat)))
    }
}

#[derive(Args)]
pub(super) struct ScoreArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// A file of JSON lines, a row on each; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub(super) input: PathBuf,
    /// Where the results go, in the order of the rows; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
    /// Leaves out the special tokens that the tokenizer puts before the text of a prompt.
    #[arg(long)]
    pub(super) no_special_tokens: bool,
    /// Largest number of tokens in a forward pass; a longer row has a pass of its own.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    pub(super) batch_tokens: usize,
}

/// The text as a string in TOML.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
