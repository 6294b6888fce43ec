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
use crate::exam::{Earned, Exam, Grader, Questions, grade_together, mean_rewards};
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
    /// Number of rows that cannot be used as questions.
    pub left_out: usize,
    /// Number of answers to each question.
    pub samples: usize,
    sampling: SamplingParams,
    pub max_completion_length: usize,
}

/// One answer to a question of a benchmark.
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
        let mut benchmarks = Vec::new();
        for benchmark in configs {
            let (section, longest) = match benchmark.max_completion_length {
                Some(own) => ("eval.benchmark", own),
                None => ("rollout", config.rollout.max_completion_length),
            };
            policy.check_lengths(
                section,
                config.data.max_prompt_length,
                longest,
                config.eval.batch_size(),
            )?;
            let (examples, left_out) = benchmark.examples(&config.data, &demands)?;
            benchmarks.push(Self {
                name: benchmark.name.clone(),
                examples,
                left_out,
                samples: benchmark.samples,
                sampling: benchmark.sampling(),
                max_completion_length: longest,
            });
        }
        Ok(benchmarks)
    }

    /// A benchmark of held-out prompts, with one greedy answer to each.
    pub fn held_out(examples: Vec<Example>, max_completion_length: usize) -> Self {
        Self {
            name: HELD_OUT.to_owned(),
            examples,
            left_out: 0,
            samples: 1,
            sampling: SamplingParams::GREEDY,
            max_completion_length,
        }
    }

    pub fn answers(&self) -> usize {
        self.examples.len() * self.samples
    }

    /// Ranges of about `size` answers, from `first` on, that are generated together. A range has
    /// all answers to its questions.
    pub fn chunks(&self, first: usize, size: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = self.answers();
        let size = (size / self.samples).max(1) * self.samples;
        (first..all)
            .step_by(size)
            .map(move |start| start..all.min(start + size))
    }

    /// Random stream of sample `sample` for question `prompt`. Each answer has its own, so neither
    /// other answers nor batches affect it.
    fn stream(&self, seed: u64, [prompt, sample]: [u64; 2]) -> ChaCha12Rng {
        host_rng::stream(seed, &format!("eval.{}", self.name), &[prompt, sample])
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
        let mut asked = Vec::new();
        let mut indices = Vec::new();
        let mut rngs = Vec::new();
        for number in range.clone() {
            let prompt = number / self.samples;
            let index = [prompt as u64, (number % self.samples) as u64];
            asked.push(&self.examples[prompt]);
            indices.push(index);
            rngs.push(self.stream(exam.seed, index));
        }
        // The answers to a question come together, so `range` may be longer than a batch.
        let most = if exam.max_num_seqs == 0 {
            exam.batch_size
        } else {
            exam.max_num_seqs.min(exam.batch_size)
        };
        let exam = Exam {
            max_completion_length: self.max_completion_length,
            max_num_seqs: most,
            samples: self.samples,
            ..*exam
        };
        let questions = Questions {
            examples: &asked,
            indices: &indices,
            sampling: self.sampling,
            rngs: &mut rngs,
        };
        let graded = grade_together(policy, tokenizer, grader, questions, &exam)?;
        let mut answers = Vec::new();
        for (number, graded) in range.zip(graded) {
            answers.push(Answer {
                benchmark: self.name.clone(),
                prompt: number / self.samples,
                sample: number % self.samples,
                extracted: extracted(&graded.read),
                completion: graded.sample.completion,
                answer: graded.sample.answer,
                earned: graded.earned,
                correct: graded.correct,
                tokens: graded.tokens,
                truncated: graded.truncated,
            });
        }
        Ok(answers)
    }

    /// Metrics over all answers: `eval/NAME/pass@1` and so on. If it is unknown whether some answer
    /// is right, metrics that need to know are left out. `answers` are in order.
    pub fn metrics(&self, answers: &[Outcome]) -> Values {
        let n = self.samples;
        let mut metrics = Values::new();
        if answers.iter().all(|answer| answer.correct.is_some()) {
            for k in counts(n) {
                let pass = self.mean(answers, |question| pass_at(n, right(question), k));
                metrics.push((format!("pass@{k}"), pass));
            }
            if n > 1 {
                let mean = self.mean(answers, |question| right(question) as f64 / n as f64);
                metrics.push((format!("mean@{n}"), mean));
                let majority = self.mean(answers, |question| {
                    f64::from(u8::from(majority_is_right(question)))
                });
                metrics.push((format!("maj@{n}"), majority));
            }
        }
        metrics.extend(mean_rewards(answers.iter().map(|answer| &answer.earned)));
        let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
        let mean_length = tokens as f64 / answers.len().max(1) as f64;
        metrics.push(("mean_length".to_owned(), mean_length));
        metrics
            .into_iter()
            .map(|(metric, value)| (format!("eval/{}/{metric}", self.name), value))
            .collect()
    }

    /// Mean over the questions of a score of the answers to each.
    fn mean(&self, answers: &[Outcome], score: impl Fn(&[Outcome]) -> f64) -> f64 {
        let sum: f64 = answers.chunks(self.samples).map(score).sum();
        sum / self.examples.len().max(1) as f64
    }
}

/// Number of right answers to a question.
fn right(question: &[Outcome]) -> usize {
    question
        .iter()
        .filter(|answer| answer.correct == Some(true))
        .count()
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
/// It is the answer that the reward `math` reads, or else the text after the last `####`,
/// `answer is` or `=`. Answers of one value are the same text.
fn extracted(completion: &str) -> Option<String> {
    let read = math_answer::extract(completion, Places::Anchored);
    if read.is_some() || math_answer::boxed(completion).is_some() {
        return read;
    }
    let (_, marked) = ["####", "answer is", "="]
        .iter()
        .find_map(|mark| completion.rsplit_once(mark))?;
    let found = marked
        .lines()
        .next()?
        .trim()
        .trim_end_matches('.')
        .trim_matches('$');
    let answer = math_answer::extract(found, Places::Any).unwrap_or_else(|| {
        found
            .chars()
            .filter(|c| !c.is_whitespace() && *c != ',')
            .collect()
    });
    Some(answer).filter(|text| !text.is_empty())
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
    let mut means = Values::new();
    for (full, value) in first {
        let Some(metric) = metric_of(full, name) else {
            continue;
        };
        let others: Option<Vec<f64>> = rest
            .iter()
            .map(|(name, values)| value_of(values, name, metric))
            .collect();
        if let Some(others) = others {
            let sum = value + others.iter().sum::<f64>();
            means.push((format!("eval/{TEST}/{metric}"), sum / all.len() as f64));
        }
    }
    means
}

/// The metric in the full name `eval/NAME/metric` of the benchmark `name`.
fn metric_of<'a>(full: &'a str, name: &str) -> Option<&'a str> {
    full.strip_prefix("eval/")?
        .strip_prefix(name)?
        .strip_prefix('/')
}

/// The value of a metric of the benchmark `name`.
fn value_of(values: &Values, name: &str, metric: &str) -> Option<f64> {
    values
        .iter()
        .find(|(full, _)| metric_of(full, name) == Some(metric))
        .map(|(_, value)| *value)
}

/// A summary of a step's values: `pass@1` of the mean over benchmarks, or of the only benchmark,
/// such as `  TEST 43.5%`. If there is no `pass@1`, the summary shows the reward.
pub fn shown(values: &BTreeMap<String, f64>) -> Option<String> {
    if let Some((name, value)) = shown_metric(values, "pass@1") {
        return Some(format!("  {name} {:.1}%", 100.0 * value));
    }
    let (name, value) = shown_metric(values, "reward")?;
    Some(format!("  {name} reward {value:.3}"))
}

/// The benchmark and its value of `metric`: the mean over benchmarks, or else the first benchmark
/// that has the metric.
fn shown_metric<'a>(values: &'a BTreeMap<String, f64>, metric: &str) -> Option<(&'a str, f64)> {
    let mean = format!("eval/{TEST}/{metric}");
    let all = values.get_key_value(&mean).into_iter().chain(values);
    all.filter_map(|(full, value)| {
        let name = full
            .strip_prefix("eval/")?
            .strip_suffix(metric)?
            .strip_suffix('/')?;
        Some((name, *value))
    })
    .next()
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
    fn metrics_agree_with_numbers_computed_by_hand() {
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
        for (name, value) in [
            ("eval/aime/pass@1", 3.0 / 8.0),
            ("eval/aime/mean@4", 3.0 / 8.0),
            ("eval/aime/pass@2", ((1.0 - 1.0 / 6.0) + 0.5) / 2.0),
            ("eval/aime/pass@4", 1.0),
            ("eval/aime/maj@4", 0.5),
            ("eval/aime/reward", 3.0 / 8.0),
            ("eval/aime/rewards/math/mean", 3.0 / 8.0),
            ("eval/aime/mean_length", 3.0),
        ] {
            assert!((metrics[name] - value).abs() < 1e-12, "{name}: {metrics:?}");
        }
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
    fn the_mean_covers_metrics_that_all_benchmarks_have() {
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
    fn shows_the_mean_or_else_the_only_benchmark() {
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
    fn finds_the_final_answer_of_a_completion() {
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
