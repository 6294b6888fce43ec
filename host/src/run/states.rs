//! The states of a run's components in a checkpoint. `component-N.bin` follows the order advantage, objective, masks, weights,
//! step controls; `reward-N.bin` follows the order of the rewards.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use capo_loader::files;
use capo_loader::manifest::SealedFolder;
use capo_loader::registry::Components;
use capo_plugin::{Mask, PluginError, StepControlFn, Weight};

use super::Run;
use super::progress::States;

impl States {
    /// Asks every component for its state.
    pub fn save(run: &Run) -> Result<Self> {
        let Components { advantage, objective, masks, weights, step_controls } = &run.components;
        let mut components =
            vec![state(run, advantage.id(), || advantage.save())?, state(run, objective.id(), || objective.save())?];
        for mask in masks {
            components.push(state(run, mask.id(), || mask.save())?);
        }
        for weight in weights {
            components.push(state(run, weight.id(), || weight.save())?);
        }
        for control in step_controls {
            components.push(state(run, control.id(), || control.save())?);
        }
        let rewards = run.rewards.components().map(|reward| state(run, reward.id(), || reward.save()));
        Ok(Self { components, rewards: rewards.collect::<Result<_>>()? })
    }

    /// Total size of the states, bytes.
    pub fn bytes(&self) -> usize {
        self.components.iter().chain(&self.rewards).map(|(_, state)| state.len()).sum()
    }

    /// Writes the states into the folder `dir`.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let numbered = |states: &[(String, Vec<u8>)], file: fn(usize) -> String| {
            states.iter().enumerate().try_for_each(|(i, (_, state))| files::write_atomic(&dir.join(file(i)), state))
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

fn state(run: &Run, id: &str, save: impl FnOnce() -> Result<Vec<u8>, PluginError>) -> Result<(String, Vec<u8>)> {
    let state = run.watchdog.watch(id, "save", save)?;
    check_size(id, state.len() as u64, run.config.train.component_state_limit)?;
    Ok((id.to_owned(), state))
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

/// Loads the components' states from a checkpoint. `components` and `rewards` are the ids that the checkpoint names. Returns the total
/// size of the states, bytes.
pub fn load(run: &mut Run, checkpoint: &SealedFolder, components: &[String], rewards: &[String]) -> Result<usize> {
    let Components { advantage, objective, masks, weights, step_controls } = &mut run.components;
    let mut ids = vec![advantage.id(), objective.id()];
    ids.extend(masks.iter().map(Mask::id));
    ids.extend(weights.iter().map(Weight::id));
    ids.extend(step_controls.iter().map(StepControlFn::id));
    ensure_same(components, &ids)?;
    ensure_same(rewards, &run.rewards.ids())?;
    let (watchdog, mut bytes) = (&run.watchdog, 0);
    let mut state = |file: String| checkpoint.read(&file).inspect(|state| bytes += state.len());
    let mut load = |number: usize, load: &mut dyn FnMut(&[u8]) -> Result<(), PluginError>| -> Result<()> {
        let state = state(component_file(number))?;
        Ok(watchdog.watch(&components[number], "load", || load(&state))?)
    };
    load(0, &mut |state| advantage.load(state))?;
    load(1, &mut |state| objective.load(state))?;
    let (first_weight, first_control) = (2 + masks.len(), 2 + masks.len() + weights.len());
    for (mask, number) in masks.iter_mut().zip(2..) {
        load(number, &mut |state| mask.load(state))?;
    }
    for (weight, number) in weights.iter_mut().zip(first_weight..) {
        load(number, &mut |state| weight.load(state))?;
    }
    for (control, number) in step_controls.iter_mut().zip(first_control..) {
        load(number, &mut |state| control.load(state))?;
    }
    for (number, reward) in run.rewards.components_mut().enumerate() {
        let state = state(reward_file(number))?;
        watchdog.watch(&rewards[number], "load", || reward.load(&state))?;
    }
    Ok(bytes)
}

fn ensure_same(saved: &[String], ids: &[&str]) -> Result<()> {
    if ids != saved {
        bail!(
            "it holds the state of `{}`, the run has `{}` (resume with the plugins and the `config.toml` that the run began with)",
            saved.join("`, `"),
            ids.join("`, `")
        );
    }
    Ok(())
}
