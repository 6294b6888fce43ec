//! `host generate` with an environment: a model's episodes, turn by turn.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use capo_loader::watchdog::Watchdog;
use capo_plugin::{Point, Purpose};
use host_data::{Example, Tokenizer};
use host_model::{Generation, Policy, SampledTokens};
use rand_chacha::ChaCha12Rng;
use serde_json::json;

use super::failure::Failure;
use super::generate::{Form, examples, generation};
use super::inference_args::GenerateArgs;
use super::output::{self, Lines};
use super::own_run;
use crate::config::{self, Config, Draft};
use crate::environment::{Conversation, Environment, Stage};
use crate::metrics::{self, Values};
use crate::stages::owners::Owners;
use crate::stages::recorder::Recorder;
use crate::stages::rollout::{Completed, Drawing, Playing, Prompts, complete};
use crate::terminal::say;

/// Width of the column that says who speaks, characters.
const SPEAKER: usize = 12;

/// A model in its environment.
struct Actor {
    policy: Policy,
    tokenizer: Tokenizer,
    environment: Environment,
    generation: Generation,
    config: Config,
    watchdog: Watchdog,
}

/// Plays an episode for each completion that is asked for.
pub(super) fn run(args: &GenerateArgs) -> Result<(), Failure> {
    args.check().map_err(Failure::Input)?;
    let (actor, examples) = open(args).map_err(Failure::Input)?;
    let out = args.out.as_deref().map(Lines::create).transpose();
    let out = out.map_err(Failure::Input)?;
    play_all(args, actor, &examples, out).map_err(Failure::Run)
}

fn play_all(
    args: &GenerateArgs,
    mut actor: Actor,
    examples: &[Example],
    mut out: Option<Lines<'_>>,
) -> Result<()> {
    let all = examples.len() * args.num_generations;
    let at_once = if out.is_some() { args.batch_size } else { 1 };
    for first in (0..all).step_by(at_once) {
        let mut asked = Vec::new();
        let mut indices = Vec::new();
        for i in first..all.min(first + at_once) {
            let prompt = i / args.num_generations;
            asked.push(&examples[prompt]);
            indices.push([prompt as u64, (i % args.num_generations) as u64]);
        }
        let (episodes, recorded) = actor.play(&asked, &indices, args.seed)?;
        match &mut out {
            Some(out) => actor.write(out, &episodes)?,
            None => show(&episodes, recorded, first > 0),
        }
    }
    out.map_or(Ok(()), |out| out.finish().map(drop))
}

fn open(args: &GenerateArgs) -> Result<(Actor, Vec<Example>)> {
    let registry = match args.config.as_deref().and_then(own_run::of_config) {
        Some(run) => own_run::open_plugins(run, &args.plugins, args.run)?,
        None => args
            .plugins
            .open_within(config::component_timeout(args.config.as_deref(), &args.set))?,
    };
    let (files, policy) = args.model.open()?;
    let positions = policy.config().max_position_embeddings;
    let sets = [args.settings(positions), args.set.clone()].concat();
    let draft = Draft::read(args.config.as_deref(), config::DEFAULT, &sets)?;
    let mut config = config::resolve(&registry, draft)?.config;
    if let Some(out) = &args.out {
        output::check_not_read(
            "--out",
            out,
            &args.model.model,
            config.paths().map(|(name, _)| name.as_str().into()),
        )?;
    }
    let files = config.data.amend(files)?;
    let tokenizer = config.data.tokenizer(&files)?;
    let watchdog = Watchdog::start(config.train.component_timeout, config.component_ids());
    let environment = Environment::open(&mut config, &registry, &files, &tokenizer, &watchdog)?;
    let environment = environment.context(
        "the config has no table `[environment]` (add one, or name one with `--environment`)",
    )?;
    let chat = config
        .data
        .chat(&files, host_data::Purpose::Measuring, &tokenizer)?;
    let form = Form {
        chat: chat.as_ref(),
        template: config.data.prompt_template.as_deref(),
    };
    let examples = examples(args, form)?;
    let length = config.rollout.max_completion_length;
    let rows = if args.out.is_some() {
        args.batch_size.min(examples.len() * args.num_generations)
    } else {
        1
    };
    policy.check_lengths("rollout", config.data.max_prompt_length, length, rows)?;
    let generation = Generation {
        max_completion_length: length,
        ..generation(args, &tokenizer)
    };
    generation.check()?;
    Ok((
        Actor {
            policy,
            tokenizer,
            environment,
            generation,
            config,
            watchdog,
        },
        examples,
    ))
}

impl Actor {
    /// Plays an episode of each example, and returns what the environment measured.
    fn play(
        &mut self,
        examples: &[&Example],
        indices: &[[u64; 2]],
        seed: u64,
    ) -> Result<(Completed, Values)> {
        let mut rngs: Vec<ChaCha12Rng> = indices
            .iter()
            .map(|index| host_rng::stream(seed, "generate", index))
            .collect();
        let stage = Stage {
            purpose: Purpose::EVALUATION,
            step: 0,
            max_steps: self.config.train.max_steps,
            seed,
            indices,
        };
        let mut owners = Owners::default();
        let mut warned = BTreeSet::new();
        let mut recorder = Recorder::new(Vec::new(), &mut owners, &mut warned, &self.watchdog);
        let prompts = Prompts {
            examples,
            max_length: self.config.data.max_prompt_length,
            stage: &stage,
        };
        let drawing = Drawing {
            generation: &self.generation,
            rngs: &mut rngs,
            capture: None,
        };
        let mut sink = recorder.at(Point::Environment);
        let playing = Playing {
            environment: &mut self.environment,
            sink: &mut sink,
        };
        let tokenizer = &self.tokenizer;
        let completed = complete(&self.policy, tokenizer, &prompts, drawing, Some(playing))?;
        drop(sink);
        Ok((completed, recorder.recorded.numbers))
    }

    /// Writes a line for each episode.
    fn write(&self, out: &mut Lines<'_>, episodes: &Completed) -> Result<()> {
        let rows = episodes
            .prompt_ids
            .iter()
            .zip(&episodes.completions)
            .zip(&episodes.texts);
        for (((prompt_ids, tokens), texts), conversation) in rows.zip(&episodes.conversations) {
            let SampledTokens {
                ids,
                added,
                truncated,
                ..
            } = tokens;
            let mut completion_mask = vec![1; ids.len()];
            for range in added {
                completion_mask[range.clone()].fill(0);
            }
            let row = json!({
                "prompt": texts.prompt,
                "prompt_ids": prompt_ids,
                "completion": texts.completion,
                "completion_ids": ids,
                "completion_mask": completion_mask,
                "truncated": truncated,
                "messages": conversation.messages,
                "environment_reward": conversation.reward,
            });
            out.write(&row.to_string())?;
        }
        Ok(())
    }
}

/// Prints what `speaker` says. Only the first line names the speaker, so that no text can look like
/// another's turn.
fn tell(speaker: &str, text: &str) {
    for (number, line) in text.split('\n').enumerate() {
        let speaker = if number == 0 { speaker } else { "" };
        say(format!("{speaker:<SPEAKER$}{line}").trim_end());
    }
}

/// Prints one episode: who says what, then the reward and the metrics. An empty line separates it
/// from `another`.
fn show(episodes: &Completed, recorded: Values, another: bool) {
    let Some(
        conversation @ Conversation {
            prompt,
            messages,
            reward,
            ..
        },
    ) = episodes.conversations.first()
    else {
        return;
    };
    if another {
        say("");
    }
    tell("prompt", prompt);
    for said in messages {
        match (said.role.as_str(), said.name.as_str()) {
            ("assistant", _) => tell("model", &said.content),
            ("tool", name) if !name.is_empty() => {
                tell("environment", &format!("{name}: {}", said.content))
            }
            _ => tell("environment", &said.content),
        }
    }
    tell("reward", &reward.to_string());
    let mut metrics: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, value) in metrics::episodes(std::slice::from_ref(conversation))
        .into_iter()
        .chain(recorded)
    {
        metrics.entry(name).or_default().push(value);
    }
    for (name, values) in metrics {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        say(&format!("{name:<width$}  {mean}", width = SPEAKER - 2));
    }
}
