//! Benchmarks: several answers to each question of a file, and metrics computed from them.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Result;
use host_data::{Example, Purpose, Tokenizer};
use host_model::{ModelFiles, Policy, SamplingParams};
use math_answer::Places;
use rand_chacha::ChaCha12Rng;
use serde::{Deserialize, Serialize};

use crate::config::{BenchmarkConfig, Config, TEST};
use crate::exam::{Earned, Exam, Graded, Grader, grade_chunk, mean_rewards};
use crate::metrics::Values;
use crate::pass_at::{counts, majority, pass_at};

/// Name of the held-out prompts when they are a benchmark.
pub const HELD_OUT: &str = "held-out";

/// A benchmark: its questions and the settings for answering them.
#[derive(Debug, Clone)]
pub struct Benchmark {
    /// Name of the benchmark in its metrics: `eval/NAME/...`.
    pub name: String,
    pub examples: Vec<Example>,
    /// Number of rows that cannot be used.
    pub left_out: usize,
    /// Number of answers to each question.
    pub samples: usize,
    sampling: SamplingParams,
    pub max_completion_length: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub benchmark: String,
    /// Index of the question in the order of the file, from 0.
    pub prompt: usize,
    /// Index of the answer among the answers to its question, from 0.
    pub sample: usize,
    /// Full text of the answer.
    pub completion: String,
    /// Final answer found in the text; `None` if there is none.
    pub extracted: Option<String>,
    pub answer: String,
    #[serde(flatten)]
    pub earned: Earned,
    /// True if the answer is right; `None` if no reward decides this.
    pub correct: Option<bool>,
    /// Length of the answer, tokens.
    pub tokens: usize,
    /// True if the length limit cut the answer off.
    pub truncated: bool,
}

impl Benchmark {
    /// Opens the benchmarks of `configs`.
    pub fn open_all(
        configs: &[BenchmarkConfig],
        config: &Config,
        files: &ModelFiles,
        tokenizer: &Tokenizer,
        policy: &Policy,
    ) -> Result<Vec<Self>> {
        if configs.is_empty() {
            return Ok(Vec::new());
        }
        let chat = config.data.chat(files, Purpose::Measuring, tokenizer)?;
        let demands = config
            .data
            .demands(chat.as_ref(), Purpose::Measuring, tokenizer, policy);
        let open = |benchmark: &BenchmarkConfig| -> Result<Self> {
            let of_run = ("rollout", config.rollout.max_completion_length);
            let (section, longest) = benchmark
                .max_completion_length
                .map_or(of_run, |own| ("eval.benchmark", own));
            policy.check_lengths(
                section,
                config.data.max_prompt_length,
                longest,
                config.eval.batch_size(),
            )?;
            let (examples, left_out) = benchmark.examples(&config.data, &demands)?;
            Ok(Self {
                name: benchmark.name.clone(),
                examples,
                left_out,
                samples: benchmark.samples,
                sampling: benchmark.sampling(),
                max_completion_length: longest,
            })
        };
        configs.iter().map(open).collect()
    }

    /// A benchmark of held-out prompts, with one greedy answer to each.
    pub fn held_out(examples: Vec<Example>, max_completion_length: usize) -> Self {
        let (name, sampling) = (HELD_OUT.to_owned(), SamplingParams::GREEDY);
        Self {
            name,
            examples,
            left_out: 0,
            samples: 1,
            sampling,
            max_completion_length,
        }
    }

    pub fn answers(&self) -> usize {
        self.examples.len() * self.samples
    }

    /// Ranges of about `size` answers, from `first` on, that are generated together: all to some
    /// questions.
    pub fn chunks(&self, first: usize, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (all, size) = (self.answers(), (size / self.samples).max(1) * self.samples);
        (first..all)
            .step_by(size)
            .map(move |start| start..all.min(start + size))
    }

    /// Random stream of sample `sample` for question `prompt`. Each answer has its own, so neither
    /// other answers nor batches affect it.
    fn stream(&self, seed: u64, prompt: usize, sample: usize) -> ChaCha12Rng {
        host_rng::stream(
            seed,
            &format!("eval.{}", self.name),
            &[prompt as u64, sample as u64],
        )
    }

    /// Generates the answers with the numbers `range`. Answers are numbered prompt by prompt.
    pub fn answer(
        &self,
        range: Range<usize>,
        policy: &Policy,
        tokenizer: &Tokenizer,
        grader: &mut Grader<'_>,
        exam: &Exam,
    ) -> Result<Vec<Answer>> {
        let places: Vec<(usize, usize)> = range
            .map(|i| (i / self.samples, i % self.samples))
            .collect();
        let asked: Vec<&Example> = places
            .iter()
            .map(|(prompt, _)| &self.examples[*prompt])
            .collect();
        let mut rngs: Vec<_> = places
            .iter()
            .map(|(prompt, sample)| self.stream(exam.seed, *prompt, *sample))
            .collect();
        let indices: Vec<[u64; 2]> = places
            .iter()
            .map(|(prompt, sample)| [*prompt as u64, *sample as u64])
            .collect();
        let Self {
            samples,
            max_completion_length,
            ..
        } = *self;
        // The answers to a question come together, so they may be more than are requested at once.
        let most = if exam.max_num_seqs == 0 {
            exam.batch_size
        } else {
            exam.max_num_seqs.min(exam.batch_size)
        };
        let exam = Exam {
            max_completion_length,
            max_num_seqs: most,
            samples,
            ..*exam
        };
        let graded = grade_chunk(
            policy,
            tokenizer,
            grader,
            (&asked, &indices),
            (self.sampling, &mut rngs),
            &exam,
        )?;
        let answer = |((prompt, sample), graded): ((usize, usize), Graded)| Answer {
            benchmark: self.name.clone(),
            prompt,
            sample,
            extracted: extracted(&graded.read),
            completion: graded.sample.completion,
            answer: graded.sample.answer,
            earned: graded.earned,
            correct: graded.correct,
            tokens: graded.tokens,
            truncated: graded.truncated,
        };
        Ok(places.into_iter().zip(graded).map(answer).collect())
    }

    /// Metrics over all answers, in order: `eval/NAME/pass@1` and so on. Metrics that need right
    /// answers are left out if unknown.
    pub fn metrics(&self, answers: &[Outcome]) -> Values {
        let (n, questions) = (self.samples, answers.chunks(self.samples));
        let mean = |score: &dyn Fn(&[Outcome]) -> f64| {
            questions.clone().map(score).sum::<f64>() / self.examples.len().max(1) as f64
        };
        let right = |question: &[Outcome]| {
            question
                .iter()
                .filter(|answer| answer.correct == Some(true))
                .count()
        };
        let mut metrics = Values::new();
        if answers.iter().all(|answer| answer.correct.is_some()) {
            let pass = |k| {
                (
                    format!("pass@{k}"),
                    mean(&|question| pass_at(n, right(question), k)),
                )
            };
            metrics.extend(counts(n).into_iter().map(pass));
            if n > 1 {
                metrics.push((
                    format!("mean@{n}"),
                    mean(&|question| right(question) as f64 / n as f64),
                ));
                metrics.push((
                    format!("maj@{n}"),
                    mean(&|question| f64::from(u8::from(majority_is_right(question)))),
                ));
            }
        }
        metrics.extend(mean_rewards(answers.iter().map(|answer| &answer.earned)));
        let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
        metrics.push((
            "mean_length".to_owned(),
            tokens as f64 / answers.len().max(1) as f64,
        ));
        metrics
            .into_iter()
            .map(|(metric, value)| (format!("eval/{}/{metric}", self.name), value))
            .collect()
    }
}

/// The part of an answer that metrics need.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    correct: Option<bool>,
    earned: Earned,
    extracted: Option<String>,
    tokens: usize,
    /// True if the length limit cut the answer off.
    pub truncated: bool,
}

impl From<&Answer> for Outcome {
    fn from(answer: &Answer) -> Self {
        let Answer {
            correct,
            earned,
            extracted,
            tokens,
            truncated,
            ..
        } = answer.clone();
        Self {
            correct,
            earned,
            extracted,
            tokens,
            truncated,
        }
    }
}

fn majority_is_right(question: &[Outcome]) -> bool {
    let values: Vec<Option<String>> = question
        .iter()
        .map(|answer| answer.extracted.clone())
        .collect();
    majority(&values).is_some_and(|place| question[place].correct == Some(true))
}

/// The final answer in a completion, for the votes of `maj@k`; `None` if there is none.
///
/// It is what the reward `math` reads, else the text after the last `####`, `answer is` or `=`.
/// Answers of one value are the same text.
fn extracted(completion: &str) -> Option<String> {
    let read = math_answer::extract(completion, Places::Anchored);
    if read.is_some() || math_answer::boxed(completion).is_some() {
        return read;
    }
    let marked = |mark: &str| completion.rsplit_once(mark).map(|(_, after)| after);
    let found = marked("####")
        .or_else(|| marked("answer is"))
        .or_else(|| marked("="));
    let found = found?
        .lines()
        .next()?
        .trim()
        .trim_end_matches('.')
        .trim_matches('$');
    let plain = || {
        found
            .chars()
            .filter(|c| !c.is_whitespace() && *c != ',')
            .collect()
    };
    Some(math_answer::extract(found, Places::Any).unwrap_or_else(plain))
        .filter(|text| !text.is_empty())
}

/// Unweighted mean over benchmarks of every metric that all of them have, as `eval/TEST/...`; empty
/// for fewer than two benchmarks.
pub fn mean(all: &[(String, Values)]) -> Values {
    let [(name, first), rest @ ..] = all else {
        return Vec::new();
    };
    if rest.is_empty() {
        return Vec::new();
    }
    let metric = |full: &str, name: &str| {
        full.strip_prefix(&format!("eval/{name}/"))
            .map(str::to_owned)
    };
    let of = |(name, values): &(String, Values), wanted: &str| {
        values
            .iter()
            .find(|(full, _)| metric(full, name).as_deref() == Some(wanted))
            .map(|(_, value)| *value)
    };
    let means = first.iter().filter_map(|(full, value)| {
        let wanted = metric(full, name)?;
        let others = rest
            .iter()
            .map(|one| of(one, &wanted))
            .collect::<Option<Vec<f64>>>()?;
        let sum = value + others.iter().sum::<f64>();
        Some((format!("eval/{TEST}/{wanted}"), sum / all.len() as f64))
    });
    means.collect()
}

/// A summary of a step's values: `pass@1` of the mean over benchmarks, or of the only benchmark,
/// such as `  TEST 43.5%`. If there is no `pass@1`, the summary shows the reward.
pub fn shown(values: &BTreeMap<String, f64>) -> Option<String> {
    let first = |name: &str| {
        Some((
            name.strip_prefix("eval/")?
                .strip_suffix("/pass@1")?
                .to_owned(),
            *values.get(name)?,
        ))
    };
    let mean = first(&format!("eval/{TEST}/pass@1"));
    if let Some((name, value)) = mean.or_else(|| values.keys().find_map(|name| first(name))) {
        return Some(format!("  {name} {:.1}%", 100.0 * value));
    }
    let reward = |name: &str| {
        name.strip_prefix("eval/")?
            .strip_suffix("/reward")
            .map(str::to_owned)
    };
    let all = format!("eval/{TEST}/reward");
    let (name, value) = values
        .get_key_value(&all)
        .or_else(|| values.iter().find(|(name, _)| reward(name).is_some()))?;
    Some(format!("  {} reward {value:.3}", reward(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn benchmark(prompts: usize, samples: usize) -> Benchmark {
        let example = Example {
            prompt: "p".into(),
            answer: "a".into(),
            solution: None,
            reply: None,
            columns: "{}".into(),
            row: None,
        };
        Benchmark {
            name: "aime".into(),
            samples,
            ..Benchmark::held_out(vec![example; prompts], 4)
        }
    }

    fn outcome(extracted: &str, correct: bool) -> Outcome {
        let reward = f32::from(u8::from(correct));
        let earned = Earned {
            reward,
            rewards: [("math".to_owned(), reward)].into_iter().collect(),
        };
        Outcome {
            correct: Some(correct),
            earned,
            extracted: Some(extracted.to_owned()),
            tokens: 3,
            truncated: false,
        }
    }

    #[test]
    fn metrics_by_hand() {
        let answers = [
            outcome("7", true),
            outcome("1", false),
            outcome("7", true),
            outcome("2", false),
            // The majority answer is wrong.
            outcome("4", false),
            outcome("4", false),
            outcome("5", true),
            outcome("6", false),
        ];
        let metrics: BTreeMap<String, f64> =
            benchmark(2, 4).metrics(&answers).into_iter().collect();
        let is = |name: &str, value: f64| {
            assert!((metrics[name] - value).abs() < 1e-12, "{name}: {metrics:?}")
        };
        is("eval/aime/pass@1", 3.0 / 8.0);
        is("eval/aime/mean@4", 3.0 / 8.0);
        is("eval/aime/pass@2", ((1.0 - 1.0 / 6.0) + 0.5) / 2.0);
        is("eval/aime/pass@4", 1.0);
        is("eval/aime/maj@4", 0.5);
        is("eval/aime/reward", 3.0 / 8.0);
        is("eval/aime/rewards/math/mean", 3.0 / 8.0);
        is("eval/aime/mean_length", 3.0);
        let one = benchmark(1, 1).metrics(&[outcome("7", true)]);
        assert_eq!(
            one.iter()
                .map(|(name, _)| name.as_str())
                .collect::<Vec<_>>(),
            [
                "eval/aime/pass@1",
                "eval/aime/reward",
                "eval/aime/rewards/math/mean",
                "eval/aime/mean_length"
            ]
        );
        let unsaid = Outcome {
            correct: None,
            ..outcome("7", true)
        };
        let names: Vec<String> = benchmark(1, 1)
            .metrics(&[unsaid])
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(
            names,
            [
                "eval/aime/reward",
                "eval/aime/rewards/math/mean",
                "eval/aime/mean_length"
            ]
        );
    }

    #[test]
    fn the_mean_is_of_what_all_have() {
        let of = |name: &str, values: &[(&str, f64)]| {
            (
                name.to_owned(),
                values
                    .iter()
                    .map(|(metric, value)| (format!("eval/{name}/{metric}"), *value))
                    .collect(),
            )
        };
        let all = [
            of("a", &[("pass@1", 0.5), ("maj@4", 1.0)]),
            of("b", &[("pass@1", 0.0)]),
        ];
        assert_eq!(mean(&all), [("eval/TEST/pass@1".to_owned(), 0.25)]);
        assert_eq!(mean(&all[..1]), []);
    }

    #[test]
    fn the_mean_is_shown_or_the_only_one() {
        let shown = |names: &[&str]| {
            shown(
                &names
                    .iter()
                    .map(|name| ((*name).to_owned(), 0.25))
                    .collect(),
            )
        };
        assert_eq!(
            shown(&["reward", "eval/a/pass@1", "eval/TEST/pass@1"]).as_deref(),
            Some("  TEST 25.0%")
        );
        assert_eq!(
            shown(&["eval/a/maj@4", "eval/a/pass@1"]).as_deref(),
            Some("  a 25.0%")
        );
        assert_eq!(
            shown(&["eval/a/reward", "eval/TEST/reward"]).as_deref(),
            Some("  TEST reward 0.250")
        );
        assert_eq!(shown(&["reward", "eval_accuracy"]), None);
    }

    #[test]
    fn answers_are_what_completions_arrive_at() {
        let alike = [
            (
                "1/2",
                &[
                    "so \\boxed{\\frac{1}{2}}.",
                    "#### 0.5",
                    "The answer is $\\frac{2}{4}$.",
                    "\\boxed{\n1/2\n}",
                ][..],
            ),
            (
                "1234",
                &[
                    "work\n#### 1,234\n",
                    "We add.\nAnswer: 1,234",
                    "x = \\boxed{1234}",
                    "\\boxed{x = 1234}",
                ],
            ),
            ("1420", &["10 12 14=1420"]),
            (
                "{11,3}",
                &[
                    "$\\boxed{3}$ or $\\boxed{11}$",
                    "\\boxed{11, 3}",
                    "\\boxed{\\{3, 11\\}}",
                ],
            ),
            (
                "1;2",
                &[
                    "\\boxed{\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}}",
                    "\\boxed{\n\\begin{bmatrix} 1 \\\\ 2.0 \\end{bmatrix}\n}",
                ],
            ),
        ];
        for (expected, completions) in alike {
            for completion in completions {
                assert_eq!(
                    extracted(completion).as_deref(),
                    Some(expected),
                    "{completion}"
                );
            }
        }
        assert_eq!(extracted("\\boxed{}"), None);
        assert_eq!(extracted("no idea"), None);
    }
}
