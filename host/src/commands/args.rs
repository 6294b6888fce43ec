//! The command line: every subcommand and flag, with its help text.

use std::path::PathBuf;

use capo_loader::upload::{self, Dtype};
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
    /// The components come from the config, else from the recipe that the plugin carries, else from
    /// the built-in recipe `grpo`. Everything goes to a new folder under `runs/`: settings,
    /// metrics.jsonl, checkpoints in the Hugging Face layout. Ctrl-C and SIGTERM stop after the
    /// current rollout, and `--resume` goes on bit for bit.
    Train(TrainArgs),
    /// Find a learning rate for a config, in six steps.
    ///
    /// `host find-rate --config run.toml` trains with the step control `governor.kl` until its
    /// search has ended, and prints the line for the config.
    ///
    /// The rate that is set is the highest that can be found, so set one that is surely not too
    /// low. The rate is constant meanwhile, nothing is evaluated, and no model is kept;
    /// `runs/find-rate-seedN` has the metrics. `train.output_dir`, `train.max_time` and
    /// `train.max_completions` are those of the run to come, and do not count here. The plugin
    /// beside `host` is used unless `--plugin` gives one.
    FindRate(FindRateArgs),
    /// Measure a model: benchmarks, or held-out accuracy.
    ///
    /// Model, data, rewards and benchmarks come from the config; where there is none, from the run
    /// that `--model` names. Without both, the embedded model is measured on the embedded task, and
    /// any other with the default of every setting that `--set` does not give.
    ///
    /// `host eval --config run.toml --model runs/RUN/checkpoints/step-000100 --output
    /// answers.jsonl` asks the config's `[[eval.benchmark]]` and keeps every answer; after a kill
    /// the same command goes on. Without benchmarks, the first held-out prompts are answered
    /// greedily.
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
    /// before one; with `--chat`, the chat template writes them. What `generation_config.json`
    /// proposes for sampling is told and not taken; its end tokens are.
    Generate(GenerateArgs),
    /// Say how probable given completions are to a model.
    ///
    /// Reads JSON lines with `prompt_ids` and `completion_ids`, or `prompt` and `completion`, and
    /// writes for each a line `{"logps": [...]}`: the log-probability of every token of the
    /// completion at temperature 1, nats.
    ///
    /// Where a row has ids and text, the ids count. Text is encoded by the model's tokenizer,
    /// prompt and completion each for itself, and prompts begin with the special tokens that it
    /// puts before a text. Memory does not grow with the number of rows; the file appears when it
    /// is whole.
    Score(ScoreArgs),
    /// Write a model as a Hugging Face folder.
    ///
    /// `host export --model runs/RUN --out DIR` writes the run's best checkpoint, or its newest
    /// where no metric says which is the best, with a card that says how it was made. An adapter is
    /// added to the model that it belongs to; of a checkpoint of all weights, what only a resume
    /// needs is left out. Weights are written in f32.
    Export(ExportArgs),
    /// Fetch a model from the Hugging Face Hub into its cache on this machine.
    ///
    /// `host download Qwen/Qwen2.5-0.5B` fetches weights in safetensors, settings and tokenizer,
    /// and writes the folder where they are; from then on `Qwen/Qwen2.5-0.5B` names the model
    /// everywhere. `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT` and `HF_TOKEN` mean what they mean to
    /// the Hub's own clients. A fetch that broke off goes on where it was. No other command uses
    /// the network.
    Download(DownloadArgs),
    /// Run masks and weights over recorded batches, to try thresholds without training.
    ///
    /// They keep their state from file to file, as in training. `host train --dump-batches DIR`
    /// records batches.
    ///
    /// `host replay --plugin libcapo.so --sweep mask.0.fisher_threshold=1e-6..1e-2 --target-rate 2%
    /// batches/*` prints what each of nine thresholds rejects, and the threshold that comes nearest
    /// to one token in fifty.
    Replay(ReplayArgs),
    /// Compare masks on recorded batches: what each rejects when it runs alone.
    ///
    /// Prints a row per mask and how much every two of them have in common. Without `[[mask]]`
    /// tables and `--mask`, all masks of the plugins that the batches have the inputs for.
    ///
    /// `host compare-masks --plugin libmasks.so --target-rate 2% batches/*` finds for each mask the
    /// threshold that rejects one token in fifty.
    CompareMasks(CompareArgs),
    /// List runs: how far each is, what it trains, how good it is.
    Runs(RunsArgs),
    /// Say what went wrong in runs, and what to try.
    ///
    /// `host diagnose runs/RUN` reads `metrics.jsonl` and the settings beside it, and says what the
    /// checks find that look at a run while it is at work: the gravest first, with the steps, the
    /// numbers and the setting to change.
    Diagnose(DiagnoseArgs),
    /// Write a page about runs: charts, settings side by side, completions token by token.
    ///
    /// `host report runs/*` writes one file, `report.html`, that needs no network. Runs of the same
    /// settings but the seed are drawn as their mean with its standard error. Runs that are still
    /// at work, or damaged, are shown as far as they are.
    Report(ReportArgs),
    /// List every component and recipe: its point, what it does, where it came from.
    ///
    /// `--verbose` shows a line per key, and what each component asks the trainer for.
    Plugins(ListArgs),
    /// Check that plugins keep the rules of their extension points.
    ///
    /// Checks run in other processes, so that a crash or a call that does not come back is a result
    /// too. The exit code is 0 when nothing failed or crashed, 1 when something did or no check
    /// could test a component, 2 when a file is no plugin.
    Check(CheckArgs),
    /// Make the crate of a plugin, which builds and passes its tests as it is.
    ///
    /// `host new-plugin calm` makes the folder `calm`: a component, its tests, a README that says
    /// what comes next. docs/plugins.md is the tutorial.
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
    /// Starts though more memory may be taken than is free: completions are counted as long as they
    /// may get.
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
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "set", "mask", "weight", "step_control", "device", "output_dir"])]
    pub(super) resume: Option<PathBuf>,
    /// Goes on with plugins that are not the files that the run used so far.
    #[arg(long, requires = "resume")]
    pub(super) allow_changed_plugins: bool,
    /// Goes on with the settings of the run's `config.toml` where they are not those that its
    /// checkpoint was made with.
    #[arg(long, requires = "resume")]
    pub(super) allow_changed_config: bool,
    /// Goes on with the plugins and programs that the run in DIR names, though other users may have
    /// written them there.
    #[arg(long, requires = "resume")]
    pub(super) trust_run: bool,
    /// Starts a run though it may take more memory than is free: completions are counted as long as
    /// they may get.
    #[arg(long)]
    pub(super) allow_more_memory: bool,
    /// Writes the batch of every optimizer step to this folder, for `host replay`: with the last
    /// layer and the rollout's context, whatever the run's own components ask for. A resume goes on
    /// with it where it is given again.
    #[arg(long, value_name = "DIR")]
    pub(super) dump_batches: Option<PathBuf>,
    /// Opens everything and says what the run would be, how much memory and how long it takes;
    /// nothing is written, no step is taken.
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
    /// The model: a Hugging Face folder, a GGUF file, the id of one that is cached, a run, which
    /// means its best checkpoint, another checkpoint, or `embedded:tiny-arithmetic`.
    /// [default: the config's]
    #[arg(long, value_name = "DIR")]
    pub(super) model: Option<String>,
    /// Number of held-out prompts; they are measured in place of the config's benchmarks.
    /// [default: the config's `eval.num_prompts`]
    #[arg(long, value_name = "N", conflicts_with = "benchmark")]
    pub(super) num_prompts: Option<usize>,
    /// Measures this file, a greedy answer to each row, in place of the config's
    /// `[[eval.benchmark]]`. Repeatable.
    #[arg(long, value_name = "FILE")]
    pub(super) benchmark: Vec<String>,
    /// Writes every completion with its reward as JSON lines. They are kept in `FILE.partial` until
    /// all are there: an evaluation that was killed goes on with those that are missing.
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
    /// The model: a run, of which the best checkpoint is taken, or the newest where no metric says
    /// which is the best; a Hugging Face folder or an adapter's, a GGUF file, the id of one that is
    /// cached, a checkpoint, or `embedded:tiny-arithmetic`.
    #[arg(long, value_name = "DIR")]
    pub(super) model: String,
    /// Takes the run's checkpoint of this step.
    #[arg(long, value_name = "STEP")]
    pub(super) step: Option<u64>,
    /// Where it goes: a folder that does not exist yet.
    #[arg(long, value_name = "DIR")]
    pub(super) out: PathBuf,
}

#[derive(Args)]
pub(super) struct ReplayArgs {
    /// Settings as TOML, of which the `[[mask]]` and `[[weight]]` tables count; without it, those
    /// of the plugin's recipe.
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
    /// Where masks find features and logits: `cpu`, or `cuda:N`, whose memory they are copied to.
    /// This takes the NVIDIA driver, and no `host` built with CUDA.
    #[arg(long, value_name = "DEVICE", default_value = upload::CPU)]
    pub(super) device: String,
    /// Dtype to which features are rounded on a CUDA device.
    #[arg(long, value_name = "DTYPE", value_parser = PossibleValuesParser::new(Dtype::NAMES.map(|(name, _)| name)), default_value = "f32")]
    pub(super) dtype: String,
    /// Where the results go: one file per batch, named like it, with `token_mask`, `weights` where there
    /// are any, and every per-token array.
    #[arg(long, value_name = "DIR", required_unless_present = "sweep")]
    pub(super) out: Option<PathBuf>,
    /// Prints what the masks reject at each of POINTS values of one setting, the others as
    /// configured; KEY as for `--set`. Evenly spaced in the logarithm where both ends are positive,
    /// else linearly; whole numbers where both ends are. Every value is a replay of its own.
    /// Repeatable. [default POINTS: 9]
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
    /// Settings as TOML, of which the `[[mask]]` tables count.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Overrides one setting of a mask, as in `mask.capo.curvature.fisher_threshold=1e-3`, or a
    /// number of the recorded optimizer, as in `train.learning_rate=1e-5`. Repeatable.
    #[arg(long, value_name = "mask.ID.KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Compares this mask, after those of the config. Repeatable; one that is named twice is `ID`
    /// and `ID#2`.
    #[arg(long, value_name = "ID")]
    pub(super) mask: Vec<String>,
    #[command(flatten)]
    pub(super) plugins: PluginArgs,
    /// For each mask, searches the value of its threshold that rejects most without exceeding this
    /// share of the tokens, `0.02` or `2%`, within the range that its author gives. A threshold
    /// that is set stays.
    #[arg(long, value_name = "R", allow_hyphen_values = true)]
    pub(super) target_rate: Option<String>,
    /// Where all numbers go too, as JSON.
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
    #[arg(long, value_name = "POINT", value_parser = PossibleValuesParser::new(Point::ALL.map(flag_name)), default_value = flag_name(Point::Mask))]
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
