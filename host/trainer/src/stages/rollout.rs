//! Stage 1: samples a rollout, which is completions of the next prompts with their rewards.

use std::ops::Range;

use anyhow::{Context, Result};
use capo_plugin::{AgedContext, Completion, Point, Purpose, Sink};
use host_data::{Dataset, Example, Tokenizer};
use host_model::{
    Capture, Generation, Policy, SampledTokens, SamplingParams, Sequences, TokenOutputs,
};
use rand_chacha::rand_core::Rng;

use crate::config::Config;
use crate::environment::{Conversation, Environment, Stage};
use crate::reward::{Rewards, Scored};
use crate::stages::batch::SampledBatch;
use crate::stages::context::{self, Group, SampledText};
use crate::stages::dynamic_sampling::{self, Filtered};
use crate::stages::logps::ComponentInputs;
use crate::stages::recorder::{Recorded, Recorder};

/// Settings and components with which a policy samples a rollout.
pub struct Sampler<'a, 'r> {
    /// The run's settings.
    pub config: &'a Config,
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Inputs for which the run's components ask.
    pub inputs: ComponentInputs,
    /// True if the advantage estimator sees each reward, and not only their sum.
    pub each_reward: bool,
    /// Outputs to collect in the sampler's passes, for a step that uses the whole rollout. If
    /// `None`, that step runs its own forward pass.
    pub capture: Option<Capture>,
    /// Converts text to token ids and back.
    pub tokenizer: &'a Tokenizer,
    /// The reward components, with their weights.
    pub rewards: &'a mut Rewards,
    /// The environment; `None` if a completion is one turn.
    pub environment: Option<&'a mut Environment>,
    /// Collects the reports of rewards and environment.
    pub recorder: &'a mut Recorder<'r>,
}

/// A rollout: its completions, and the record of how they were sampled.
#[derive(Debug)]
pub struct SampledRollout {
    /// All completions, without the policy's log-probabilities.
    pub batch: SampledBatch,
    /// Outputs of the sampler's own passes, until a step takes them; `None` if they were not asked
    /// for.
    pub outputs: Option<TokenOutputs>,
    pub record: RolloutRecord,
}

/// The record of a rollout. Metrics, the completions' log and the run's progress observe it.
#[derive(Debug, Default)]
pub struct RolloutRecord {
    /// Number of tokens that the model drew, for each completion.
    pub lengths: Vec<usize>,
    /// `[B]`: 1 where the length limit cut the completion off.
    pub truncated: Vec<u8>,
    /// Number of completions of each prompt.
    pub group_size: usize,
    /// Rewards, in total and per function.
    pub rewards: Scored,
    /// Prompt, completion text and answer of each completion.
    pub texts: Vec<SampledText>,
    /// The episode of each completion; empty without an environment.
    pub conversations: Vec<Conversation>,
    /// Number of prompt and completion tokens, including those of dropped groups.
    pub tokens: u64,
    /// Number of prompts used, including those of dropped groups.
    pub prompts: u64,
    /// The record of dynamic sampling; `None` if groups without a difference in reward are kept.
    pub filtered: Option<Filtered>,
    /// Numbers that the rewards recorded, and the rollout's time.
    pub recorded: Recorded,
}

/// The part of a rollout that one optimizer step uses.
#[derive(Debug, Clone)]
pub struct Part {
    /// Number of earlier uses of the part.
    pub iteration: u64,
    /// Indices of the completions in the rollout.
    pub rows: Range<usize>,
}

/// The groups of some prompts, and the outputs of the sampler's passes.
struct Drawn {
    groups: Vec<Group>,
    outputs: Option<TokenOutputs>,
}

/// Samples `num_generations` completions for each of the next prompts, and scores them with the
/// rewards.
///
/// Completion `j` of the prompt at `cursor` draws only from the random stream
/// `rollout.sample [cursor, j]`.
pub fn sample(
    policy: &Policy,
    dataset: &mut Dataset,
    cursor: u64,
    mut sampler: Sampler<'_, '_>,
) -> Result<SampledRollout> {
    let config = &sampler.config.rollout;
    let prompts = (sampler.config.sizes.rollout / config.num_generations) as u64;
    if !config.filter_groups {
        let drawn = draw(policy, dataset, cursor..cursor + prompts, &mut sampler)?;
        let mut rollout = assemble(drawn.groups, &sampler)?;
        rollout.outputs = drawn.outputs;
        return Ok(rollout);
    }
    let mut next = cursor;
    let rewards = &sampler.config.reward;
    let each = sampler.each_reward;
    let sampled = dynamic_sampling::fill(
        prompts,
        config.max_num_gen_batches,
        |group| group.rewards.differ(rewards, each),
        |count| {
            let numbers = next..next + count;
            next = numbers.end;
            Ok(draw(policy, dataset, numbers, &mut sampler)?.groups)
        },
    )?;
    let mut rollout = assemble(sampled.groups, &sampler)?;
    rollout.record.tokens = sampled.tokens;
    rollout.record.prompts = next - cursor;
    rollout.record.filtered = Some(sampled.filtered);
    Ok(rollout)
}

/// Samples and rewards completions for the prompts with the given numbers.
fn draw(
    policy: &Policy,
    dataset: &mut Dataset,
    numbers: Range<u64>,
    sampler: &mut Sampler<'_, '_>,
) -> Result<Drawn> {
    let seed = sampler.config.train.seed;
    let group_size = sampler.config.rollout.num_generations;
    let mut examples = Vec::new();
    let mut indices: Vec<[u64; 2]> = Vec::new();
    for number in numbers.clone() {
        examples.push(dataset.train(number)?);
        indices.extend((0..group_size as u64).map(|j| [number, j]));
    }
    let each: Vec<&Example> = examples
        .iter()
        .flat_map(|example| std::iter::repeat_n(example, group_size))
        .collect();
    let mut rngs: Vec<_> = indices
        .iter()
        .map(|index| host_rng::stream(seed, "rollout.sample", index))
        .collect();
    let stage = Stage {
        purpose: Purpose::TRAINING,
        step: sampler.step,
        max_steps: sampler.config.train.max_steps,
        seed,
        indices: &indices,
    };
    let prompts = Prompts {
        examples: &each,
        max_length: sampler.config.data.max_prompt_length,
        stage: &stage,
    };
    let generation = generation(policy, sampler);
    let drawing = Drawing {
        generation: &generation,
        rngs: &mut rngs,
        capture: sampler.capture,
    };
    let mut sink = sampler.recorder.at(Point::Environment);
    let environment = sampler.environment.as_deref_mut();
    let playing = environment.map(|environment| Playing {
        environment,
        sink: &mut sink,
    });
    let completed = complete(policy, sampler.tokenizer, &prompts, drawing, playing)?;
    drop(sink);
    let rewards = reward(sampler, &completed, &each)?;
    drop(each);
    let mut prompt_ids = completed.prompt_ids.into_iter().step_by(group_size);
    let mut completions = completed.completions.into_iter();
    let mut texts = completed.texts.into_iter();
    let mut conversations = completed.conversations.into_iter();
    let mut groups = Vec::new();
    for (number, example) in numbers.zip(examples) {
        let first = groups.len() * group_size;
        groups.push(Group {
            number,
            example,
            prompt_ids: prompt_ids.next().unwrap_or_default(),
            completions: completions.by_ref().take(group_size).collect(),
            texts: texts.by_ref().take(group_size).collect(),
            conversations: conversations.by_ref().take(group_size).collect(),
            rewards: rewards.part(first..first + group_size),
        });
    }
    Ok(Drawn {
        groups,
        outputs: completed.outputs,
    })
}

/// The settings with which `policy` draws tokens in training.
fn generation(policy: &Policy, sampler: &Sampler<'_, '_>) -> Generation {
    let config = &sampler.config.rollout;
    let inputs = sampler.inputs;
    Generation {
        sampling: SamplingParams {
            temperature: f64::from(config.temperature),
            top_k: config.top_k,
            top_p: f64::from(config.top_p),
        },
        max_completion_length: config.max_completion_length,
        max_turn_length: 0,
        eos_ids: sampler.tokenizer.eos_ids().to_vec(),
        logps: false,
        sampler_logps: inputs.context() || sampler.config.sampler_differs() || policy.drops_out(),
        top_k: inputs.sampler_top_k(),
        max_num_seqs: config.max_num_seqs,
    }
}

/// The rewards of completions of the `examples`.
fn reward(
    sampler: &mut Sampler<'_, '_>,
    completed: &Completed,
    examples: &[&Example],
) -> Result<Scored> {
    let config = sampler.config;
    let mut rollout = capo_plugin::Rollout::new(completed.views(examples));
    rollout.step = sampler.step;
    rollout.max_steps = config.train.max_steps;
    rollout.seed = config.train.seed;
    rollout.group_size = config.rollout.num_generations;
    rollout.max_completion_length = config.rollout.max_completion_length;
    let mut sink = sampler.recorder.at(Point::Reward);
    let rewards = sampler
        .rewards
        .score(&mut sink, &rollout, &completed.episodes())?;
    if let Some(environment) = sampler.environment.as_deref_mut() {
        environment.warn_of_reward(&completed.conversations);
    }
    Ok(rewards)
}

/// Assembles a rollout from `groups`.
fn assemble(groups: Vec<Group>, sampler: &Sampler<'_, '_>) -> Result<SampledRollout> {
    let mut record = RolloutRecord {
        group_size: sampler.config.rollout.num_generations,
        tokens: groups.iter().map(Group::tokens).sum(),
        prompts: groups.len() as u64,
        ..RolloutRecord::default()
    };
    let mut context = if sampler.inputs.context() {
        Some(context::gather(&groups, sampler.tokenizer)?)
    } else {
        None
    };
    let mut prompt_ids = Vec::new();
    let mut completions = Vec::new();
    for group in groups {
        let copies = std::iter::repeat_n(group.prompt_ids, group.completions.len());
        prompt_ids.extend(copies);
        completions.extend(group.completions);
        record.texts.extend(group.texts);
        record.conversations.extend(group.conversations);
        record.rewards.append(group.rewards);
    }
    record.lengths = completions.iter().map(SampledTokens::drawn).collect();

    let pad = sampler.tokenizer.pad_id();
    let mut batch = batch(&prompt_ids, &completions, &record, pad);
    batch.sampled_at = sampler.step;
    if let Some(context) = &mut context {
        for (name, values) in &record.rewards.per_reward {
            context.add_reward(name, values);
        }
    }
    batch.arrays.context = context.map(|data| AgedContext { data, age: 0 });
    record.truncated = batch.arrays.truncated.to_vec();
    Ok(SampledRollout {
        batch,
        outputs: None,
        record,
    })
}

/// The batch of some completions, whose rewards are in `record`.
fn batch(
    prompt_ids: &[Vec<u32>],
    completions: &[SampledTokens],
    record: &RolloutRecord,
    pad: u32,
) -> SampledBatch {
    let ids: Vec<&[u32]> = completions
        .iter()
        .map(|completion| completion.ids.as_slice())
        .collect();
    let truncated = completions
        .iter()
        .map(|completion| u8::from(completion.truncated))
        .collect();
    let mut batch = SampledBatch::new(
        join(prompt_ids, &ids, pad),
        &ids,
        truncated,
        record.rewards.total.clone(),
        record.group_size,
        pad,
    );
    for (b, completion) in completions.iter().enumerate() {
        batch.leave_out(b, &completion.added);
    }
    // The sampler leaves its log-probabilities empty if they were not asked for.
    let has_logps = completions
        .iter()
        .all(|completion| completion.sampler_logps.len() == completion.ids.len());
    if has_logps {
        let logps = completions
            .iter()
            .map(|completion| completion.sampler_logps.as_slice());
        let padded = context::padded(logps, batch.dims().tokens as usize, 0.0);
        batch.sampler_logps = Some(padded);
    }
    batch
}

/// Token ids of the prompts. A prompt beyond `limit` tokens is an error.
pub fn encode(examples: &[&Example], tokenizer: &Tokenizer, limit: usize) -> Result<Vec<Vec<u32>>> {
    examples
        .iter()
        .map(|example| example.prompt_ids(tokenizer, limit))
        .collect()
}

/// Prompts to complete.
pub struct Prompts<'a> {
    /// The row of each prompt.
    pub examples: &'a [&'a Example],
    /// Most tokens of a prompt. A longer prompt is an error.
    pub max_length: usize,
    /// Where the episodes stand in the run.
    pub stage: &'a Stage<'a>,
}

/// How the tokens of completions are drawn.
pub struct Drawing<'a, R> {
    pub generation: &'a Generation,
    /// The random stream of each completion.
    pub rngs: &'a mut [R],
    /// Outputs of the sampler's passes to collect, if any.
    pub capture: Option<Capture>,
}

/// The environment that answers the model's turns, and the sink for its reports.
pub struct Playing<'a> {
    pub environment: &'a mut Environment,
    pub sink: &'a mut dyn Sink,
}

/// Completions of some prompts, as tokens and as texts. Each list has one entry per completion.
pub struct Completed {
    pub prompt_ids: Vec<Vec<u32>>,
    pub completions: Vec<SampledTokens>,
    pub texts: Vec<SampledText>,
    /// The episode of each completion; empty without an environment.
    pub conversations: Vec<Conversation>,
    /// Outputs of the sampler's passes, if they were asked for.
    pub outputs: Option<TokenOutputs>,
}

/// Samples a completion of each prompt. With an environment, a completion is an episode.
pub fn complete<R: Rng + Send>(
    policy: &Policy,
    tokenizer: &Tokenizer,
    prompts: &Prompts<'_>,
    drawing: Drawing<'_, R>,
    playing: Option<Playing<'_>>,
) -> Result<Completed> {
    match playing {
        Some(playing) => play(policy, tokenizer, prompts, drawing, playing),
        None => complete_one_turn(policy, tokenizer, prompts, drawing),
    }
}

fn complete_one_turn<R: Rng + Send>(
    policy: &Policy,
    tokenizer: &Tokenizer,
    prompts: &Prompts<'_>,
    drawing: Drawing<'_, R>,
) -> Result<Completed> {
    let Prompts {
        examples,
        max_length,
        ..
    } = *prompts;
    let Drawing {
        generation,
        rngs,
        capture,
    } = drawing;
    let prompt_ids = encode(examples, tokenizer, max_length)?;
    let (completions, outputs) =
        policy.generate_with_outputs(&prompt_ids, generation, capture, rngs, None)?;
    let texts = examples.iter().map(|example| example.prompt.clone());
    let texts = decode(&completions, texts, examples, tokenizer)?;
    Ok(Completed {
        prompt_ids,
        completions,
        texts,
        conversations: Vec::new(),
        outputs,
    })
}

/// Plays an episode for each prompt: the environment begins it, and answers the model's turns.
fn play<R: Rng + Send>(
    policy: &Policy,
    tokenizer: &Tokenizer,
    prompts: &Prompts<'_>,
    drawing: Drawing<'_, R>,
    playing: Playing<'_>,
) -> Result<Completed> {
    let Playing { environment, sink } = playing;
    let Drawing {
        generation,
        rngs,
        capture,
    } = drawing;
    let examples = prompts.examples;
    let mut conversations = environment.begin(sink, tokenizer, examples, prompts.stage)?;
    let prompt_ids = begun_prompts(environment, tokenizer, prompts, &conversations)?;
    let generation = Generation {
        max_turn_length: environment.max_turn_length(),
        ..generation.clone()
    };
    let longest = generation.max_completion_length;
    let (mut completions, outputs) =
        environment.converse(sink, tokenizer, &mut conversations, longest, |lines| {
            let partner = |rows| lines.partner(rows);
            policy.generate_with_outputs(&prompt_ids, &generation, capture, rngs, Some(&partner))
        })?;
    for (completion, conversation) in completions.iter_mut().zip(&mut conversations) {
        completion.truncated |= conversation.cut;
        let ids = without_end(&completion.ids, tokenizer);
        conversation.text = environment
            .text(tokenizer, ids)
            .context("a sampled completion is not text")?;
    }
    let begun = conversations.iter().map(|one| one.prompt.clone());
    let texts = decode(&completions, begun, examples, tokenizer)?;
    Ok(Completed {
        prompt_ids,
        completions,
        texts,
        conversations,
        outputs,
    })
}

/// Token ids of the prompts, with the messages by which the environment began the episodes.
fn begun_prompts(
    environment: &Environment,
    tokenizer: &Tokenizer,
    prompts: &Prompts<'_>,
    conversations: &[Conversation],
) -> Result<Vec<Vec<u32>>> {
    let mut ids = Vec::new();
    for (conversation, example) in conversations.iter().zip(prompts.examples) {
        if conversation.prompt == example.prompt {
            ids.push(example.prompt_ids(tokenizer, prompts.max_length)?);
            continue;
        }
        // An error must not name the row: the environment made this prompt.
        let begun = Example {
            prompt: conversation.prompt.clone(),
            row: None,
            ..(*example).clone()
        };
        let encoded = begun.prompt_ids(tokenizer, prompts.max_length);
        ids.push(encoded.with_context(|| {
            format!(
                "component `{}`: the model cannot read a prompt with the message that begins the \
                 episode",
                environment.component().id()
            )
        })?);
    }
    Ok(ids)
}

/// The tokens of a completion without its end token.
fn without_end<'a>(ids: &'a [u32], tokenizer: &Tokenizer) -> &'a [u32] {
    match ids.split_last() {
        Some((last, rest)) if tokenizer.eos_ids().contains(last) => rest,
        _ => ids,
    }
}

fn decode(
    completions: &[SampledTokens],
    prompts: impl Iterator<Item = String>,
    examples: &[&Example],
    tokenizer: &Tokenizer,
) -> Result<Vec<SampledText>> {
    let mut texts = Vec::new();
    for ((tokens, prompt), example) in completions.iter().zip(prompts).zip(examples) {
        let completion = tokenizer
            .decode(&tokens.ids)
            .context("a sampled completion is not text")?;
        texts.push(SampledText {
            prompt,
            completion,
            answer: example.answer.clone(),
        });
    }
    Ok(texts)
}

impl Completed {
    /// The whole texts of the episodes; empty without an environment.
    pub fn episodes(&self) -> Vec<&str> {
        self.conversations
            .iter()
            .map(|conversation| conversation.text.as_str())
            .collect()
    }

    /// Views of the completions of `examples`, as reward components see them.
    pub fn views<'a>(&'a self, examples: &[&'a Example]) -> Vec<Completion<'a>> {
        let mut views = Vec::new();
        for ((text, tokens), example) in self.texts.iter().zip(&self.completions).zip(examples) {
            let mut view = Completion::new(&text.prompt, &text.completion);
            view.ids = &tokens.ids;
            view.truncated = tokens.truncated;
            view.answer = &example.answer;
            view.columns = &example.columns;
            views.push(view);
        }
        for (view, conversation) in views.iter_mut().zip(&self.conversations) {
            view.text = conversation.turns().next_back().unwrap_or_default();
            view.messages = &conversation.json;
            view.environment_reward = conversation.reward;
        }
        views
    }
}

/// Rows of prompts padded on the left and completions padded on the right.
pub fn join(prompts: &[Vec<u32>], completions: &[&[u32]], pad: u32) -> Sequences {
    let prompt_len = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let completion_len = completions.iter().map(|ids| ids.len()).max().unwrap_or(0);
    let mut ids = Vec::with_capacity(prompts.len() * (prompt_len + completion_len));
    let mut starts = Vec::with_capacity(prompts.len());
    for (prompt, completion) in prompts.iter().zip(completions) {
        starts.push(prompt_len - prompt.len());
        ids.extend(std::iter::repeat_n(pad, prompt_len - prompt.len()));
        ids.extend(prompt);
        ids.extend(*completion);
        ids.extend(std::iter::repeat_n(pad, completion_len - completion.len()));
    }
    Sequences {
        ids,
        prompt_len,
        completion_len,
        lengths: completions.iter().map(|ids| ids.len()).collect(),
        numbers: Sequences::numbered(starts.len()),
        starts,
    }
}

impl SampledRollout {
    /// The parts of `size` completions, one for each optimizer step, in order. The whole sequence
    /// comes `iterations` times.
    pub fn parts(&self, size: usize, iterations: u64) -> impl Iterator<Item = Part> + use<> {
        let completions = self.batch.dims().completions as usize;
        (0..iterations).flat_map(move |iteration| {
            (0..completions).step_by(size).map(move |start| Part {
                iteration,
                rows: start..start + size,
            })
        })
    }
}
