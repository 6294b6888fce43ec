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
        let numbered = |states: &[(String, Vec<u8>)], file: fn(usize) -> String| {
            states
                .iter()
                .enumerate()
                .try_for_each(|(i, (_, state))| files::write_atomic(&dir.join(file(i)), state))
        };
        numbered(&self.components, component_file)?;
        numbered(&self.rewards, reward_file)
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
    let state = |component: &Component<W>| {
        let id = component.id();
        let state = resources.watchdog.watch(id, "save", || component.save())?;
        check_size(
            id,
            state.len() as u64,
            resources.config.train.component_state_limit,
        )?;
        Ok((id.to_owned(), state))
    };
    components.into_iter().map(state).collect()
}

/// Refuses a state of more than `limit` MiB; 0 is no limit.
fn check_size(id: &str, bytes: u64, limit: u64) -> Result<()> {
    let mebibytes = bytes.div_ceil(1 << 20);
    ensure!(
        limit == 0 || mebibytes <= limit,
        "component `{id}`: its state takes {mebibytes} MiB, `train.component_state_limit` is {limit} MiB (raise it, or set it to 0, where the component is meant to keep so much)"
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
    let (watchdog, mut bytes) = (&resources.watchdog, 0);
    let mut state = |file: String| checkpoint.read(&file).inspect(|state| bytes += state.len());
    let mut states = (0..).map(|number| state(component_file(number)));
    let Components {
        advantage,
        objective,
        deciders,
        step_controls,
    } = &mut resources.components;
    load_each([advantage], &mut states, watchdog)?;
    load_each([objective], &mut states, watchdog)?;
    load_each(&mut deciders.masks, &mut states, watchdog)?;
    load_each(&mut deciders.weights, &mut states, watchdog)?;
    load_each(step_controls, &mut states, watchdog)?;
    load_each(
        resources
            .environment
            .as_mut()
            .map(Environment::component_mut),
        &mut states,
        watchdog,
    )?;
    let mut states = (0..).map(|number| state(reward_file(number)));
    load_each(resources.rewards.components_mut(), &mut states, watchdog)?;
    Ok(bytes)
}

fn load_each<'a, W: WireObject>(
    components: impl IntoIterator<Item = &'a mut Component<W>>,
    states: &mut impl Iterator<Item = Result<Vec<u8>>>,
    watchdog: &Watchdog,
) -> Result<()> {
    for (component, state) in components.into_iter().zip(states) {
        let (id, state) = (component.id().to_owned(), state?);
        watchdog.watch(&id, "load", || component.load(&state))?;
    }
    Ok(())
}

fn ensure_same<'a>(saved: &[String], ids: impl Iterator<Item = &'a str>) -> Result<()> {
    let ids: Vec<&str> = ids.collect();
    if ids != saved {
        bail!(
            "it holds the state of `{}`, the run has `{}` (resume with the plugins and the `config.toml` that the run began with)",
            saved.join("`, `"),
            ids.join("`, `")
        );
    }
    Ok(())
}
