//! The states of a run's components in a checkpoint. `component-N.bin` follows the order advantage,
//! objective, masks, weights, step controls, environment; `reward-N.bin` follows the order of the
//! rewards.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use capo_loader::registry::Components;
use capo_loader::watchdog::Watchdog;
use capo_plugin::{Component, RewardHandle, WireObject};
use capo_system::files;
use capo_system::manifest::SealedFolder;

use super::Resources;
use super::progress::States;
use crate::environment::Environment;
use crate::stages::logps::asked;

impl States {
    /// Asks every component for its state.
    pub fn save(resources: &Resources) -> Result<Self> {
        let Components {
            advantage,
            objective,
            deciders,
            step_controls,
        } = &resources.components;
        let components = [
            save(resources, [advantage])?,
            save(resources, [objective])?,
            save(resources, &deciders.masks)?,
            save(resources, &deciders.weights)?,
            save(resources, step_controls)?,
            save(
                resources,
                resources.environment.as_ref().map(Environment::component),
            )?,
        ];
        Ok(Self {
            components: components.concat(),
            rewards: save(resources, resources.rewards.components())?,
        })
    }

    /// Total size of the states, bytes.
    pub fn bytes(&self) -> usize {
        self.components
            .iter()
            .chain(&self.rewards)
            .map(|(_, state)| state.len())
            .sum()
    }

    /// Writes the states into the folder `dir`.
    pub fn write(&self, dir: &Path) -> Result<()> {
        for (number, (_, state)) in self.components.iter().enumerate() {
            files::write_atomic(&dir.join(component_file(number)), state)?;
        }
        for (number, (_, state)) in self.rewards.iter().enumerate() {
            files::write_atomic(&dir.join(reward_file(number)), state)?;
        }
        Ok(())
    }
}

fn component_file(number: usize) -> String {
    format!("component-{number}.bin")
}

fn reward_file(number: usize) -> String {
    format!("reward-{number}.bin")
}

fn save<'a, W: WireObject>(
    resources: &Resources,
    components: impl IntoIterator<Item = &'a Component<W>>,
) -> Result<Vec<(String, Vec<u8>)>> {
    let limit = resources.config.train.component_state_limit;
    let mut states = Vec::new();
    for component in components {
        let id = component.id();
        let state = resources.watchdog.watch(id, "save", || component.save())?;
        check_size(id, state.len() as u64, limit)?;
        states.push((id.to_owned(), state));
    }
    Ok(states)
}

/// Refuses a state of more than `limit` MiB; 0 is no limit.
fn check_size(id: &str, bytes: u64, limit: u64) -> Result<()> {
    let mebibytes = bytes.div_ceil(1 << 20);
    ensure!(
        limit == 0 || mebibytes <= limit,
        "component `{id}`: its state takes {mebibytes} MiB, `train.component_state_limit` is \
         {limit} MiB (raise it, or set it to 0, where the component is meant to keep so much)"
    );
    Ok(())
}

/// Loads the components' states from a checkpoint. `components` and `rewards` are the ids that the
/// checkpoint names. Returns the total size of the states, bytes.
pub fn load(
    resources: &mut Resources,
    checkpoint: &SealedFolder,
    components: &[String],
    rewards: &[String],
) -> Result<usize> {
    let environment = resources
        .environment
        .as_ref()
        .map(|environment| environment.component().id());
    ensure_same(
        components,
        asked(&resources.components)
            .map(|(id, _)| id)
            .chain(environment),
    )?;
    ensure_same(
        rewards,
        resources.rewards.components().map(RewardHandle::id),
    )?;
    let watchdog = &resources.watchdog;
    let mut files = StateFiles {
        checkpoint,
        name: component_file,
        next: 0,
        bytes: 0,
    };
    let Components {
        advantage,
        objective,
        deciders,
        step_controls,
    } = &mut resources.components;
    let environment = &mut resources.environment;
    let environment = environment.as_mut().map(Environment::component_mut);
    files.load([advantage], watchdog)?;
    files.load([objective], watchdog)?;
    files.load(&mut deciders.masks, watchdog)?;
    files.load(&mut deciders.weights, watchdog)?;
    files.load(step_controls, watchdog)?;
    files.load(environment, watchdog)?;
    files.name = reward_file;
    files.next = 0;
    files.load(resources.rewards.components_mut(), watchdog)?;
    Ok(files.bytes)
}

/// The files of a checkpoint with states, which are read in order.
struct StateFiles<'a> {
    checkpoint: &'a SealedFolder,
    /// Name of the file with a given number.
    name: fn(usize) -> String,
    /// Number of the next file.
    next: usize,
    /// Total size of the states so far.
    bytes: usize,
}

impl StateFiles<'_> {
    /// Loads the states of `components` from the next files.
    fn load<'c, W: WireObject>(
        &mut self,
        components: impl IntoIterator<Item = &'c mut Component<W>>,
        watchdog: &Watchdog,
    ) -> Result<()> {
        for component in components {
            let state = self.checkpoint.read(&(self.name)(self.next))?;
            self.next += 1;
            self.bytes += state.len();
            let id = component.id().to_owned();
            watchdog.watch(&id, "load", || component.load(&state))?;
        }
        Ok(())
    }
}

fn ensure_same<'a>(saved: &[String], ids: impl Iterator<Item = &'a str>) -> Result<()> {
    let ids: Vec<&str> = ids.collect();
    if ids != saved {
        bail!(
            "it holds the state of `{}`, the run has `{}` (resume with the plugins and the \
             `config.toml` that the run began with)",
            saved.join("`, `"),
            ids.join("`, `")
        );
    }
    Ok(())
}
