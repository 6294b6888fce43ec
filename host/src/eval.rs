//! Held-out accuracy: the share of held-out prompts whose greedy completion earns a reward.

use anyhow::Result;
use capo_plugin::{Purpose, Rollout, Sink};

use crate::config::Config;
use crate::data::{Example, Tokenizer};
use crate::metrics::sink::WarningSink;
use crate::model::{Generation, Policy, Sampling};
use crate::reward::Rewards;
use crate::rng;
use crate::run::Run;
use crate::stages::context::Sample;
use crate::stages::rollout::{decode, encode, views};

/// Prompts decoded together.
pub const CHUNK: usize = 512;

/// The outcome on one prompt.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Graded {
    /// Prompt, completion and expected answer.
    #[serde(flatten)]
    pub sample: Sample,
    /// The weighted sum of rewards.
    pub reward: f32,
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
    let generation = Generation {
        sampling: Sampling::GREEDY,
        max_completion_length: exam.max_completion_length,
        eos_ids: tokenizer.eos_ids().to_vec(),
        logps: false,
        sampler_logps: false,
        top_k: 0,
        max_num_seqs: 0,
    };
    let mut graded = Vec::with_capacity(examples.len());
    for chunk in examples.chunks(CHUNK) {
        let chunk: Vec<&Example> = chunk.iter().collect();
        let prompts = encode(&chunk, tokenizer, exam.max_prompt_length)?;
        // Greedy decoding draws nothing; the streams only fill their places.
        let mut rngs = vec![rng::stream(0, "eval.greedy", &[]); chunk.len()];
        let completions = policy.generate(&prompts, &generation, &mut rngs)?;
        let samples = decode(&completions, &chunk, tokenizer)?;
        let scored = grader.rewards.score(grader.sink, &exam.rollout(views(&samples, &completions, &chunk)))?;
        graded.extend(samples.into_iter().zip(scored.total).map(|(sample, reward)| Graded { sample, reward }));
    }
    Ok(graded)
}

/// What completions earn, and where the reward components report to.
pub struct Grader<'a> {
    /// `[[reward]]`.
    pub rewards: &'a mut Rewards,
    /// For the components.
    pub sink: &'a mut dyn Sink,
}

/// The settings of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Exam {
    /// Longest prompt, tokens.
    pub max_prompt_length: usize,
    /// Longest completion, tokens.
    pub max_completion_length: usize,
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

/// The share of `graded` with a reward above 0.
#[must_use]
pub fn share_right(graded: &[Graded]) -> f64 {
    graded.iter().filter(|graded| graded.reward > 0.0).count() as f64 / graded.len().max(1) as f64
}

/// Whether the run's held-out accuracy is due after the step just done: every `eval.eval_steps`, and after the last.
#[must_use]
pub fn is_due(run: &Run) -> bool {
    let (step, every) = (run.progress.step, run.config.eval.eval_steps);
    step >= run.config.train.max_steps || (every > 0 && step.is_multiple_of(every))
}

/// The run's held-out accuracy, or none where `eval.num_prompts` is 0.
///
/// # Errors
///
/// As [`grade`].
pub fn accuracy(run: &mut Run) -> Result<Option<f64>> {
    if run.held_out.is_empty() {
        return Ok(None);
    }
    let _timer = run.metrics.timer("eval");
    let exam = Exam::of(&run.config, run.progress.step);
    let mut sink = WarningSink { warned: &mut run.warned, watchdog: &run.watchdog };
    let mut grader = Grader { rewards: &mut run.rewards, sink: &mut sink };
    let graded = grade(&run.policy, &run.tokenizer, &mut grader, &run.held_out, &exam)?;
    Ok(Some(share_right(&graded)))
}

/// Records the run's held-out accuracy before training.
///
/// # Errors
///
/// As [`grade`].
pub fn record_before(run: &mut Run) -> Result<()> {
    run.progress.accuracy_before = accuracy(run)?;
    if let Some(accuracy) = run.progress.accuracy_before {
        run.metrics.record("eval_accuracy", accuracy);
    }
    Ok(())
}

/// Records the run's held-out accuracy as `eval_accuracy`.
///
/// # Errors
///
/// As [`grade`].
pub fn record(run: &mut Run) -> Result<()> {
    if let Some(accuracy) = accuracy(run)? {
        run.progress.accuracy = Some(accuracy);
        run.metrics.record("eval_accuracy", accuracy);
    }
    Ok(())
}
