//! `host generate`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use capo_system::NamedFiles;
use capo_system::files;
use host_data::{Chat, Example, Messages, PROMPT, Tokenizer, lenient};
use host_model::{Generation, ModelFiles, Policy, SamplingParams};
use rand_chacha::ChaCha12Rng;
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::inference_args::GenerateArgs;
use super::output::Lines;
use crate::run::{CONFIG_FILE, checkpoint};
use crate::terminal::{self, say, word};

struct Prompt {
    text: String,
    ids: Vec<u32>,
}

struct Row<'a> {
    prompt: &'a Prompt,
    rng: ChaCha12Rng,
}

/// Model, tokenizer and settings for completing prompts.
struct Writer {
    policy: Policy,
    tokenizer: Tokenizer,
    generation: Generation,
    /// True if prompts are messages; the terminal then shows only the answers.
    chat: bool,
}

/// Completes prompts, with output to the terminal or a file.
pub(super) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let (writer, prompts) = open(args).map_err(Failure::Input)?;
    let out = args.out.as_deref().map(Lines::create).transpose();
    let out = out.map_err(Failure::Input)?;
    let mut rows = Vec::new();
    for (number, prompt) in prompts.iter().enumerate() {
        for i in 0..args.num_generations {
            let rng = host_rng::stream(args.seed, "generate", &[number as u64, i as u64]);
            rows.push(Row { prompt, rng });
        }
    }
    let rows = rows.into_iter();
    match out {
        Some(out) => writer.write(rows, args.batch_size, out),
        None => rows
            .enumerate()
            .try_for_each(|(number, row)| writer.stream(row, number > 0)),
    }
    .map_err(Failure::Run)
}

fn open(args: &GenerateArgs) -> Result<(Writer, Vec<Prompt>)> {
    args.check()?;
    let (files, policy) = args.model.open()?;
    let (tokenizer, chat) = args.open_texts(files.clone())?;
    let generation = generation(args, &tokenizer);
    generation.check()?;
    let mut writer = Writer {
        policy,
        tokenizer,
        generation,
        chat: chat.is_some(),
    };
    let form = Form {
        chat: chat.as_ref(),
        template: None,
    };
    let mut prompts = Vec::new();
    for example in examples(args, form)? {
        prompts.push(writer.encode(example.prompt)?);
    }
    let lengths = prompts.iter().map(|prompt| prompt.ids.len());
    let longest = lengths.max().unwrap_or(0);
    let positions = writer.policy.config().max_position_embeddings;
    let left = positions.saturating_sub(longest);
    let length = args.max_completion_length.unwrap_or(left.clamp(1, 256));
    writer.generation.max_completion_length = length;
    let rows = if args.out.is_some() {
        let all = prompts.len().saturating_mul(args.num_generations);
        all.min(args.batch_size)
    } else {
        1
    };
    writer.policy.check_cache(rows, longest + length)?;
    for note in [suggestion(&files)?, environment_of(&args.model.model)] {
        note.iter().for_each(|note| terminal::note(note));
    }
    Ok((writer, prompts))
}

pub(super) fn generation(args: &GenerateArgs, tokenizer: &Tokenizer) -> Generation {
    Generation {
        sampling: SamplingParams {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
        },
        // Without a length, each prompt must leave room for a token.
        max_completion_length: args.max_completion_length.unwrap_or(1),
        max_turn_length: 0,
        eos_ids: tokenizer.eos_ids().to_vec(),
        logps: false,
        sampler_logps: false,
        top_k: 0,
        max_num_seqs: 0,
    }
}

/// The prompts as the model reads them: those of the command line, or of the file.
pub(super) fn examples(args: &GenerateArgs, form: Form<'_>) -> Result<Vec<Example>> {
    match &args.input {
        Some(path) => read(path, form),
        None => args
            .prompts
            .iter()
            .map(|text| Ok(asked(form.prompt(text)?, &Map::new())))
            .collect(),
    }
}

/// The form that prompts get.
#[derive(Clone, Copy)]
pub(super) struct Form<'a> {
    /// Formats a prompt as a message of the user; `None` for plain text.
    pub(super) chat: Option<&'a Chat>,
    /// A text around each prompt, with [`PROMPT`] in its place.
    pub(super) template: Option<&'a str>,
}

impl Form<'_> {
    fn prompt(self, text: &str) -> Result<String> {
        let text = self.template.map_or_else(
            || text.to_owned(),
            |template| template.replace(PROMPT, text),
        );
        self.chat.map_or_else(
            || Ok(text.clone()),
            |chat| chat.prompt(&Messages::user(&text)),
        )
    }
}

/// A prompt, with the columns of its row.
fn asked(prompt: String, row: &Map<String, Value>) -> Example {
    let mut columns = row.clone();
    columns.remove("prompt");
    let answer = match row.get("answer") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    Example {
        prompt,
        answer,
        solution: None,
        reply: None,
        columns: Value::Object(columns).to_string(),
        row: None,
    }
}

/// Reads the prompts of a file: the column `prompt` of a `.jsonl` or `.ndjson` file, the lines of
/// any other.
fn read(path: &Path, form: Form<'_>) -> Result<Vec<Example>> {
    let text = files::text(path).with_context(|| format!("cannot read `{}`", path.display()))?;
    let has_rows = path.extension().is_some_and(|ending| {
        ending.eq_ignore_ascii_case("jsonl") || ending.eq_ignore_ascii_case("ndjson")
    });
    let mut prompts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        let prompt = if has_rows {
            in_row(line, form)
        } else {
            form.prompt(line).map(|prompt| asked(prompt, &Map::new()))
        };
        prompts.push(
            prompt.with_context(|| format!("bad row at line {number} of `{}`", path.display()))?,
        );
    }
    ensure!(
        !prompts.is_empty(),
        "`{}` has no prompt (write one on each line)",
        path.display()
    );
    Ok(prompts)
}

/// The prompt in a row of JSON lines: a text, or a list of messages.
fn in_row(line: &str, form: Form<'_>) -> Result<Example> {
    let row = match lenient::parse(line.as_bytes()) {
        Ok(Value::Object(row)) => row,
        _ => Map::new(),
    };
    match row.get("prompt") {
        Some(Value::String(text)) => Ok(asked(form.prompt(text)?, &row)),
        Some(Value::Array(_)) => {
            let chat = form
                .chat
                .context("its prompt is a list, as messages are (give `--chat`)")?;
            ensure!(
                form.template.is_none(),
                "its prompt is a list of messages, which `data.prompt_template` cannot be put \
                 around (remove it)"
            );
            let messages = Messages::in_row(line.as_bytes(), "prompt")?;
            Ok(asked(chat.prompt(&messages)?, &row))
        }
        _ => bail!(
            "expected a JSON object with the text `prompt` (give a `.txt` file for a prompt on \
             each line)"
        ),
    }
}

/// A note about the sampling settings that the model's authors propose, which are not applied;
/// `None` if they propose none.
fn suggestion(files: &ModelFiles) -> Result<Option<String>> {
    const FILE: &str = "generation_config.json";
    let config = files.json(FILE)?;
    let keys = ["temperature", "top_k", "top_p", "repetition_penalty"];
    let said: Vec<String> = keys
        .iter()
        .filter_map(|key| {
            config
                .get(key)
                .filter(|value| value.is_number())
                .map(|value| format!("`{key}` {value}"))
        })
        .collect();
    Ok((!said.is_empty()).then(|| {
        format!(
            "note: {} proposes {}; only what is given here counts",
            files.describe(FILE),
            said.join(", ")
        )
    }))
}

/// A note about the environment of the run that the model is; `None` if it has none.
fn environment_of(model: &str) -> Option<String> {
    let path = checkpoint::run_of(Path::new(model))?.join(CONFIG_FILE);
    let settings = files::text(&path).ok()?.parse::<toml::Table>().ok()?;
    let id = settings.get("environment")?.get("use")?.as_str()?;
    Some(format!(
        "note: the run acts in `{id}`, and here it only completes texts (`--config {}` plays its \
         episodes)",
        word(&path)
    ))
}

impl Writer {
    fn encode(&self, text: String) -> Result<Prompt> {
        let ids = self.tokenizer.encode_prompt(&text)?;
        let config = self.policy.config();
        let vocab = config.vocab_size;
        let positions = config.max_position_embeddings;
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            bail!(
                "token id {id} is outside the model's vocabulary of {vocab} (use the model's \
                 tokenizer)"
            );
        }
        let length = ids.len();
        let completion = self.generation.max_completion_length;
        ensure!(
            length < positions,
            "a prompt has {length} tokens, and the model {positions} positions (shorten the prompt)"
        );
        ensure!(
            length.saturating_add(completion) <= positions,
            "a prompt has {length} tokens, which with `--max-completion-length` {completion} are \
             more than the model's {positions} positions (lower it, or shorten the prompt)"
        );
        Ok(Prompt { text, ids })
    }

    /// Writes prompt and completion to the terminal, piece by piece; in a chat, only the answer. An
    /// empty line separates it from `another`.
    fn stream(&self, Row { prompt, rng }: Row<'_>, another: bool) -> Result<()> {
        terminal::print(if another { "\n" } else { "" });
        if !self.chat {
            terminal::print(&prompt.text);
        }
        let mut piece = self.tokenizer.stream(&prompt.ids)?;
        self.policy
            .stream(&prompt.ids, &self.generation, rng, |id| {
                terminal::print(&piece(id)?.unwrap_or_default());
                Ok(())
            })?;
        say("");
        Ok(())
    }

    /// Writes a JSON line for each completion; `batch_size` completions are sampled at a time.
    fn write<'a>(
        &self,
        mut rows: impl Iterator<Item = Row<'a>>,
        batch_size: usize,
        mut out: Lines<'_>,
    ) -> Result<()> {
        loop {
            let (prompts, mut rngs): (Vec<&Prompt>, Vec<ChaCha12Rng>) = rows
                .by_ref()
                .take(batch_size)
                .map(|row| (row.prompt, row.rng))
                .unzip();
            if prompts.is_empty() {
                return out.finish().map(drop);
            }
            let ids: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.ids.clone()).collect();
            let completions = self.policy.generate(&ids, &self.generation, &mut rngs)?;
            for (prompt, completion) in prompts.into_iter().zip(completions) {
                let row = json!({
                    "prompt": prompt.text,
                    "prompt_ids": prompt.ids,
                    "completion": self.tokenizer.decode(&completion.ids)?,
                    "completion_ids": completion.ids,
                    "truncated": completion.truncated,
                });
                out.write(&row.to_string())?;
            }
        }
    }
}
