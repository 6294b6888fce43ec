//! `host eval`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use capo_loader::files;
use capo_loader::watchdog::Watchdog;
use sha2::{Digest, Sha256};

use super::Failure;
use super::answers::Answers;
use super::args::EvalArgs;
use crate::benchmark::{self, Benchmark, Outcome};
use crate::config::{Appended, BenchmarkConfig, Config};
use crate::data::{Example, Purpose, Tokenizer};
use crate::exam::{self, Exam, Grader};
use crate::metrics::Values;
use crate::metrics::sink::WarningSink;
use crate::model::{Policy, device, embedded, hub};
use crate::report::terminal::say;
use crate::reward::Rewards;

/// What is asked.
enum Questions {
    /// The first held-out prompts, greedily.
    HeldOut(Vec<Example>),
    /// Benchmarks.
    Benchmarks(Vec<Benchmark>),
}

/// Everything that an evaluation needs.
struct Open {
    policy: Policy,
    tokenizer: Tokenizer,
    rewards: Rewards,
    questions: Questions,
    config: Config,
    watchdog: Watchdog,
    /// The model's name.
    model: String,
}

/// Measures held-out accuracy, or benchmarks.
pub(super) fn run(args: &EvalArgs) -> Result<(), Failure> {
    let mut open = open(args).map_err(Failure::Input)?;
    let output = args.output.as_deref();
    match std::mem::replace(&mut open.questions, Questions::HeldOut(Vec::new())) {
        Questions::HeldOut(examples) => held_out(open, &examples, output).map_err(Failure::Run),
        Questions::Benchmarks(benchmarks) => {
            let answers = output.map(|path| Answers::open(path, &open.identity(&benchmarks)?, &benchmarks));
            let answers = answers.transpose().map_err(Failure::Input)?;
            measure(open, &benchmarks, answers).map_err(Failure::Run)
        }
    }
}

fn open(args: &EvalArgs) -> Result<Open> {
    if let Some(path) = &args.output {
        files::check_replaceable(path)?;
    }
    let registry = args.config.open(&args.plugins)?;
    let mut config = args.config.resolve(&registry, Appended::default())?.config;
    ensure!(
        args.model.is_some() || !config.model.fresh_weights,
        "`model.fresh_weights` is true: there is no model to measure (name one with `--model`)"
    );
    if !args.benchmark.is_empty() {
        config.eval.benchmark = args.benchmark.iter().map(|file| BenchmarkConfig::of_file(file)).collect();
        config.check_eval()?;
    }
    if let Some(device) = &args.device {
        config.train.device.clone_from(device);
    }
    let asks_benchmarks = args.num_prompts.is_none() && !config.eval.benchmark.is_empty();
    let count = args.num_prompts.unwrap_or(config.eval.num_prompts);
    ensure!(
        asks_benchmarks || count > 0,
        "`eval.num_prompts` is 0: there is nothing to measure (give `--num-prompts`, or a file with `--benchmark`)"
    );
    let model = args.model.as_deref().unwrap_or(&config.model.model_name_or_path).to_owned();
    let files = config.data.amend(embedded::model_files(&model)?)?;
    let dtype = config.train.dtype;
    let policy = Policy::load(&files, &device::open(&config.train.device, dtype)?)?.with_dtype(dtype.into());
    let tokenizer = Tokenizer::open(&files)?;
    let questions = if asks_benchmarks {
        Questions::Benchmarks(Benchmark::open_all(&config.eval.benchmark, &config, &files, &tokenizer, &policy)?)
    } else {
        let longest = ("rollout", config.rollout.max_completion_length);
        policy.check_lengths(config.data.max_prompt_length, longest, count.min(config.eval.batch_size()))?;
        let dataset = config.data.open(config.train.seed, Purpose::Measuring, &files, &tokenizer, &policy)?;
        Questions::HeldOut(dataset.held_out(count)?)
    };
    let watchdog = Watchdog::start(config.train.component_timeout, config.component_ids());
    let rewards = Rewards::build(&registry, &config.reward, &config.train.device, &watchdog)?;
    Ok(Open { policy, tokenizer, rewards, questions, config, watchdog, model })
}

fn held_out(mut open: Open, examples: &[Example], output: Option<&Path>) -> Result<()> {
    let mut sink = WarningSink { warned: &mut BTreeSet::new(), watchdog: &open.watchdog };
    let decides = open.config.eval.reward.as_deref();
    let mut grader = Grader { rewards: &mut open.rewards, sink: &mut sink, decides };
    let graded = exam::grade(&open.policy, &open.tokenizer, &mut grader, examples, &Exam::of(&open.config, 0))?;
    let (share, prompts) = (100.0 * exam::share_right(&graded), graded.len());
    say(&format!("held-out accuracy {share:.1}% of {prompts} prompts, greedy"));
    if let Some(path) = output {
        let lines =
            graded.iter().map(|graded| Ok(serde_json::to_string(graded)? + "\n")).collect::<Result<String>>()?;
        files::write_atomic(path, lines.as_bytes())?;
    }
    Ok(())
}

/// Asks every benchmark, and says a line about each, and about their mean.
fn measure(mut open: Open, benchmarks: &[Benchmark], mut answers: Option<Answers>) -> Result<()> {
    let mut sink = WarningSink { warned: &mut BTreeSet::new(), watchdog: &open.watchdog };
    let decides = open.config.eval.reward.as_deref();
    let mut grader = Grader { rewards: &mut open.rewards, sink: &mut sink, decides };
    let exam = Exam::of(&open.config, 0);
    let mut all = Vec::new();
    for (index, benchmark) in benchmarks.iter().enumerate() {
        let mut outcomes = answers.as_mut().map_or_else(Vec::new, |answers| answers.done(index));
        for chunk in benchmark.chunks(outcomes.len(), exam.batch_size) {
            let given = benchmark.answer(chunk, &open.policy, &open.tokenizer, &mut grader, &exam)?;
            if let Some(answers) = &mut answers {
                answers.append(&given)?;
            }
            outcomes.extend(given.iter().map(Outcome::from));
        }
        let metrics = benchmark.metrics(&outcomes);
        say(&line(&benchmark.name, &metrics, &asked(benchmark)));
        all.push((benchmark.name.clone(), metrics));
    }
    let mean = benchmark::mean(&all);
    if !mean.is_empty() {
        say(&line("TEST", &mean, "their mean"));
    }
    answers.map_or(Ok(()), Answers::finish)
}

fn asked(benchmark: &Benchmark) -> String {
    let left_out = match benchmark.left_out {
        0 => String::new(),
        count => format!(", {count} left out"),
    };
    format!("{} prompts{left_out}", benchmark.examples.len())
}

/// `NAME  pass@1 12.5%  maj@8 20.0%  (30 prompts)`
fn line(name: &str, metrics: &Values, of: &str) -> String {
    let shown = metrics.iter().filter_map(|(metric, value)| {
        let short = metric.rsplit('/').next().unwrap_or(metric);
        short.contains('@').then(|| format!("  {short} {:.1}%", 100.0 * value))
    });
    format!("{name:<16}{}  ({of})", shown.collect::<String>())
}

impl Open {
    /// A hash of what decides the answers: the model, the settings and the questions.
    fn identity(&self, benchmarks: &[Benchmark]) -> Result<String> {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        add(&toml::to_string(&self.config)?);
        let path = hub::find(&self.model)?.unwrap_or_else(|| PathBuf::from(&self.model));
        weights(&path)?.iter().for_each(|file| add(file));
        for benchmark in benchmarks {
            add(&benchmark.name);
            for example in &benchmark.examples {
                [&example.prompt, &example.answer, &example.columns].into_iter().for_each(|text| add(text));
            }
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// The files of a model with their sizes and when they were written: large ones are not read again for this.
fn weights(model: &Path) -> Result<Vec<String>> {
    let mut files = vec![std::path::absolute(model)?.display().to_string()];
    if !model.is_dir() {
        return Ok(files);
    }
    for entry in std::fs::read_dir(model)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "safetensors" || ending == "json") {
            let metadata = std::fs::metadata(&path)?;
            files.push(format!("{} {} {:?}", path.display(), metadata.len(), metadata.modified()?));
        }
    }
    files.sort();
    Ok(files)
}
