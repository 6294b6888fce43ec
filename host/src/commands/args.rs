//! The command line: every subcommand and flag, with its help text.

use std::path::PathBuf;

use capo_loader::upload::Dtype;
use capo_plugin::Point;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use super::inference_args::{GenerateArgs, ScoreArgs};
use super::own_run::RunTrustArgs;
use super::shared_args::{ConfigArgs, MaskArgs, PluginArgs, SettingsArgs};
use crate::check::CheckArgs;

/// Reinforcement learning of language models, with components that load at run time.
#[derive(Parser)]
#[command(
    name = "host",
    version,
    propagate_version = true,
    after_help = "A sweep of thresholds is `host replay --sweep`."
)]
pub(super) struct Cli {
    /// Show the whole chain of causes of an error.
    #[arg(long, global = true)]
    pub(super) verbose: bool,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Subcommand)]
pub(super) enum Command {
    /// Train a policy on verifiable rewards.
    ///
    /// `host train --plugin libcapo.so` trains the embedded model with CAPO; without a plugin, with
    /// GRPO.
    ///
    /// The components come from the config. If it names none, they come from the plugin's recipe,
    /// and without a plugin from the built-in recipe `grpo`. The run writes its settings, its
    /// metrics (`metrics.jsonl`) and its checkpoints, which have the Hugging Face layout, to a new
    /// folder under `runs/`. Ctrl-C and SIGTERM stop it after the current rollout; `--resume` goes
    /// on bit for bit.
    Train(TrainArgs),
    /// Find a learning rate for a config, in 25 steps.
    ///
    /// `host find-rate --config run.toml` trains with the step control `governor.kl` until its
    /// search has ended, and prints the line for the config.
    ///
    /// The search finds no rate above the config's `train.learning_rate`, so set one that is surely
    /// high enough. During the search the rate is constant, nothing is evaluated and no model is
    /// kept; the metrics are in `runs/find-rate-seedN`. The search ignores `train.output_dir`,
    /// `train.max_time` and `train.max_completions`, which are meant for the run itself. It uses
    /// the plugin beside `host` unless `--plugin` gives one.
    FindRate(FindRateArgs),
    /// Measure a model: benchmarks, or held-out accuracy.
    ///
    /// Model, data, rewards and benchmarks come from the config. Without a config, they come from
    /// the run that `--model` names. If the model belongs to no run, settings that `--set` does not
    /// give have their defaults. The embedded model is measured on the embedded task.
    ///
    /// `host eval --config run.toml --model runs/RUN/checkpoints/step-000100 --output
    /// answers.jsonl` measures the benchmarks in `[[eval.benchmark]]` and keeps every answer. After
    /// a kill the same command goes on. Without benchmarks, the model answers the first held-out
    /// prompts greedily.
    Eval(EvalArgs),
    /// Train a base model on worked solutions.
    ///
    /// Without a config it makes the embedded base model again, in less than a minute. The result
    /// is a Hugging Face directory.
    ///
    /// Until the model is written, the newest checkpoint is in `OUTPUT_DIR.partial`: after a kill
    /// or a Ctrl-C the same command goes on.
    Sft(SftArgs),
    /// Complete prompts.
    ///
    /// `host generate --model DIR "Once upon a time"` writes prompt and completion to the terminal
    /// as tokens are drawn. Prompts are plain text after the special tokens that the tokenizer puts
    /// before one; with `--chat`, the chat template writes them. Of `generation_config.json`, the
    /// sampling settings are printed but not used; the end tokens are used.
    Generate(GenerateArgs),
    /// Compute the log-probabilities of given completions.
    ///
    /// Reads JSON lines with `prompt_ids` and `completion_ids`, or `prompt` and `completion`, and
    /// writes for each a line `{"logps": [...]}`: the log-probability of every token of the
    /// completion at temperature 1, nats.
    ///
    /// If a row has both ids and text, the ids are used. The model's tokenizer encodes prompt and
    /// completion separately, and begins a prompt with the special tokens that it puts before a
    /// text. Memory does not grow with the number of rows. The output file appears when it is
    /// complete.
    Score(ScoreArgs),
    /// Write a model as a Hugging Face folder.
    ///
    /// `host export --model runs/RUN --out DIR` writes the run's best checkpoint, with a card that
    /// says how it was made. If no metric decides which checkpoint is the best, it writes the
    /// newest. An adapter is merged into its base model. Files that only a resume needs are left
    /// out. Weights are written in f32.
    Export(ExportArgs),
    /// Fetch a model from the Hugging Face Hub into its cache on this machine.
    ///
    /// `host download Qwen/Qwen2.5-0.5B` fetches weights in safetensors, settings and tokenizer,
    /// and prints their folder. From then on every command accepts `Qwen/Qwen2.5-0.5B` as the
    /// model's name. `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT` and `HF_TOKEN` work as in the Hub's
    /// own clients. An interrupted download goes on where it stopped. No other command uses the
    /// network.
    Download(DownloadArgs),
    /// Run masks and weights over recorded batches, to try thresholds without training.
    ///
    /// Masks and weights keep their state from file to file, as in training. `host train
    /// --dump-batches DIR` records batches.
    ///
    /// `host replay --plugin libcapo.so --sweep mask.0.fisher_threshold=1e-6..1e-2 --target-rate 2%
    /// batches/*` prints how many tokens each of nine thresholds rejects, and the threshold that
    /// comes nearest to one token in fifty.
    Replay(ReplayArgs),
    /// Compare masks on recorded batches: what each rejects when it runs alone.
    ///
    /// Prints a row for each mask, and how much every two masks have in common. Without `[[mask]]`
    /// tables and `--mask`, it compares all masks of the plugins whose inputs the batches contain.
    ///
    /// `host compare-masks --plugin libmasks.so --target-rate 2% batches/*` finds for each mask the
    /// threshold that rejects one token in fifty.
    CompareMasks(CompareArgs),
    /// List runs: how far each is, what it trains, how good it is.
    Runs(RunsArgs),
    /// Say what went wrong in runs, and what to try.
    ///
    /// `host diagnose runs/RUN` applies the checks that watch a run during training to its
    /// `metrics.jsonl` and its settings. It prints each finding with the steps, the numbers and the
    /// setting to change, the most serious first.
    Diagnose(DiagnoseArgs),
    /// Write a page about runs: charts, settings side by side, completions token by token.
    ///
    /// `host report runs/*` writes one file, `report.html`, that needs no network. Runs that differ
    /// only in the seed are drawn as their mean with its standard error. Of a run that is still at
    /// work or damaged, the page shows what is there.
    Report(ReportArgs),
    /// List every component and recipe: its point, what it does, where it came from.
    ///
    /// `--verbose` adds a line for each key, and the inputs that each component needs.
    Plugins(ListArgs),
    /// Check that plugins keep the rules of their extension points.
    ///
    /// Another process makes the checks, so that a crash or a call that does not return is a result
    /// too. The exit code is 0 if nothing failed or crashed, 1 if something did or a component
    /// could not be tested, and 2 if a file is not a plugin.
    Check(CheckArgs),
    /// Make a plugin's crate that builds and passes its tests as it is.
    ///
    /// `host new-plugin calm` makes the folder `calm` with a component, its tests, and a README
    /// with the next steps. docs/plugins.md is the tutorial.
    NewPlugin(NewPluginArgs),
    /// Applies a chat template in a process of its own; the other subcommands start it.
    #[command(hide = true)]
    ApplyChatTemplate,
}

#[derive(Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    pub(super) plugins: PluginArgs,
    /// Prints each plugin's path and SHA-256, as `--plugin` takes them, with its package and
    /// version.
    #[arg(long, requires = "plugin")]
    pub(super) hash: bool,
    /// Prints one JSON object instead of lines: all that `--verbose` shows, and the plugins that
    /// are installed.
    #[arg(long, conflicts_with = "hash")]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct FindRateArgs {
    #[command(flatten)]
    pub(super) settings: SettingsArgs,
    /// Starts a search that may take more memory than is free. The estimate assumes completions of
    /// the full length.
    #[arg(long)]
    pub(super) allow_more_memory: bool,
}

#[derive(Args)]
pub(super) struct TrainArgs {
    #[command(flatten)]
    pub(super) settings: SettingsArgs,
    /// Where the run goes: a folder that does not exist yet. [default: runs/RECIPE-seedN]
    #[arg(long, value_name = "DIR")]
    pub(super) output_dir: Option<PathBuf>,
    /// Goes on with the run in DIR, with its own settings and plugins.
    #[arg(
        long,
        value_name = "DIR",
        conflicts_with_all = [
            "config", "set", "mask", "weight", "step_control", "device", "output_dir"
        ]
    )]
    pub(super) resume: Option<PathBuf>,
    /// Goes on with plugins that are not the files that the run used so far.
    #[arg(long, requires = "resume")]
    pub(super) allow_changed_plugins: bool,
    /// Goes on with the settings in the run's `config.toml`, even if its checkpoint was made with
    /// others.
    #[arg(long, requires = "resume")]
    pub(super) allow_changed_config: bool,
    /// Goes on with the plugins and programs that the run in DIR names, even if other users can
    /// write its settings.
    #[arg(long, requires = "resume")]
    pub(super) trust_run: bool,
    /// Starts a run that may take more memory than is free. The estimate assumes completions of the
    /// full length.
    #[arg(long)]
    pub(super) allow_more_memory: bool,
    /// Writes the batch of every optimizer step to this folder, for `host replay`. Batches contain
    /// the last layer and the rollout's context, even if no component of the run needs them. Give
    /// the flag again with `--resume` to go on recording.
    #[arg(long, value_name = "DIR")]
    pub(super) dump_batches: Option<PathBuf>,
    /// Describes the run, its memory and its time, without starting it. Nothing is written.
    #[arg(long, conflicts_with_all = ["resume", "dump_batches"])]
    pub(super) dry_run: bool,
    /// Stops once this many steps are done, at the end of a rollout, with a checkpoint.
    #[arg(long, value_name = "STEP")]
    pub(super) stop_after: Option<u64>,
}

#[derive(Args)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    #[command(flatten)]
    pub(super) plugins: PluginArgs,
    #[command(flatten)]
    pub(super) run: RunTrustArgs,
    /// Where the policy computes: `cpu`, or `cuda:N` in a host built with CUDA.
    /// [default: the config's `train.device`]
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,
    /// The model: a Hugging Face folder, a GGUF file, the id of a cached model, a run (its best
    /// checkpoint), another checkpoint, or `embedded:tiny-arithmetic`. [default: the config's]
    #[arg(long, value_name = "DIR")]
    pub(super) model: Option<String>,
    /// Number of held-out prompts to measure, in place of the config's benchmarks.
    /// [default: the config's `eval.num_prompts`]
    #[arg(long, value_name = "N", conflicts_with = "benchmark")]
    pub(super) num_prompts: Option<usize>,
    /// Measures this file, a greedy answer to each row, in place of the config's
    /// `[[eval.benchmark]]`. Repeatable.
    #[arg(long, value_name = "FILE")]
    pub(super) benchmark: Vec<String>,
    /// Writes every completion with its reward as JSON lines. Until all are there, they are in
    /// `FILE.partial`, from which an evaluation that was killed goes on.
    #[arg(long, value_name = "FILE", visible_alias = "out")]
    pub(super) output: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct DownloadArgs {
    /// The model's id on the Hub.
    #[arg(value_name = "OWNER/NAME")]
    pub(super) id: String,
    /// A branch, a tag or a commit. An id means `main`: name a model of another revision by the
    /// folder that this command writes.
    #[arg(long, value_name = "REVISION", default_value = "main")]
    pub(super) revision: String,
}

#[derive(Args)]
pub(super) struct SftArgs {
    /// Settings as TOML; without it, those that made the embedded base model.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Overrides one setting. Repeatable.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Where the policy computes: `cpu`, or `cuda:N` in a host built with CUDA.
    /// [default: the config's `train.device`]
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,
    /// Where the model goes: a folder that does not exist yet.
    #[arg(long, value_name = "DIR")]
    pub(super) output_dir: PathBuf,
}

#[derive(Args)]
pub(super) struct ExportArgs {
    /// The model: a run (its best checkpoint, or its newest if no metric decides), a Hugging Face
    /// folder, an adapter's folder, a GGUF file, the id of a cached model, a checkpoint, or
    /// `embedded:tiny-arithmetic`.
    #[arg(long, value_name = "DIR")]
    pub(super) model: String,
    /// Uses the run's checkpoint of this step.
    #[arg(long, value_name = "STEP")]
    pub(super) step: Option<u64>,
    /// Where it goes: a folder that does not exist yet.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
}

#[derive(Args)]
pub(super) struct ReplayArgs {
    /// Settings as TOML; only the `[[mask]]` and `[[weight]]` tables are used. [default: those of
    /// the plugin's recipe]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Overrides one setting, as in `mask.0.fisher_threshold=1e-3`, or a number of the recorded
    /// optimizer, as in `train.learning_rate=1e-5`. Repeatable.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(super) set: Vec<String>,
    #[command(flatten)]
    pub(super) masks: MaskArgs,
    #[command(flatten)]
    pub(super) plugins: PluginArgs,
    /// Where masks find features and logits: `cpu`, or `cuda:N`, to whose memory they are copied.
    /// A GPU needs the NVIDIA driver, but not a `host` built with CUDA.
    #[arg(long, value_name = "DEVICE", default_value = host_model::device::CPU)]
    pub(super) device: String,
    /// Dtype to which features are rounded on a CUDA device.
    #[arg(
        long,
        value_name = "DTYPE",
        value_parser = PossibleValuesParser::new(Dtype::NAMES.map(|(name, _)| name)),
        default_value = "f32"
    )]
    pub(super) dtype: String,
    /// Where the results go: a file for each batch, with the batch's name. It has `token_mask`,
    /// `weights` if there are any, and every per-token array that components recorded.
    #[arg(long, value_name = "DIR", required_unless_present = "sweep")]
    pub(super) out: Option<PathBuf>,
    /// Replays the batches at POINTS values of one setting, whose KEY is as for `--set`, and prints
    /// what the masks reject at each. The values are evenly spaced, in the logarithm if both ends
    /// are positive. They are whole numbers if both ends are. Repeatable. [default POINTS: 9]
    #[arg(
        long,
        value_name = "KEY=LOW..HIGH[:POINTS]",
        allow_hyphen_values = true
    )]
    pub(super) sweep: Vec<String>,
    /// With `--sweep`: suggests the value that rejects most without exceeding this share of the
    /// tokens, `0.02` or `2%`.
    #[arg(long, value_name = "R", requires = "sweep", allow_hyphen_values = true)]
    pub(super) target_rate: Option<String>,
    /// Batch files, in order.
    #[arg(required = true, value_name = "BATCH")]
    pub(super) batches: Vec<PathBuf>,
}

impl ReplayArgs {
    /// The floating-point type to which features are rounded.
    pub(super) fn dtype(&self) -> Dtype {
        Dtype::NAMES
            .into_iter()
            .find(|(name, _)| *name == self.dtype)
            .map_or(Dtype::F32, |(_, dtype)| dtype)
    }
}

#[derive(Args)]
pub(super) struct CompareArgs {
    /// Settings as TOML; only the `[[mask]]` tables are used.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Overrides one setting of a mask, as in `mask.capo.curvature.fisher_threshold=1e-3`, or a
    /// number of the recorded optimizer, as in `train.learning_rate=1e-5`. Repeatable.
    #[arg(long, value_name = "mask.ID.KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Compares this mask, after those of the config. Repeatable. The second use of a mask is
    /// called `ID#2`.
    #[arg(long, value_name = "ID")]
    pub(super) mask: Vec<String>,
    #[command(flatten)]
    pub(super) plugins: PluginArgs,
    /// Searches for each mask the threshold that rejects most without exceeding this share of the
    /// tokens, `0.02` or `2%`, within the range that its author gives. A threshold that is set
    /// stays as it is.
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    pub(super) target_rate: Option<String>,
    /// Also writes all numbers to this file, as JSON.
    #[arg(long, value_name = "FILE.json")]
    pub(super) out: Option<PathBuf>,
    /// Batch files, in order.
    #[arg(required = true, value_name = "BATCH")]
    pub(super) batches: Vec<PathBuf>,
}

#[derive(Args)]
pub(super) struct RunsArgs {
    /// Folders of runs, or runs.
    #[arg(value_name = "DIR", default_value = "runs")]
    pub(super) dirs: Vec<PathBuf>,
    /// Prints one JSON array instead of lines.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct DiagnoseArgs {
    /// Directories of runs, or folders of them.
    #[arg(required = true, value_name = "RUN")]
    pub(super) runs: Vec<PathBuf>,
    /// Prints one JSON array instead of lines.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Args)]
pub(super) struct ReportArgs {
    /// Directories of runs, or folders of them.
    #[arg(required = true, value_name = "RUN")]
    pub(super) runs: Vec<PathBuf>,
    /// Where the page goes. [default: `report.html`, which replaces an earlier report alone]
    #[arg(long, value_name = "FILE.html")]
    pub(super) out: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct NewPluginArgs {
    /// The crate's name: lowercase letters, digits, `-` and `_`.
    pub(super) name: String,
    /// The extension point of its component.
    #[arg(
        long,
        value_name = "POINT",
        value_parser = PossibleValuesParser::new(Point::ALL.map(flag_name)),
        default_value = flag_name(Point::Mask)
    )]
    pub(super) point: String,
    /// `capo-plugin`: its folder, a version to take from the registry, or the URL of a git
    /// repository. [default: a copy in the new crate's folder `vendor`]
    #[arg(long, value_name = "PATH|VERSION|URL")]
    pub(super) capo_plugin: Option<String>,
    /// Where the crate's folder goes.
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(super) dir: PathBuf,
}

/// The name of an extension point on the command line, with `-` between words.
pub(super) fn flag_name(point: Point) -> &'static str {
    match point {
        Point::StepControl => "step-control",
        other => other.name(),
    }
}
