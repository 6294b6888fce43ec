//! Lets a model answer questions, and grades the answers.

use std::fmt;

use anyhow::Result;
use capo_plugin::{Purpose, Rollout, Sink};
use host_data::{Example, Tokenizer};
use host_model::{Generation, Policy, SamplingParams};
use indexmap::IndexMap;
use rand_chacha::ChaCha12Rng;

use crate::config::Config;
use crate::environment::{Environment, Stage};
use crate::metrics::Values;
use crate::reward::{self, Rewards, Scored};
use crate::stages::context::SampledText;
use crate::stages::rollout::{Drawing, Playing, Prompts, complete};

/// A graded answer to one prompt.
#[derive(Debug, Clone)]
pub struct Graded {
    /// Prompt, completion and expected answer.
    pub sample: SampledText,
    /// The text that the rewards read: the completion, or the last turn of an episode.
    pub read: String,
    pub earned: Earned,
    /// True if the answer is right; `None` if no reward decides this.
    pub correct: Option<bool>,
    /// Number of tokens that the model drew.
    pub tokens: usize,
    /// True if the length limit cut the completion off.
    pub truncated: bool,
}

/// An answer's reward, reward units.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Earned {
    /// Weighted sum of all rewards.
    pub reward: f32,
    /// Each reward before weighting, by name.
    pub rewards: IndexMap<String, f32>,
}

impl Earned {
    fn of(scored: &Scored, place: usize) -> Self {
        let rewards = scored
            .per_reward
            .iter()
            .map(|(name, rewards)| (name.clone(), rewards[place]))
            .collect();
        Self {
            reward: scored.total[place],
            rewards,
        }
    }
}

/// `reward` and `rewards/NAME/mean`: means over the answers.
pub fn mean_rewards<'a>(earned: impl Iterator<Item = &'a Earned>) -> Values {
    let mut sums = IndexMap::<String, f64>::new();
    let mut count = 0_usize;
    for Earned { reward, rewards } in earned {
        let parts = rewards
            .iter()
            .map(|(name, reward)| (format!("rewards/{name}/mean"), reward));
        for (name, reward) in std::iter::once(("reward".to_owned(), reward)).chain(parts) {
            *sums.entry(name).or_default() += f64::from(*reward);
        }
        count += 1;
    }
    sums.into_iter()
        .map(|(name, sum)| (name, sum / count as f64))
        .collect()
}

/// Rule that decides if an answer is right.
#[derive(Debug, Clone, PartialEq)]
pub enum RightAnswer {
    /// Right if the reward of this name is above 0.
    By(String),
    /// Right if the only reward is above 0. The rule needs rewards of exactly -1, 0 or 1: other
    /// values decide nothing.
    Only(String),
    /// Undecided: there are several rewards, and none of them is known to tell right from wrong.
    Undecided,
}

impl RightAnswer {
    /// The rule for the rewards of `config`: the reward that `eval.reward` names, else the only
    /// comparing reward, else the only reward.
    pub fn of(config: &Config) -> Self {
        let names = reward::names(&config.reward);
        let is_comparing =
            |name: &&String| reward::reads_answer(name.split('#').next().unwrap_or_default());
        let comparing: Vec<&String> = names.iter().filter(is_comparing).collect();
        match (&config.eval.reward, &comparing[..], &names[..]) {
            (Some(name), _, _) => Self::By(name.clone()),
            (None, [name], _) => Self::By((*name).clone()),
            (None, _, [name]) => Self::Only(name.clone()),
            _ => Self::Undecided,
        }
    }

    fn judge(&self, earned: &Earned) -> Option<bool> {
        match self {
            Self::By(name) => earned.rewards.get(name).map(|reward| *reward > 0.0),
            Self::Only(name) => earned
                .rewards
                .get(name)
                .filter(|reward| [-1.0, 0.0, 1.0].contains(*reward))
                .map(|reward| *reward > 0.0),
            Self::Undecided => None,
        }
    }
}

impl fmt::Display for RightAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(name) => write!(f, "`{name}` above 0"),
            Self::Only(name) => {
                write!(
                    f,
                    "answers to which `{name}` gives 1 (if it gives anything but -1, 0 and 1, \
                     there is no accuracy; with `--set eval.reward={name}` every answer above 0 is \
                     right)"
                )
            }
            Self::Undecided => f.write_str("no reward says it (name one with `eval.reward`)"),
        }
    }
}

/// Answers `examples` greedily, and grades the answers.
pub fn grade(
    policy: &Policy,
    tokenizer: &Tokenizer,
    grader: &mut Grader<'_>,
    examples: &[Example],
    exam: &Exam,
) -> Result<Vec<Graded>> {
    let mut graded = Vec::with_capacity(examples.len());
    for chunk in examples.chunks(exam.batch_size) {
        let first = graded.len() as u64;
        let numbers = first..first + chunk.len() as u64;
        let indices: Vec<[u64; 2]> = numbers.map(|number| [number, 0]).collect();
        let chunk: Vec<&Example> = chunk.iter().collect();
        let questions = Questions {
            examples: &chunk,
            indices: &indices,
            sampling: SamplingParams::GREEDY,
            // Greedy decoding uses no random numbers; the streams are placeholders.
            rngs: &mut vec![host_rng::stream(0, "eval.greedy", &[]); chunk.len()],
        };
        graded.extend(grade_together(policy, tokenizer, grader, questions, exam)?);
    }
    Ok(graded)
}

/// Questions that are answered together.
pub struct Questions<'a> {
    /// The row of each answer's question.
    pub examples: &'a [&'a Example],
    /// For each answer, the number of its question, and its own number among the answers to it.
    pub indices: &'a [[u64; 2]],
    pub sampling: SamplingParams,
    /// The random stream of each answer.
    pub rngs: &'a mut [ChaCha12Rng],
}

/// Answers all `questions` at once, and grades the answers.
pub fn grade_together(
    policy: &Policy,
    tokenizer: &Tokenizer,
    grader: &mut Grader<'_>,
    questions: Questions<'_>,
    exam: &Exam,
) -> Result<Vec<Graded>> {
    let Questions {
        examples,
        indices,
        sampling,
        rngs,
    } = questions;
    let generation = Generation {
        sampling,
        max_completion_length: exam.max_completion_length,
        max_turn_length: 0,
        eos_ids: tokenizer.eos_ids().to_vec(),
        logps: false,
        sampler_logps: false,
        top_k: 0,
        max_num_seqs: exam.max_num_seqs,
    };
    let stage = Stage {
        purpose: Purpose::EVALUATION,
        step: exam.step,
        max_steps: exam.max_steps,
        seed: exam.seed,
        indices,
    };
    let prompts = Prompts {
        examples,
        max_length: exam.max_prompt_length,
        stage: &stage,
    };
    let drawing = Drawing {
        generation: &generation,
        rngs,
        capture: None,
    };
    let environment = grader.environment.as_deref_mut();
    let playing = environment.map(|environment| Playing {
        environment,
        sink: &mut *grader.sink,
    });
    let completed = complete(policy, tokenizer, &prompts, drawing, playing)?;
    let rollout = exam.rollout(completed.views(examples));
    let scored = grader
        .rewards
        .score(grader.sink, &rollout, &completed.episodes())?;
    let read: Vec<String> = rollout
        .completions
        .iter()
        .map(|completion| completion.text.to_owned())
        .collect();
    let mut graded = Vec::new();
    for (i, (sample, read)) in completed.texts.into_iter().zip(read).enumerate() {
        let earned = Earned::of(&scored, i);
        let tokens = &completed.completions[i];
        graded.push(Graded {
            sample,
            read,
            correct: grader.right.judge(&earned),
            earned,
            tokens: tokens.drawn(),
            truncated: tokens.truncated,
        });
    }
    Ok(graded)
}

/// Everything that grades answers.
pub struct Grader<'a> {
    /// Reward components of the section `[[reward]]`.
    pub rewards: &'a mut Rewards,
    /// The environment; `None` if an answer is one turn.
    pub environment: Option<&'a mut Environment>,
    /// Sink for reports of the reward components.
    pub sink: &'a mut dyn Sink,
    /// Rule that decides if an answer is right.
    pub right: &'a RightAnswer,
}

/// How an evaluation is done.
#[derive(Debug, Clone, Copy)]
pub struct Exam {
    /// Longest prompt, tokens.
    pub max_prompt_length: usize,
    /// Longest completion, tokens.
    pub max_completion_length: usize,
    /// Most completions that are sampled at once; 0 is no limit.
    pub max_num_seqs: usize,
    /// Most completions that are requested at once.
    pub batch_size: usize,
    /// Number of answers to each prompt. They are consecutive.
    pub samples: usize,
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Number of optimizer steps in the whole run.
    pub max_steps: u64,
    pub seed: u64,
}

impl Exam {
    /// The evaluation that `config` describes, after `step` steps.
    pub fn of(config: &Config, step: u64) -> Self {
        Self {
            max_prompt_length: config.data.max_prompt_length,
            max_completion_length: config.rollout.max_completion_length,
            max_num_seqs: config.rollout.max_num_seqs,
            batch_size: config.eval.batch_size(),
            samples: 1,
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
        rollout.group_size = self.samples;
        rollout.max_completion_length = self.max_completion_length;
        rollout
    }
}

/// Share of right answers in `graded`; `None` if some answer is neither right nor wrong.
pub fn share_right(graded: &[Graded]) -> Option<f64> {
    let correct: Option<Vec<bool>> = graded.iter().map(|graded| graded.correct).collect();
    correct.map(|correct| {
        correct.iter().filter(|correct| **correct).count() as f64 / graded.len().max(1) as f64
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractional_rewards_decide_nothing_unless_named() {
        let earned = |reward: f32| Earned {
            reward,
            rewards: [("grade".to_owned(), reward)].into_iter().collect(),
        };
        for (reward, only, by) in [
            (1.0, Some(true), true),
            (0.0, Some(false), false),
            (-1.0, Some(false), false),
            (0.25, None, true),
            (2.0, None, true),
        ] {
            assert_eq!(
                RightAnswer::Only("grade".into()).judge(&earned(reward)),
                only,
                "{reward}"
            );
            assert_eq!(
                RightAnswer::By("grade".into()).judge(&earned(reward)),
                Some(by),
                "{reward}"
            );
            assert_eq!(RightAnswer::Undecided.judge(&earned(reward)), None);
        }
    }
}
