//! Supervised fine-tuning on worked solutions, which produces a base model.

mod checkpoint;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use capo_loader::registry::Registry;
use capo_loader::warning::WarningSink;
use capo_loader::watchdog::Watchdog;
use capo_system::folders::{self, NewFolder};
use capo_system::{memory, terminal};
use host_data::{Dataset, Example, Purpose, Tokenizer};
use host_model::device::{self, CPU, Dtype};
use host_model::embedded;
use host_model::optim::adamw::AdamWConfig;
use host_model::optim::{Optimizer, OptimizerConfig};
use host_model::schedule::{Schedule, ScheduleKind};
use host_model::{Forward, Gradients, ModelFiles, Policy, Shape, Wants};
use host_trainer::require;
use serde::{Deserialize, Serialize};

use crate::config::setting::{Setting, Settings, settings};
use crate::config::{ANSWERS_AT_ONCE, DataConfig, Draft, check};
use crate::exam::{self, Exam, Grader, RightAnswer};
use crate::folder::{self, Companions};
use crate::reward::{RewardConfig, Rewards};
use crate::run::checkpoint::is_late;
use crate::stages::rollout::{encode, join};
use checkpoint::{Checkpoints, Progress};

/// The settings of `host sft` when no `--config` is given. The embedded model was made with them.
pub const DEFAULT: &str = include_str!("../../configs/tiny/sft.toml");

/// Most examples in one step, because all of them are in memory at once.
const MOST_EXAMPLES: usize = 1 << 20;

/// The section `[model]`: exactly one of the two keys is set.
#[settings]
#[derive(Debug, Serialize, Deserialize)]
struct ModelConfig {
    /// Model whose architecture and tokenizer are used, with fresh weights. Either this or the next
    /// key is set.
    config_name_or_path: Option<String>,
    /// Model whose training goes on.
    model_name_or_path: Option<String>,
}

/// The section `[train]`.
#[settings]
#[derive(Debug, Serialize, Deserialize)]
struct TrainConfig {
    /// As in a run.
    #[setting(default = device::CPU.into())]
    device: String,
    /// As in a run.
    #[setting(default = Dtype::F32)]
    dtype: Dtype,
    /// As in a run.
    #[setting(default = 42)]
    seed: u64,
    /// As in a run.
    #[setting(default = 100, at_least = 1)]
    max_steps: u64,
    /// Examples of a step; there is one backward pass.
    #[setting(default = 8, at_least = 1, at_most = MOST_EXAMPLES)]
    per_device_train_batch_size: usize,
    /// As in a run.
    #[setting(default = false)]
    gradient_checkpointing: bool,
    /// The peak learning rate. The optimizer is AdamW.
    #[setting(default = 2e-5, at_least = 0)]
    learning_rate: f64,
    /// As in a run.
    #[setting(default = ScheduleKind::Linear)]
    lr_scheduler_type: ScheduleKind,
    /// As in a run.
    #[setting(default = 0.0, at_least = 0, at_most = 1)]
    warmup_ratio: f64,
    /// As in a run.
    #[setting(default = 0.0, at_least = 0)]
    weight_decay: f64,
    /// As in a run.
    #[setting(default = 1.0, at_least = 0)]
    max_grad_norm: f64,
    /// Time between checkpoints, of which the newest is kept until the model is written:
    /// [the most that a kill costs](../docs/reliability.md#what-a-kill-costs); 0 is off.
    #[setting(default = 10.0, unit = "minutes", at_least = 0)]
    save_minutes: f64,
}

/// The section `[eval]`.
#[settings]
#[derive(Debug, Serialize, Deserialize)]
struct EvalConfig {
    /// Held-out prompts, answered greedily and graded by `exact_match`; 0 is off.
    #[setting(default = 0)]
    num_prompts: usize,
    /// Evaluates every so many steps, and after the last; 0 evaluates only after the last.
    #[setting(default = 0, unit = "steps")]
    eval_steps: u64,
    /// The longest answer. It is required with held-out prompts.
    #[setting(default = 0, unit = "tokens")]
    max_completion_length: usize,
}

/// The sections besides `[data]`, which is that of a run, with their settings.
pub fn sections() -> [(&'static str, &'static [Setting]); 3] {
    [
        ("model", ModelConfig::SETTINGS),
        ("train", TrainConfig::SETTINGS),
        ("eval", EvalConfig::SETTINGS),
    ]
}

#[derive(Serialize)]
struct Sections {
    model: ModelConfig,
    data: DataConfig,
    train: TrainConfig,
    eval: EvalConfig,
}

impl Sections {
    /// Refuses settings that are out of range or make one another ineffective.
    fn check(&self) -> Result<()> {
        let Self { train, eval, .. } = self;
        check::in_section("data", &self.data)?;
        check::in_section("train", train)?;
        let size = train.per_device_train_batch_size;
        require!(
            ["train.max_steps", "train.per_device_train_batch_size"],
            train.max_steps.checked_mul(size as u64).is_some(),
            "`train.max_steps` {} × `train.per_device_train_batch_size` {size} are more examples \
             than can be counted (lower one of them)",
            train.max_steps
        );
        check::warmup(train.lr_scheduler_type, train.warmup_ratio)?;
        check::data(&self.data)?;
        require!(
            ["eval.max_completion_length", "eval.num_prompts"],
            eval.num_prompts == 0 || eval.max_completion_length > 0,
            "`eval.max_completion_length` is 0, but {} held-out prompts are to be answered (set \
             it, or `eval.num_prompts` to 0)",
            eval.num_prompts
        );
        Ok(())
    }
}

/// A supervised run that is ready for its first step.
pub struct Sft {
    settings: Sections,
    policy: Policy,
    tokenizer: Tokenizer,
    companions: Companions,
    dataset: Dataset,
    held_out: Vec<Example>,
    optimizer: Optimizer,
    schedule: Schedule,
    output: PathBuf,
    progress: Progress,
    checkpoints: Checkpoints,
    /// Bytes of the largest step so far.
    largest_step: u128,
}

impl Sft {
    /// Opens a run from a config file or the built-in settings; `device` overrides their device.
    /// The run will write a Hugging Face directory to `output`. It goes on from a checkpoint that
    /// an earlier process left beside `output`.
    pub fn open(
        config: Option<&Path>,
        sets: &[String],
        device: Option<&str>,
        output: &Path,
    ) -> Result<Self> {
        folder::check_new(output, "--output-dir")?;
        // A training that cannot be written at its end is lost.
        let (parent, _) = folders::split(output)?;
        NewFolder::in_folder(&parent)
            .with_context(|| format!("cannot write `{}`", output.display()))?;
        let draft = Draft::read(config, DEFAULT, sets)?.on_device(device)?;
        draft.only(&["model", "data", "train", "eval"])?;
        let settings = Sections {
            model: draft.section("model")?,
            data: draft.section("data")?,
            train: draft.section("train")?,
            eval: draft.section("eval")?,
        };
        settings.check().map_err(|error| draft.do_not_fit(error))?;
        let (files, policy) = open_model(&settings)?;
        let files = settings.data.amend(files)?;
        let tokenizer = settings.data.tokenizer(&files)?;
        let companions = Companions::read(&files)?;
        let train = &settings.train;
        let dataset =
            settings
                .data
                .open(train.seed, Purpose::Teaching, &files, &tokenizer, &policy)?;
        policy.check_lengths(
            "eval",
            settings.data.max_prompt_length,
            settings.eval.max_completion_length,
            settings.eval.num_prompts.min(ANSWERS_AT_ONCE),
        )?;
        let held_out = if settings.eval.num_prompts == 0 {
            Vec::new()
        } else {
            dataset.held_out(settings.eval.num_prompts)?
        };
        let adamw = AdamWConfig {
            weight_decay: train.weight_decay,
            ..AdamWConfig::default()
        };
        let mut optimizer = Optimizer::new(policy.params(), OptimizerConfig::AdamW(adamw))?;
        let schedule = Schedule::new(
            train.lr_scheduler_type,
            train.learning_rate,
            train.warmup_ratio,
            train.max_steps,
        )?;
        let text = toml::to_string(&settings)?;
        let mut checkpoints =
            Checkpoints::of(output, text, dataset.fingerprint(), companions.clone())?;
        let progress = checkpoints
            .take_up(&policy, &mut optimizer)?
            .unwrap_or_default();
        Ok(Self {
            settings,
            policy,
            tokenizer,
            companions,
            dataset,
            held_out,
            optimizer,
            schedule,
            output: output.to_owned(),
            progress,
            checkpoints,
            largest_step: 0,
        })
    }

    /// Trains, reports to `say` line by line, and writes the model. Earlier it ends after a step,
    /// with a checkpoint, if `stop` is set.
    pub fn run(&mut self, say: impl Fn(&str), stop: &AtomicBool) -> Result<()> {
        let max_steps = self.settings.train.max_steps;
        say(&format!(
            "model      {} parameters",
            self.policy.params().element_count()
        ));
        if self.progress.step > 0 {
            say(&format!(
                "resumed    after step {} of {max_steps}",
                self.progress.step
            ));
        }
        let mut saved = Instant::now();
        while self.progress.step < max_steps {
            let begun = Instant::now();
            self.progress.loss += self.step(self.progress.step)?;
            self.progress.steps += 1;
            self.progress.step += 1;
            self.report(&say)?;
            let step = self.progress.step;
            let stopped = stop.load(Ordering::Relaxed);
            if step == max_steps {
                break;
            }
            // The next step is taken to last as long as this one.
            if stopped
                || is_late(
                    self.settings.train.save_minutes,
                    saved.elapsed() + begun.elapsed(),
                )
            {
                let outcome = self.save();
                saved = Instant::now();
                match outcome {
                    Err(error) if !stopped => {
                        terminal::warn(&format!("no checkpoint after step {step}: {error:#}"))
                    }
                    outcome => outcome?,
                }
            }
            if stopped {
                say(&format!(
                    "stopped after step {step} of {max_steps}; the same command goes on from there"
                ));
                return Ok(());
            }
        }
        // The last step may be the one that was too long.
        self.forward(max_steps)?;
        folder::write(&self.output, &self.policy, &self.companions, None)?;
        self.checkpoints.remove();
        say(&format!("model written to {}", self.output.display()));
        Ok(())
    }

    /// Reports the mean loss every 50 steps, and with the evaluation where one is due.
    fn report(&mut self, say: &impl Fn(&str)) -> Result<()> {
        let done = self.progress.step;
        let every = self.settings.eval.eval_steps;
        let is_due =
            done == self.settings.train.max_steps || (every > 0 && done.is_multiple_of(every));
        if is_due || done.is_multiple_of(50) {
            let held_out = if is_due { self.accuracy()? } else { None };
            let held_out = held_out.map_or_else(String::new, |value| {
                format!("  held-out {:.1}%", 100.0 * value)
            });
            let loss = self.progress.loss / f64::from(self.progress.steps);
            say(&format!("step {done:>5}  loss {loss:.4}{held_out}"));
            self.progress.loss = 0.0;
            self.progress.steps = 0;
        }
        Ok(())
    }

    /// Writes a checkpoint. Weights that were changed by a step that was too long are an error:
    /// they would replace good ones.
    fn save(&mut self) -> Result<()> {
        self.forward(self.progress.step)?;
        self.checkpoints
            .save(&self.progress, &self.policy, &self.optimizer)
    }

    /// One optimizer step on the mean loss over all completion tokens. Returns that loss, nats.
    fn step(&mut self, step: u64) -> Result<f64> {
        let (forward, seed, loss) = self.forward(step)?;
        let mut gradients = Gradients::default();
        forward.finish(&seed, None, &mut gradients)?;
        let rate = self.schedule.learning_rate(step);
        let limit = self.settings.train.max_grad_norm;
        self.optimizer
            .step(self.policy.params(), &gradients, None, rate, limit)?;
        if let Some(name) = self.policy.params().not_finite()? {
            let decay = if self.settings.train.weight_decay > 0.0 {
                " or `train.weight_decay`"
            } else {
                ""
            };
            bail!(
                "step {} makes numbers of `{name}` infinite or NaN (lower \
                 `train.learning_rate`{decay})",
                step + 1
            );
        }
        Ok(loss)
    }

    /// The forward pass over the examples of `step`, the derivatives of the loss, and the loss,
    /// which is a number.
    fn forward(&mut self, step: u64) -> Result<(Forward, Vec<f32>, f64)> {
        let size = self.settings.train.per_device_train_batch_size as u64;
        let examples = (0..size)
            .map(|i| self.dataset.train(step * size + i))
            .collect::<Result<Vec<Example>>>()?;
        let examples: Vec<&Example> = examples.iter().collect();
        let prompts = encode(
            &examples,
            &self.tokenizer,
            self.settings.data.max_prompt_length,
        )?;
        let positions = self.policy.config().max_position_embeddings;
        let mut targets = Vec::new();
        for (example, prompt) in examples.iter().zip(&prompts) {
            targets.push(example.target_ids(&self.tokenizer, prompt.len(), positions)?);
        }
        let completions: Vec<&[u32]> = targets.iter().map(Vec::as_slice).collect();
        let sequences = join(&prompts, &completions, self.tokenizer.pad_id());
        let tokens = sequences.completion_len;
        self.check_memory(Shape {
            rows: examples.len(),
            prompts: examples.len(),
            prompt: sequences.prompt_len,
            tokens,
        })?;
        let forward = self.policy.forward(&sequences, 1.0)?;
        let logps = forward.outputs(&Wants::default())?.logps;
        let count: usize = completions.iter().map(|ids| ids.len()).sum();
        let mut seed = vec![0.0; logps.len()];
        let mut loss = 0.0;
        for (b, ids) in completions.iter().enumerate() {
            for i in b * tokens..b * tokens + ids.len() {
                seed[i] = -1.0 / count as f32;
                loss -= f64::from(logps[i]) / count as f64;
            }
        }
        ensure!(
            loss.is_finite(),
            "the loss is {loss} at step {step} (lower `train.learning_rate`)"
        );
        Ok((forward, seed, loss))
    }

    /// Refuses a step that exceeds the available memory. Memory of the largest step so far counts
    /// as free: the process retains it.
    fn check_memory(&mut self, shape: Shape) -> Result<()> {
        let parts = self.policy.training_bytes(shape, false, false);
        let needed: u128 = parts.iter().map(|(_, bytes)| bytes).sum();
        let more = needed.saturating_sub(self.largest_step);
        if let Some(free) = memory::available().filter(|_| self.policy.device().is_cpu()) {
            ensure!(
                more <= u128::from(free),
                "a step of {} rows of up to {} tokens takes {} of memory, and {} are free (lower \
                 `train.per_device_train_batch_size`, set `train.gradient_checkpointing`, or \
                 shorten the solutions)",
                shape.rows,
                shape.prompt + shape.tokens,
                memory::text(needed),
                memory::text(u128::from(free) + self.largest_step)
            );
        }
        self.largest_step = needed.max(self.largest_step);
        Ok(())
    }

    fn accuracy(&self) -> Result<Option<f64>> {
        if self.held_out.is_empty() {
            return Ok(None);
        }
        let Sections {
            data, train, eval, ..
        } = &self.settings;
        let exam = Exam {
            max_prompt_length: data.max_prompt_length,
            max_completion_length: eval.max_completion_length,
            max_num_seqs: 0,
            batch_size: ANSWERS_AT_ONCE,
            samples: 1,
            step: 0,
            max_steps: train.max_steps,
            seed: train.seed,
        };
        let watchdog = Watchdog::off();
        let mut rewards = Rewards::build(
            &Registry::open(&[])?,
            &[RewardConfig::exact_match()],
            CPU,
            &watchdog,
        )?;
        let mut sink = WarningSink {
            warned: &mut BTreeSet::new(),
            watchdog: &watchdog,
        };
        let mut grader = Grader {
            environment: None,
            rewards: &mut rewards,
            sink: &mut sink,
            right: &RightAnswer::By("exact_match".into()),
        };
        let graded = exam::grade(
            &self.policy,
            &self.tokenizer,
            &mut grader,
            &self.held_out,
            &exam,
        )?;
        Ok(exam::share_right(&graded))
    }
}

/// True if `dir` has a training that is not done.
pub fn is_unfinished(dir: &Path) -> bool {
    Checkpoints::are_in(dir)
}

fn open_model(settings: &Sections) -> Result<(ModelFiles, Policy)> {
    let train = &settings.train;
    device::tf32::choose(None, train.dtype);
    let device = device::open(&train.device)?;
    let (name, fresh) = match (
        &settings.model.config_name_or_path,
        &settings.model.model_name_or_path,
    ) {
        (Some(name), None) => (name, true),
        (None, Some(name)) => (name, false),
        _ => bail!(
            "`[model]` needs exactly one of `config_name_or_path` (fresh weights) and \
             `model_name_or_path` (go on with a model)"
        ),
    };
    let files = embedded::model_files(name)?;
    let policy = if fresh {
        Policy::fresh(&files, train.seed, &device)?
    } else {
        Policy::load(&files, &device)?
    };
    ensure!(
        policy.adapter().is_none(),
        "`model.model_name_or_path` is an adapter, but `host sft` trains all weights (merge it \
         with `host export` first)"
    );
    Ok((
        files,
        policy
            .with_dtype(train.dtype.into())
            .with_gradient_checkpointing(train.gradient_checkpointing),
    ))
}
