//! Checkpoints: model, optimizer, progress and every component's state, whole or absent.
//!
//! `checkpoints/step-000040/` is a Hugging Face directory with three things beside the model: `optimizer.safetensors`,
//! `component-N.bin` in the order advantage, objective, masks, `reward-N.bin` in the order of the rewards, and `progress.json`, which also holds the SHA-256 of every
//! other file. Random streams are functions of seed and position, so there is no generator to save.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capo_plugin::{Mask, PluginError};
use serde::{Deserialize, Serialize};

use crate::data::Tokenizer;
use crate::model::{CONFIG_FILE, ModelFiles, Params, WEIGHTS_FILE};
use crate::run::{Progress, Run};
use capo_loader::files::{self, sha256_hex};
use capo_loader::registry::Components;

const FOLDER: &str = "checkpoints";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const PROGRESS_FILE: &str = "progress.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    progress: Progress,
    /// Component ids, in the order of their files.
    components: Vec<String>,
    /// Ids of reward components, in the order of theirs; none in checkpoints from before rewards had state.
    #[serde(default)]
    rewards: Option<Vec<String>>,
    /// SHA-256 of every other file.
    sha256: BTreeMap<String, String>,
}

/// Whether a checkpoint is due after the step just done.
#[must_use]
pub fn is_due(run: &Run) -> bool {
    let (step, every) = (run.progress.step, run.config.train.save_steps);
    step >= run.config.train.max_steps || (every > 0 && step.is_multiple_of(every))
}

/// The checkpoint's directory for the current step.
#[must_use]
pub fn dir(run: &Run) -> PathBuf {
    run.dir.join(FOLDER).join(name(run.progress.step))
}

fn name(step: u64) -> String {
    format!("step-{step:06}")
}

/// Writes a checkpoint of the current step, then deletes those beyond `train.save_total_limit`.
///
/// # Errors
///
/// When a component cannot save its state, or the disk refuses; older checkpoints stay as they are.
pub fn save(run: &mut Run) -> Result<()> {
    run.progress.num_tokens = run.metrics.num_tokens();
    let target = dir(run);
    let folder = run.dir.join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    if target.exists() {
        return Ok(());
    }
    let partial = tempfile::Builder::new()
        .prefix(".partial-")
        .tempdir_in(&folder)
        .with_context(|| format!("cannot make a folder in `{}`", folder.display()))?;
    write(run, partial.path())?;
    fs::rename(partial.path(), &target)
        .with_context(|| format!("cannot rename a checkpoint to `{}`", target.display()))?;
    // The folder is renamed: there is nothing left to clean up.
    let _ = partial.keep();
    fs::File::open(&folder)?.sync_all()?;
    prune(&folder, run.config.train.save_total_limit)
}

fn write(run: &Run, dir: &Path) -> Result<()> {
    run.policy.save(dir)?;
    let mut written = vec![CONFIG_FILE.to_owned(), WEIGHTS_FILE.to_owned(), OPTIMIZER_FILE.to_owned()];
    let optimizer =
        safetensors::serialize(run.optimizer.state()?, None).context("the optimizer state cannot be written")?;
    files::write_atomic(&dir.join(OPTIMIZER_FILE), &optimizer)?;
    for companion in Tokenizer::FILES.into_iter().filter(|name| run.model_files.contains(name)) {
        files::write_atomic(&dir.join(companion), &run.model_files.read(companion)?)?;
        written.push(companion.to_owned());
    }
    let mut put = |states: Vec<State>, file: fn(usize) -> String| -> Result<Vec<String>> {
        let mut ids = Vec::new();
        for (number, (id, state)) in states.into_iter().enumerate() {
            files::write_atomic(&dir.join(file(number)), &state)?;
            written.push(file(number));
            ids.push(id);
        }
        Ok(ids)
    };
    let components = put(component_states(run)?, component_file)?;
    let rewards = put(reward_states(run)?, reward_file)?;
    let hash = |file: String| Ok((file.clone(), sha256_hex(&files::read(&dir.join(file))?)));
    let sha256 = written.into_iter().map(hash).collect::<Result<_>>()?;
    let manifest = Manifest { progress: run.progress.clone(), components, rewards: Some(rewards), sha256 };
    files::write_atomic(&dir.join(PROGRESS_FILE), &serde_json::to_vec_pretty(&manifest)?)
}

fn component_file(number: usize) -> String {
    format!("component-{number}.bin")
}

fn reward_file(number: usize) -> String {
    format!("reward-{number}.bin")
}

/// A component's id and what it saved.
type State = (String, Vec<u8>);

fn component_states(run: &Run) -> Result<Vec<State>> {
    let Components { advantage, objective, masks } = &run.components;
    let mut states =
        vec![state(run, advantage.id(), || advantage.save())?, state(run, objective.id(), || objective.save())?];
    for mask in masks {
        states.push(state(run, mask.id(), || mask.save())?);
    }
    Ok(states)
}

fn reward_states(run: &Run) -> Result<Vec<State>> {
    run.rewards.components().map(|reward| state(run, reward.id(), || reward.save())).collect()
}

fn state(run: &Run, id: &str, save: impl FnOnce() -> Result<Vec<u8>, PluginError>) -> Result<State> {
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

/// The steps of the checkpoints in `folder`, oldest first.
fn steps(folder: &Path) -> Result<Vec<u64>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut steps = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list `{}`", folder.display()))? {
        let name = entry?.file_name();
        steps.extend(
            name.to_str().and_then(|name| name.strip_prefix("step-")).and_then(|step| step.parse::<u64>().ok()),
        );
    }
    steps.sort_unstable();
    Ok(steps)
}

fn prune(folder: &Path, limit: usize) -> Result<()> {
    let steps = steps(folder)?;
    let surplus = if limit == 0 { 0 } else { steps.len().saturating_sub(limit) };
    for step in &steps[..surplus] {
        let old = folder.join(name(*step));
        fs::remove_dir_all(&old).with_context(|| format!("cannot delete the old checkpoint `{}`", old.display()))?;
    }
    Ok(())
}

/// Loads the newest checkpoint of the run's directory; without one the run starts at step 0.
///
/// # Errors
///
/// When the checkpoint is damaged, belongs to other components, or a component refuses its state.
pub fn load_newest(run: &mut Run) -> Result<()> {
    let folder = run.dir.join(FOLDER);
    let Some(step) = steps(&folder)?.pop() else { return Ok(()) };
    let dir = folder.join(name(step));
    load(run, &dir).with_context(|| format!("checkpoint `{}` cannot be used", dir.display()))
}

fn load(run: &mut Run, dir: &Path) -> Result<()> {
    let hint = "delete the checkpoint to go on from the one before it, or from the start";
    let damaged = |file: &str| format!("its `{file}` is damaged ({hint})");
    let read = |file: &str| files::read(&dir.join(file)).with_context(|| damaged(file));
    let manifest: Manifest = serde_json::from_slice(&read(PROGRESS_FILE)?).with_context(|| damaged(PROGRESS_FILE))?;
    for (file, expected) in &manifest.sha256 {
        let found = sha256_hex(&read(file)?);
        ensure!(found == *expected, "{}: SHA-256 {found}, expected {expected}", damaged(file));
    }
    let files = ModelFiles::Directory(dir.to_owned());
    let params = Params::load(&files, run.policy.config(), run.policy.device())?;
    run.policy.params().assign(&params)?;
    let optimizer = candle_core::safetensors::load(dir.join(OPTIMIZER_FILE), run.policy.device())?;
    run.optimizer.load_state(&optimizer.into_iter().collect())?;
    load_components(run, dir, &manifest.components)?;
    load_rewards(run, dir, manifest.rewards.as_deref())?;
    run.progress = manifest.progress;
    Ok(())
}

fn load_components(run: &mut Run, dir: &Path, saved: &[String]) -> Result<()> {
    let Components { advantage, objective, masks } = &mut run.components;
    let mut ids = vec![advantage.id(), objective.id()];
    ids.extend(masks.iter().map(Mask::id));
    ensure_same(saved, &ids)?;
    let watchdog = &run.watchdog;
    let state = |number: usize| files::read(&dir.join(component_file(number)));
    let (first, second) = (state(0)?, state(1)?);
    watchdog.watch(&saved[0], "load", || advantage.load(&first))?;
    watchdog.watch(&saved[1], "load", || objective.load(&second))?;
    for (mask, number) in masks.iter_mut().zip(2..) {
        let state = state(number)?;
        watchdog.watch(&saved[number], "load", || mask.load(&state))?;
    }
    Ok(())
}

fn load_rewards(run: &mut Run, dir: &Path, saved: Option<&[String]>) -> Result<()> {
    let Some(saved) = saved else { return Ok(()) };
    ensure_same(saved, &run.rewards.ids())?;
    for (number, reward) in run.rewards.components_mut().enumerate() {
        let state = files::read(&dir.join(reward_file(number)))?;
        run.watchdog.watch(&saved[number], "load", || reward.load(&state))?;
    }
    Ok(())
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
