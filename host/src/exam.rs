//! Questions that a model answers, and how its answers are graded.

use anyhow::Result;
use capo_plugin::{Purpose, Rollout, Sink};
use rand_chacha::ChaCha12Rng;

use crate::config::Config;
use crate::data::{Example, Tokenizer};
use crate::model::{Generation, Policy, Sampling};
use crate::reward::Rewards;
use crate::rng;
use crate::stages::context::Sample;
use crate::stages::rollout::{decode, encode, views};

/// The outcome on one prompt.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Graded {
    /// Prompt, completion and expected answer.
    #[serde(flatten)]
    pub sample: Sample,
    /// The weighted sum of rewards.
    pub reward: f32,
    /// Whether the answer is right.
    #[serde(skip)]
    pub correct: bool,
    /// Tokens of the completion.
    #[serde(skip)]
    pub tokens: usize,
    /// Whether it was cut off.
    #[serde(skip)]
    pub truncated: bool,
}

/// Answers `examples` greedily and grades the answers.
///
/// # Errors
///
/// When a prompt is too long or cannot be encoded, or the model's logits are not finite.
pub fn grade(
    policy: &Policy,
    tokenizer: &Tokenizer,
    grader: &mut Grader<'_>,
    examples: &[Example],
    exam: &Exam,
) -> Result<Vec<Graded>> {
    let mut graded = Vec::with_capacity(examples.len());
    for chunk in examples.chunks(exam.batch_size) {
        let chunk: Vec<&Example> = chunk.iter().collect();
        // Greedy decoding draws nothing; the streams only fill their places.
        let mut rngs = vec![rng::stream(0, "eval.greedy", &[]); chunk.len()];
        graded.extend(grade_chunk(policy, tokenizer, grader, &chunk, (Sampling::GREEDY, &mut rngs), exam)?);
    }
    Ok(graded)
}

/// Answers `examples` all at once, each drawing from a stream of its own, and grades the answers.
///
/// # Errors
///
/// As [`grade`].
pub fn grade_chunk(
    policy: &Policy,
    tokenizer: &Tokenizer,
    grader: &mut Grader<'_>,
    examples: &[&Example],
    (sampling, rngs): (Sampling, &mut [ChaCha12Rng]),
    exam: &Exam,
) -> Result<Vec<Graded>> {
    let generation = Generation {
        sampling,
        max_completion_length: exam.max_completion_length,
        eos_ids: tokenizer.eos_ids().to_vec(),
        logps: false,
        sampler_logps: false,
        top_k: 0,
        max_num_seqs: exam.max_num_seqs,
    };
    let prompts = encode(examples, tokenizer, exam.max_prompt_length)?;
    let completions = policy.generate(&prompts, &generation, rngs)?;
    let samples = decode(&completions, examples, tokenizer)?;
    let scored = grader.rewards.score(grader.sink, &exam.rollout(views(&samples, &completions, examples)))?;
    let decides = grader.decides.and_then(|id| scored.per_reward.iter().find(|(reward, _)| reward == id));
    let graded = samples.into_iter().zip(&completions).enumerate().map(|(i, (sample, completion))| Graded {
        sample,
        reward: scored.total[i],
        correct: decides.map_or(&scored.total, |(_, rewards)| rewards)[i] > 0.0,
        tokens: completion.ids.len(),
        truncated: completion.truncated,
    });
    Ok(graded.collect())
}

/// What completions earn, and where the reward components report to.
pub struct Grader<'a> {
    /// `[[reward]]`.
    pub rewards: &'a mut Rewards,
    /// For the components.
    pub sink: &'a mut dyn Sink,
    /// The reward that says whether an answer is right; the sum of all where it is none.
    pub decides: Option<&'a str>,
}

/// The settings of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Exam {
    /// Longest prompt, tokens.
    pub max_prompt_length: usize,
    /// Longest completion, tokens.
    pub max_completion_length: usize,
    /// Most completions that are sampled at a time; 0 is no limit.
    pub max_num_seqs: usize,
    /// Most completions that are asked for at a time.
    pub batch_size: usize,
    /// Optimizer steps done.
    pub step: u64,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
    /// The run's seed.
    pub seed: u64,
}

impl Exam {
    /// The measurement that `config` describes, after `step` steps.
    #[must_use]
    pub fn of(config: &Config, step: u64) -> Self {
        Self {
            max_prompt_length: config.data.max_prompt_length,
            max_completion_length: config.rollout.max_completion_length,
            max_num_seqs: config.rollout.max_num_seqs,
            batch_size: config.eval.batch_size(),
            step,
            max_steps: config.train.max_steps,
            seed: config.train.seed,
        }
    }

    fn rollout<'a>(&self, completions: Vec<capo_plugin::Completion<'a>>) -> Rollout<'a> {
        let mut rollout = Rollout::new(completions);
        rollout.purpose = Purpose::EVALUATION;
        rollout.step = self.step;
        rollout.max_steps = self.max_steps;
        rollout.seed = self.seed;
        rollout.max_completion_length = self.max_completion_length;
        rollout
    }
}

/// The share of `graded` that is right.
#[must_use]
pub fn share_right(graded: &[Graded]) -> f64 {
    graded.iter().filter(|graded| graded.correct).count() as f64 / graded.len().max(1) as f64
}
