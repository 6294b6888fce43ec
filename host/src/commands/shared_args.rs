//! The flags that several subcommands share: settings, components, plugins.

use std::path::PathBuf;

use anyhow::Result;
use capo_loader::registry::Registry;
use capo_loader::trust::Trust;
use clap::Args;

use crate::config::{self, Appended, Draft, TrainConfig};

#[derive(Args)]
pub(super) struct ConfigArgs {
    /// Settings as TOML. A file that holds only components applies them to the embedded arithmetic
    /// task. [default: the embedded arithmetic task]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Overrides one setting. Masks, weights, step controls and rewards are addressed by id or by
    /// number, as in `mask.capo.curvature.fisher_threshold=1e-3` or `mask.0.fisher_threshold=1e-3`.
    /// Repeatable.
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub(super) set: Vec<String>,
}

#[derive(Args)]
pub(super) struct MaskArgs {
    /// Appends a mask to those of the config or the recipe. `--set mask.ID.KEY=VALUE` sets its
    /// keys. Repeatable.
    #[arg(long, value_name = "ID")]
    pub(super) mask: Vec<String>,
    /// Appends a weight to those of the config or the recipe. `--set weight.ID.KEY=VALUE` sets its
    /// keys. Repeatable.
    #[arg(long, value_name = "ID")]
    pub(super) weight: Vec<String>,
}

/// The settings of a new run.
#[derive(Args)]
pub(super) struct SettingsArgs {
    #[command(flatten)]
    pub(super) config: ConfigArgs,
    #[command(flatten)]
    masks: MaskArgs,
    /// Appends a step control to those of the config or the recipe. `--set
    /// step_control.ID.KEY=VALUE` sets its keys. Repeatable.
    #[arg(long, value_name = "ID")]
    step_control: Vec<String>,
    #[command(flatten)]
    pub(super) plugins: PluginArgs,
    /// Where the policy computes: `cpu`, or `cuda:N` in a host built with CUDA.
    /// [default: the config's `train.device`]
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Option<String>,
}

#[derive(Args, Clone)]
pub(super) struct PluginArgs {
    /// A plugin, which is native code that runs with your rights: a path, or a name that is
    /// searched in `./`, in the folders of `CAPO_PLUGIN_PATH`, beside `host` and in
    /// `~/.local/share/capo/plugins`. `LIB@sha256:HEX` accepts only the file with this hash.
    /// Repeatable.
    #[arg(long, value_name = "LIB")]
    pub(super) plugin: Vec<PathBuf>,
    /// Accepts plugins that other users of this machine can change or replace.
    #[arg(long)]
    pub(super) allow_unsafe_plugin_path: bool,
}

impl ConfigArgs {
    /// The plugins, each opened within `train.component_timeout`, as far as that is known before.
    pub(super) fn open(&self, plugins: &PluginArgs) -> Result<Registry> {
        plugins.open_within(config::component_timeout(self.config.as_deref(), &self.set))
    }

    /// The settings of the file and of `--set`.
    pub(super) fn draft(&self) -> Result<Draft> {
        Draft::read(self.config.as_deref(), config::DEFAULT, &self.set)
    }
}

impl SettingsArgs {
    /// The components that flags append to the config.
    pub(super) fn appended(&self) -> Appended {
        Appended {
            step_controls: self.step_control.clone(),
            ..self.masks.appended()
        }
    }
}

impl MaskArgs {
    /// The components that flags append to the config.
    pub(super) fn appended(&self) -> Appended {
        Appended {
            masks: self.mask.clone(),
            weights: self.weight.clone(),
            step_controls: Vec::new(),
        }
    }
}

impl PluginArgs {
    pub(super) fn open(&self) -> Result<Registry> {
        self.open_within(TrainConfig::default().component_timeout)
    }

    /// Opens plugins like `open`, each within `seconds`; 0 waits without a limit.
    pub(super) fn open_within(&self, seconds: u64) -> Result<Registry> {
        Registry::open_with(&self.plugin, &self.trust(), Some(seconds))
    }

    pub(super) fn trust(&self) -> Trust {
        Trust {
            unsafe_path: self.allow_unsafe_plugin_path,
            known: None,
        }
    }
}
