//! Stage 1: samples completions for prompts, and rewards them.

use std::ops::Range;

use anyhow::{Context, Result};
use capo_plugin::{AgedContext, Point, Purpose, Sink};
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

/// Settings and components for sampling, besides the policy.
pub struct Sampler<'a, 'r> {
    /// The run's settings.
    pub config: &'a Config,
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Inputs that the run's components ask for.
    pub inputs: ComponentInputs,
    /// True if the advantage sees each reward, and not their sum alone.
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
    /// Takes what rewards and environment report.
    pub recorder: &'a mut Recorder<'r>,
}

#[derive(Debug)]
pub struct SampledRollout {
    /// All completions, without the policy's log-probabilities.
    pub batch: SampledBatch,
    /// Outputs of the sampler's own passes, until a step takes them; `None` unless asked for.
    pub outputs: Option<TokenOutputs>,
    pub record: RolloutRecord,
}

/// The record of a rollout. Metrics, the completions' log and the run's progress observe it.
#[derive(Debug, Default)]
pub struct RolloutRecord {
    /// Number of tokens of each completion that the model drew.
    pub lengths: Vec<usize>,
    /// `[B]`: 1 where the length limit cut the completion off.
    pub truncated: Vec<u8>,
    /// Number of completions of each prompt.
    pub group_size: usize,
    /// Rewards, in total and per function.
    pub rewards: Scored,
    /// Prompt, completion text and answer of each completion.
    pub texts: Vec<SampledText>,
    /// The episodes that the completions are; empty without an environment.
    pub conversations: Vec<Conversation>,
    /// Number of prompt and completion tokens, including those of dropped groups.
    pub tokens: u64,
    /// Number of prompts used, including those of dropped groups.
    pub prompts: u64,
    /// Dynamic sampling; `None` unless groups without a difference in reward are dropped.
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

/// Samples `num_generations` completions for each of the next prompts, and scores them with the
/// rewards.
///
/// Completion `j` of the prompt at `cursor` draws from the random stream
/// `rollout.sample [cursor, j]` alone.
pub fn sample(
    policy: &Policy,
    dataset: &mut Dataset,
    cursor: u64,
    mut sampler: Sampler<'_, '_>,
) -> Result<SampledRollout> {
    let (config, size) = (&sampler.config.rollout, sampler.config.sizes.rollout);
    let prompts = (size / config.num_generations) as u64;
    if !config.filter_groups {
        let (groups, outputs) = draw(policy, dataset, cursor..cursor + prompts, &mut sampler)?;
        return Ok(SampledRollout {
            outputs,
            ..assemble(groups, &sampler)?
        });
    }
    let mut next = cursor;
    let (rewards, each) = (&sampler.config.reward, sampler.each_reward);
    let differs = |group: &Group| group.rewards.differ(rewards, each);
    let sampled = dynamic_sampling::fill(prompts, config.max_num_gen_batches, differs, |count| {
        let numbers = next..next + count;
        next = numbers.end;
        Ok(draw(policy, dataset, numbers, &mut sampler)?.0)
    })?;
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
) -> Result<(Vec<Group>, Option<TokenOutputs>)> {
    let (config, seed) = (&sampler.config.rollout, sampler.config.train.seed);
    let group = config.num_generations;
    let examples = numbers
        .clone()
        .map(|number| dataset.train(number))
        .collect::<Result<Vec<Example>>>()?;
    let each: Vec<&Example> = examples
        .iter()
        .flat_map(|example| std::iter::repeat_n(example, group))
        .collect();
    let indices: Vec<[u64; 2]> = numbers
        .clone()
        .flat_map(|number| (0..group as u64).map(move |j| [number, j]))
        .collect();
    let mut rngs: Vec<_> = indices
        .iter()
        .map(|index| host_rng::stream(seed, "rollout.sample", index))
        .collect();
    let generation = Generation {
        sampling: SamplingParams {
            temperature: f64::from(config.temperature),
            top_k: config.top_k,
            top_p: f64::from(config.top_p),
        },
        max_completion_length: config.max_completion_length,
        max_turn_length: 0,
        eos_ids: sampler.tokenizer.eos_ids().to_vec(),
        logps: false,
        sampler_logps: sampler.inputs.context()
            || sampler.config.sampler_differs()
            || policy.drops_out(),
        top_k: sampler.inputs.sampler_top_k(),
        max_num_seqs: config.max_num_seqs,
    };
    let max_steps = sampler.config.train.max_steps;
    let stage = Stage {
        purpose: Purpose::TRAINING,
        step: sampler.step,
        max_steps,
        seed,
        indices: &indices,
    };
    let lengths = sampler.config.data.max_prompt_length;
    let completed = complete(
        policy,
        (sampler.tokenizer, lengths),
        (
            sampler.environment.as_deref_mut(),
            &mut sampler.recorder.at(Point::Environment),
        ),
        (&each, &stage),
        (&generation, &mut rngs, sampler.capture),
    )?;
    let mut sampled = capo_plugin::Rollout::new(completed.views(&each));
    sampled.step = sampler.step;
    sampled.max_steps = max_steps;
    sampled.seed = seed;
    sampled.group_size = group;
    sampled.max_completion_length = config.max_completion_length;
    let mut sink = sampler.recorder.at(Point::Reward);
    let rewards = sampler
        .rewards
        .score(&mut sink, &sampled, &completed.episodes())?;
    if let Some(environment) = sampler.environment.as_deref_mut() {
        environment.warn_of_reward(&completed.conversations);
    }
    drop(each);
    let Completed {
        prompt_ids,
        completions,
        texts,
        conversations,
        outputs,
    } = completed;
    let (mut prompt_ids, mut completions) = (
        prompt_ids.into_iter().step_by(group),
        completions.into_iter(),
    );
    let (mut texts, mut conversations) = (texts.into_iter(), conversations.into_iter());
    let groups = numbers
        .zip(examples)
        .enumerate()
        .map(|(place, (number, example))| Group {
            number,
            example,
            prompt_ids: prompt_ids.next().unwrap_or_default(),
            completions: completions.by_ref().take(group).collect(),
            texts: texts.by_ref().take(group).collect(),
            conversations: conversations.by_ref().take(group).collect(),
            rewards: rewards.part(place * group..(place + 1) * group),
        });
    Ok((groups.collect(), outputs))
}

/// Assembles a rollout from `groups`.
fn assemble(groups: Vec<Group>, sampler: &Sampler<'_, '_>) -> Result<SampledRollout> {
    let (tokens, prompts) = (groups.iter().map(Group::tokens).sum(), groups.len() as u64);
    let group_size = sampler.config.rollout.num_generations;
    let mut context = sampler
        .inputs
        .context()
        .then(|| context::gather(&groups, sampler.tokenizer))
        .transpose()?;
    let (mut prompt_ids, mut completions) = (Vec::new(), Vec::new());
    let (mut texts, mut conversations, mut rewards) = (Vec::new(), Vec::new(), Scored::default());
    for group in groups {
        prompt_ids.extend(std::iter::repeat_n(
            group.prompt_ids,
            group.completions.len(),
        ));
        completions.extend(group.completions);
        texts.extend(group.texts);
        conversations.extend(group.conversations);
        rewards.append(group.rewards);
    }
    for (name, values) in &rewards.per_reward {
        context
            .iter_mut()
            .for_each(|context| context.add_reward(name, values));
    }
    let ids: Vec<&[u32]> = completions
        .iter()
        .map(|completion| completion.ids.as_slice())
        .collect();
    let pad = sampler.tokenizer.pad_id();
    let mut batch = SampledBatch::new(
        join(&prompt_ids, &ids, pad),
        &ids,
        completions
            .iter()
            .map(|completion| u8::from(completion.truncated))
            .collect(),
        rewards.total.clone(),
        group_size,
        pad,
    );
    completions
        .iter()
        .enumerate()
        .for_each(|(b, completion)| batch.leave_out(b, &completion.added));
    batch.sampled_at = sampler.step;
    batch.arrays.context = context.map(|data| AgedContext { data, age: 0 });
    // They are empty unless they were asked for.
    let sampler_logps = || {
        completions
            .iter()
            .map(|completion| completion.sampler_logps.as_slice())
    };
    let asked = sampler_logps()
        .zip(&ids)
        .all(|(logps, ids)| logps.len() == ids.len());
    batch.sampler_logps =
        asked.then(|| context::padded(sampler_logps(), batch.dims().tokens as usize, 0.0));
    let (lengths, truncated) = (
        completions.iter().map(SampledTokens::drawn).collect(),
        batch.arrays.truncated.to_vec(),
    );
    let record = RolloutRecord {
        lengths,
        truncated,
        group_size,
        rewards,
        texts,
        conversations,
        tokens,
        prompts,
        ..RolloutRecord::default()
    };
    Ok(SampledRollout {
        batch,
        outputs: None,
        record,
    })
}

/// Token ids of the prompts. A prompt beyond `limit` tokens is an error.
pub fn encode(examples: &[&Example], tokenizer: &Tokenizer, limit: usize) -> Result<Vec<Vec<u32>>> {
    examples
        .iter()
        .map(|example| example.prompt_ids(tokenizer, limit))
        .collect()
}

/// Completions of some prompts, as tokens and as texts; all are `[B]`.
pub struct Completed {
    pub prompt_ids: Vec<Vec<u32>>,
    pub completions: Vec<SampledTokens>,
    pub texts: Vec<SampledText>,
    /// The episodes that the completions are; empty without an environment.
    pub conversations: Vec<Conversation>,
    /// Outputs of the sampler's passes, if they were asked for.
    pub outputs: Option<TokenOutputs>,
}

/// Samples a completion of each example, whose prompt has at most `limit` tokens. With an
/// environment a completion is an episode.
pub fn complete<R: Rng + Send>(
    policy: &Policy,
    (tokenizer, limit): (&Tokenizer, usize),
    (environment, sink): (Option<&mut Environment>, &mut dyn Sink),
    (examples, stage): (&[&Example], &Stage<'_>),
    (generation, rngs, capture): (&Generation, &mut [R], Option<Capture>),
) -> Result<Completed> {
    let Some(environment) = environment else {
        let prompt_ids = encode(examples, tokenizer, limit)?;
        let (completions, outputs) =
            policy.generate_with_outputs(&prompt_ids, generation, capture, rngs, None)?;
        let prompts = examples.iter().map(|example| example.prompt.clone());
        let texts = decode(&completions, prompts, examples, tokenizer)?;
        return Ok(Completed {
            prompt_ids,
            completions,
            texts,
            conversations: Vec::new(),
            outputs,
        });
    };
    let mut conversations = environment.begin(sink, tokenizer, examples, stage)?;
    let begun = conversations.iter().zip(examples).map(|(conversation, example)| {
        if conversation.prompt == example.prompt {
            return example.prompt_ids(tokenizer, limit);
        }
        // The row is not to blame for what the environment adds to its prompt.
        let begun = Example { prompt: conversation.prompt.clone(), row: None, ..(*example).clone() };
        begun.prompt_ids(tokenizer, limit).with_context(|| {
            let id = environment.component().id();
            format!("component `{id}`: the model cannot read a prompt with the message that begins the episode")
        })
    });
    let prompt_ids = begun.collect::<Result<Vec<_>>>()?;
    let generation = Generation {
        max_turn_length: environment.max_turn_length(),
        ..generation.clone()
    };
    let answered = (&mut conversations[..], generation.max_completion_length);
    let (mut completions, outputs) = environment.converse(sink, tokenizer, answered, |lines| {
        let partner = |rows| lines.partner(rows);
        policy.generate_with_outputs(&prompt_ids, &generation, capture, rngs, Some(&partner))
    })?;
    for (completion, conversation) in completions.iter_mut().zip(&mut conversations) {
        completion.truncated |= conversation.cut;
        let ids = &completion.ids;
        let ends = ids
            .last()
            .is_some_and(|last| tokenizer.eos_ids().contains(last));
        let spoken = &ids[..ids.len() - usize::from(ends)];
        conversation.text = environment
            .text(tokenizer, spoken)
            .context("a sampled completion is not text")?;
    }
    let prompts = conversations
        .iter()
        .map(|conversation| conversation.prompt.clone());
    let texts = decode(&completions, prompts, examples, tokenizer)?;
    Ok(Completed {
        prompt_ids,
        completions,
        texts,
        conversations,
        outputs,
    })
}

fn decode(
    tokens: &[SampledTokens],
    prompts: impl Iterator<Item = String>,
    rows: &[&Example],
    tokenizer: &Tokenizer,
) -> Result<Vec<SampledText>> {
    let text = |((tokens, prompt), row): ((&SampledTokens, String), &&Example)| {
        let completion = tokenizer
            .decode(&tokens.ids)
            .context("a sampled completion is not text")?;
        Ok(SampledText {
            prompt,
            completion,
            answer: row.answer.clone(),
        })
    };
    tokens.iter().zip(prompts).zip(rows).map(text).collect()
}

impl Completed {
    /// The whole texts of the episodes; empty without an environment.
    pub fn episodes(&self) -> Vec<&str> {
        self.conversations
            .iter()
            .map(|conversation| conversation.text.as_str())
            .collect()
    }

    /// Views for reward components of the completions of `examples`.
    pub fn views<'a>(&'a self, examples: &[&'a Example]) -> Vec<capo_plugin::Completion<'a>> {
        let view = |((sample, completion), example): (
            (&'a SampledText, &'a SampledTokens),
            &&'a Example,
        )| {
            let mut view = capo_plugin::Completion::new(&sample.prompt, &sample.completion);
            view.ids = &completion.ids;
            view.truncated = completion.truncated;
            view.answer = &example.answer;
            view.columns = &example.columns;
            view
        };
        let mut views: Vec<_> = self
            .texts
            .iter()
            .zip(&self.completions)
            .zip(examples)
            .map(view)
            .collect();
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
    let (lengths, numbers) = (
        completions.iter().map(|ids| ids.len()).collect(),
        Sequences::numbered(starts.len()),
    );
    Sequences {
        ids,
        starts,
        prompt_len,
        completion_len,
        lengths,
        numbers,
    }
}

impl SampledRollout {
    /// The parts of `size` completions, one per optimizer step, in order; all of them come
    /// `iterations` times.
    pub fn parts(&self, size: usize, iterations: u64) -> impl Iterator<Item = Part> + use<> {
        let completions = self.batch.dims().completions as usize;
        let parts = move || {
            (0..completions)
                .step_by(size)
                .map(move |start| start..start + size)
        };
        (0..iterations).flat_map(move |iteration| parts().map(move |rows| Part { iteration, rows }))
    }
}
