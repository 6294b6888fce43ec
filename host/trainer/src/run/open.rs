//! Starts and resumes a run in its directory.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use capo_loader::registry::Registry;
use capo_system::lock::Lock;

use super::checkpoint::Loaded;
use super::directory::Locked;
use super::{
    AbsentWeights, CONFIG_FILE, METRICS_FILE, Observers, Resources, Run, checkpoint, directory,
    provenance, settings,
};
use crate::Error;
use crate::config::Config;
use crate::metrics::completions::COMPLETIONS_FILE;
use crate::metrics::journal;

impl Run {
    /// Starts a run in its own directory.
    pub fn start(config: Config, registry: &Registry) -> Result<Self> {
        let (resources, dir) = Self::prepare(config, registry, AbsentWeights::Refused)?;
        Self::begin(resources, dir, registry)
    }

    /// Opens the resources of a new run, without writing. Also returns the directory that the
    /// settings name.
    pub fn prepare(
        mut config: Config,
        registry: &Registry,
        absent: AbsentWeights,
    ) -> Result<(Resources, Option<PathBuf>)> {
        config.make_paths_absolute()?;
        // Stored settings without the directory can be used for another run.
        let dir = config
            .train
            .output_dir
            .take()
            .map(|dir| dir.components().collect::<PathBuf>());
        if let Some(dir) = &dir {
            directory::check_free(dir)?;
        }
        Ok((Resources::open(config, registry, absent)?, dir))
    }

    /// Starts a run of `resources` in `dir`, or in a directory named after the run.
    pub fn begin(resources: Resources, dir: Option<PathBuf>, registry: &Registry) -> Result<Self> {
        let settings = toml::to_string(&resources.config)?;
        let dir = directory::make(
            dir.as_deref(),
            &resources.name(),
            &settings,
            registry.plugins(),
            resources.checkpoint_bytes(),
        )?;
        resources.watchdog.place().started(&dir.path);
        Self::at(resources, dir, Loaded::default(), 0)
    }

    /// Resumes the run in `dir`, whose lock is `lock`, at its newest checkpoint, or at its
    /// beginning without one.
    pub fn resume(
        config: Config,
        registry: &Registry,
        dir: &Path,
        lock: Lock,
        allow_changes: bool,
    ) -> Result<Self> {
        let step = checkpoint::newest(dir)?;
        let settings = toml::to_string(&config)?;
        let mut changed = settings::changes(&provenance::settings_at(dir, step)?, &settings)?;
        if !changed.is_empty() && !allow_changes {
            let made = if step == 0 {
                "the run began with".into()
            } else {
                format!("its checkpoint of step {step} was made with")
            };
            let message = format!(
                "the settings of `{}` are not those that {made}: {} (put them back, or take them \
                 with `--allow-changed-config`)",
                dir.join(CONFIG_FILE).display(),
                changed.join(", ")
            );
            return Err(Error::changed(message).into());
        }
        // These checks come before anything in the directory is changed.
        for name in [METRICS_FILE, COMPLETIONS_FILE] {
            journal::check(&dir.join(name))?;
        }
        let mut resources = Resources::open(config, registry, AbsentWeights::Refused)?;
        let place = resources.watchdog.place();
        place.started(dir);
        place.at(step);
        place.saved(step);
        let loaded = checkpoint::load(&mut resources, dir, step, allow_changes)?;
        provenance::go_on(dir, step, registry.plugins(), settings)?;
        changed.extend(loaded.changed);
        let dir = Locked {
            path: dir.to_owned(),
            lock,
        };
        Self::at(resources, dir, Loaded { changed, ..loaded }, step + 1)
    }

    /// A run of `resources` in the directory `dir`, at the point that was `loaded`. `first` is the
    /// first step that trackers get.
    fn at(resources: Resources, dir: Locked, loaded: Loaded, first: u64) -> Result<Self> {
        let Locked { path: dir, lock } = dir;
        let Loaded {
            progress,
            remembers,
            changed,
        } = loaded;
        let observers = Observers::open(
            &dir,
            &resources.config,
            provenance::latest(&dir)?,
            progress.step,
            first,
        )?;
        Ok(Self {
            resources,
            dir,
            progress,
            observers,
            changed,
            recovery: None,
            remembers,
            warned: BTreeSet::new(),
            dump: None,
            _lock: lock,
        })
    }
}
