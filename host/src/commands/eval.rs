//! `host eval`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use capo_loader::LoadedPlugin;
use capo_loader::warning::WarningSink;
use capo_loader::watchdog::Watchdog;
use capo_system::files;
use host_data::{Arithmetic, Purpose, Tokenizer};
use host_model::{Policy, device, embedded, hub};
use sha2::{Digest, Sha256};
use toml::Value;

use super::answers::Answers;
use super::args::EvalArgs;
use super::failure::Failure;
use super::output;
use super::own_run;
use crate::benchmark::{self, Benchmark, HELD_OUT, Outcome};
use crate::config::{self, BenchmarkConfig, Config, Draft, EvalConfig, ModelConfig};
use crate::environment::Environment;
use crate::exam::{Exam, Grader, RightAnswer};
use crate::metrics::Values;
use crate::reward::{RewardConfig, Rewards};
use crate::run::{CONFIG_FILE, checkpoint};
use crate::terminal::{Answered, say};

/// Prefix of the names of models in this executable.
const EMBEDDED: &str = "embedded:";

struct Open {
    policy: Policy,
    tokenizer: Tokenizer,
    rewards: Rewards,
    environment: Option<Environment>,
    questions: Vec<Benchmark>,
    config: Config,
    watchdog: Watchdog,
    model: String,
    plugins: Vec<LoadedPlugin>,
}

pub(super) fn run(args: &EvalArgs) -> Result<(), Failure> {
    let open = open(args).map_err(Failure::Input)?;
    let answers = args
        .output
        .as_ref()
        .map(|path| Answers::open(path, &open.identity()?, &open.questions));
    let answers = answers.transpose().map_err(Failure::Input)?;
    measure(open, answers).map_err(Failure::Run)
}

fn open(args: &EvalArgs) -> Result<Open> {
    // A run is measured with the settings of its training.
    let run = args
        .model
        .as_deref()
        .filter(|_| args.config.config.is_none())
        .and_then(|model| checkpoint::run_of(Path::new(model)));
    let registry = match run.or_else(|| own_run::of_config(args.config.config.as_deref()?)) {
        Some(run) => own_run::open_plugins(run, &args.plugins, args.run)?,
        None => args.config.open(&args.plugins)?,
    };
    let settings = run
        .map(|run| run.join(CONFIG_FILE))
        .or_else(|| args.config.config.clone());
    let mut draft = Draft::read(settings.as_deref(), config::DEFAULT, &args.config.set)?;
    let names_data = run.is_some() || draft.names_data() || !args.benchmark.is_empty();
    let named = match &args.model {
        Some(named) => named.clone(),
        None => draft.section::<ModelConfig>("model")?.model_name_or_path,
    };
    let model = checkpoint::model_of(&named)?;
    let files = embedded::model_files(&model)?;
    ensure!(
        names_data || model.starts_with(EMBEDDED),
        "nothing says what `{model}` is measured on (give rows with `--benchmark FILE`, or \
         `--config FILE` with a `[data]` section)"
    );
    if run.is_some() {
        draft = draft.without_recipe();
    } else if !model.starts_with(EMBEDDED) && !names_embedded_task(&args.config.set) {
        draft = Draft::read(
            settings.as_deref(),
            &defaults(&named, args, &draft)?,
            &args.config.set,
        )?;
    }
    let mut config = config::resolve(&registry, draft.on_device(args.device.as_deref())?)?.config;
    if let Some(run) = run {
        own_run::check_programs(run, &config, args.run)?;
    }
    ensure!(
        args.model.is_some() || !config.model.fresh_weights,
        "`model.fresh_weights` is true: there is no model to measure (name one with `--model`)"
    );
    let files = config.data.amend(files)?;
    if !args.benchmark.is_empty() {
        config.eval.benchmark = args
            .benchmark
            .iter()
            .map(|file| BenchmarkConfig::of_file(file))
            .collect::<Result<_>>()?;
        config.check_eval()?;
    }
    if let Some(path) = &args.output {
        files::check_replaceable(path)?;
        let read: Vec<PathBuf> = config
            .paths()
            .map(|(name, _)| name.as_str().into())
            .collect();
        output::check_not_read(
            "--output",
            path,
            &named,
            read.into_iter().chain(programs(&config)).chain(settings),
        )?;
    }
    let asks_benchmarks = args.num_prompts.is_none() && !config.eval.benchmark.is_empty();
    let count = args.num_prompts.unwrap_or(config.eval.num_prompts);
    ensure!(
        asks_benchmarks || count > 0,
        "`eval.num_prompts` is 0: there is nothing to measure (give `--num-prompts`, or a file \
         with `--benchmark`)"
    );
    let dtype = config.train.dtype;
    device::tf32::choose(config.train.tf32, dtype);
    let policy =
        Policy::load(&files, &device::open(&config.train.device)?)?.with_dtype(dtype.into());
    let tokenizer = config.data.tokenizer(&files)?;
    let watchdog = Watchdog::start(config.train.component_timeout, config.component_ids());
    let environment = Environment::open(&mut config, &registry, &files, &tokenizer, &watchdog)?;
    let questions = if asks_benchmarks {
        Benchmark::open_all(&config.eval.benchmark, &config, &files, &tokenizer, &policy)?
    } else {
        let longest = config.rollout.max_completion_length;
        let at_once = count.min(config.eval.batch_size());
        policy.check_lengths("rollout", config.data.max_prompt_length, longest, at_once)?;
        let dataset = config.data.open(
            config.train.seed,
            Purpose::Measuring,
            &files,
            &tokenizer,
            &policy,
        )?;
        vec![Benchmark::held_out(dataset.held_out(count)?, longest)]
    };
    let rewards = Rewards::build(&registry, &config.reward, &config.train.device, &watchdog)?;
    let plugins = registry.plugins();
    Ok(Open {
        policy,
        tokenizer,
        rewards,
        environment,
        questions,
        config,
        watchdog,
        model,
        plugins,
    })
}

/// True if `--set` chooses the embedded task, whose settings are then meant.
fn names_embedded_task(sets: &[String]) -> bool {
    let sets = sets
        .iter()
        .rev()
        .filter_map(|set| config::parse_set(set).ok());
    let mut names = sets.filter(|(path, _)| path == "data.dataset_name");
    let last = names.next().map(|(_, value)| value);
    let name = last.as_ref().and_then(Value::as_str);
    name.is_some_and(|name| Arithmetic::NAMES.contains(&name))
}

/// Settings that say nothing but the model and the rows, in place of the embedded task's: its
/// lengths and its reward are for no other model.
fn defaults(model: &str, args: &EvalArgs, draft: &Draft) -> Result<String> {
    let rows = match args.benchmark.first() {
        Some(file) => file.clone(),
        None => draft
            .section::<EvalConfig>("eval")?
            .benchmark
            .first()
            .map_or_else(String::new, |one| one.file.clone()),
    };
    let [model, rows] = [model, &rows].map(|text| Value::String(text.to_owned()));
    Ok(format!(
        "[model]\nmodel_name_or_path = {model}\n\n[data]\ndataset_name = {rows}\n"
    ))
}

/// Measures every benchmark; prints a line for each and for their mean.
fn measure(mut open: Open, mut answers: Option<Answers>) -> Result<()> {
    let mut sink = WarningSink {
        warned: &mut BTreeSet::new(),
        watchdog: &open.watchdog,
    };
    let right = RightAnswer::of(&open.config);
    let mut grader = Grader {
        rewards: &mut open.rewards,
        environment: open.environment.as_mut(),
        sink: &mut sink,
        right: &right,
    };
    let exam = Exam::of(&open.config, 0);
    say(&format!("right      {right}"));
    let mut done: Vec<Vec<Outcome>> = (0..open.questions.len())
        .map(|index| {
            answers
                .as_mut()
                .map_or_else(Vec::new, |answers| answers.done(index))
        })
        .collect();
    let all_answers = open.questions.iter().map(Benchmark::answers).sum();
    let progress = Answered::of(done.iter().map(Vec::len).sum(), all_answers);
    let mut all = Vec::new();
    for (benchmark, outcomes) in open.questions.iter().zip(&mut done) {
        for chunk in benchmark.chunks(outcomes.len(), exam.batch_size) {
            let given =
                benchmark.answer(chunk, &open.policy, &open.tokenizer, &mut grader, &exam)?;
            if let Some(answers) = &mut answers {
                answers.append(&given)?;
            }
            outcomes.extend(given.iter().map(Outcome::from));
        }
        let metrics = benchmark.metrics(outcomes);
        progress.aside(|| {
            say(&line(
                &benchmark.name,
                &metrics,
                &asked(benchmark, outcomes),
            ))
        });
        all.push((benchmark.name.clone(), metrics));
    }
    drop(progress);
    let mean = benchmark::mean(&all);
    if !mean.is_empty() {
        say(&line("TEST", &mean, "their mean"));
    }
    answers.map_or(Ok(()), Answers::finish)
}

fn asked(benchmark: &Benchmark, outcomes: &[Outcome]) -> String {
    let left_out = match benchmark.left_out {
        0 => String::new(),
        count => format!(", {count} left out"),
    };
    let cut_off = match outcomes.iter().filter(|outcome| outcome.truncated).count() {
        0 => String::new(),
        count => {
            format!(
                ", {count} of {} answers cut off at {} tokens",
                outcomes.len(),
                benchmark.max_completion_length
            )
        }
    };
    format!("{} prompts{left_out}{cut_off}", benchmark.examples.len())
}

/// The reward in `rewards/REWARD/mean`.
fn reward_of(metric: &str) -> Option<&str> {
    metric.strip_prefix("rewards/")?.strip_suffix("/mean")
}

/// The line `NAME  pass@1 12.5%  maj@8 20.0%  reward 0.125  (30 prompts)`, with each reward if
/// there are several.
fn line(name: &str, metrics: &Values, of: &str) -> String {
    // `eval/BENCHMARK/NAME` without its first two parts.
    let metrics: Vec<(&str, f64)> = metrics
        .iter()
        .filter_map(|(metric, value)| Some((metric.splitn(3, '/').last()?, *value)))
        .collect();
    let rewards = metrics
        .iter()
        .filter(|(metric, _)| reward_of(metric).is_some());
    let several = rewards.count() > 1;
    let mut shown = String::new();
    for (metric, value) in metrics {
        let percent = 100.0 * value;
        shown += &match reward_of(metric) {
            Some(reward) if several => format!("  {reward} {value:.3}"),
            Some(_) => continue,
            None if name == HELD_OUT && metric == "pass@1" => format!("  accuracy {percent:.1}%"),
            None if metric.contains('@') => format!("  {metric} {percent:.1}%"),
            None if metric == "reward" => format!("  {metric} {value:.3}"),
            None => continue,
        };
    }
    if name == HELD_OUT {
        format!("{name} {}  ({of}, greedy)", shown.trim_start())
    } else {
        format!("{name:<16}{shown}  ({of})")
    }
}

impl Open {
    /// Hash of all that determines the answers and their grades: models, settings, questions,
    /// plugins and programs.
    fn identity(&self) -> Result<String> {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        add(&toml::to_string(&self.config)?);
        self.plugins.iter().for_each(|plugin| add(&plugin.sha256));
        for model in self
            .config
            .reward
            .iter()
            .filter_map(RewardConfig::model_name)
            .chain([self.model.as_str()])
        {
            let path = hub::find(model)?.unwrap_or_else(|| PathBuf::from(model));
            stamps(&path)?.iter().for_each(|file| add(file));
        }
        for program in programs(&self.config) {
            stamps(&program)?.iter().for_each(|file| add(file));
        }
        for benchmark in &self.questions {
            add(&benchmark.name);
            for example in &benchmark.examples {
                [&example.prompt, &example.answer, &example.columns]
                    .into_iter()
                    .for_each(|text| add(text));
            }
        }
        Ok(hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }
}

/// The programs that rewards and the environment start, as far as they are files: words of
/// `command`.
fn programs(config: &Config) -> impl Iterator<Item = PathBuf> {
    let environment = config
        .environment
        .iter()
        .map(|environment| &environment.component.table);
    let tables = config
        .reward
        .iter()
        .map(|reward| &reward.table)
        .chain(environment);
    let words = tables
        .filter_map(|table| table.get("command")?.as_array())
        .flatten()
        .filter_map(Value::as_str);
    words.map(PathBuf::from).filter(|path| path.is_file())
}

/// A file, or the files of a model, with sizes and modification times, because hashing large files
/// would take long.
fn stamps(model: &Path) -> Result<Vec<String>> {
    let mut files = vec![std::path::absolute(model)?.display().to_string()];
    let mut add = |path: &Path| -> Result<()> {
        let metadata = std::fs::metadata(path)?;
        files.push(format!(
            "{} {} {:?}",
            path.display(),
            metadata.len(),
            metadata.modified()?
        ));
        Ok(())
    };
    if model.is_file() {
        add(model)?;
    }
    if model.is_dir() {
        for entry in std::fs::read_dir(model)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|ending| ending == "safetensors" || ending == "json")
            {
                add(&path)?;
            }
        }
    }
    files.sort();
    Ok(files)
}
