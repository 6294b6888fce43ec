//! Checkpoints: model, optimizer, progress and every component's state, whole or absent.
//!
//! `checkpoints/step-000040/` is a Hugging Face directory with three things beside the model: `optimizer.safetensors`,
//! `component-N.bin` in the order advantage, objective, masks, and `progress.json`, which also holds the SHA-256 of every
//! other file. Random streams are functions of seed and position, so there is no generator to save.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use capo_plugin::PluginError;
use serde::{Deserialize, Serialize};

use crate::data::Tokenizer;
use crate::files::{self, sha256_hex};
use crate::model::{CONFIG_FILE, ModelFiles, Params, WEIGHTS_FILE};
use crate::registry::Components;
use crate::run::{Progress, Run};

const FOLDER: &str = "checkpoints";
const OPTIMIZER_FILE: &str = "optimizer.safetensors";
const PROGRESS_FILE: &str = "progress.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    progress: Progress,
    /// Component ids, in the order of their files.
    components: Vec<String>,
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
    let mut components = Vec::new();
    for (number, (id, state)) in component_states(run)?.into_iter().enumerate() {
        let file = component_file(number);
        files::write_atomic(&dir.join(&file), &state)?;
        written.push(file);
        components.push(id);
    }
    let hash = |file: String| Ok((file.clone(), sha256_hex(&files::read(&dir.join(file))?)));
    let sha256 = written.into_iter().map(hash).collect::<Result<_>>()?;
    let manifest = Manifest { progress: run.progress.clone(), components, sha256 };
    files::write_atomic(&dir.join(PROGRESS_FILE), &serde_json::to_vec_pretty(&manifest)?)
}

fn component_file(number: usize) -> String {
    format!("component-{number}.bin")
}

fn component_states(run: &Run) -> Result<Vec<(String, Vec<u8>)>> {
    let components = &run.components;
    let save = |id: &str, save: &dyn Fn() -> Result<Vec<u8>, PluginError>| -> Result<_> {
        let state = run.watchdog.watch(id, "save", save)?;
        check_size(id, state.len() as u64, run.config.train.component_state_limit)?;
        Ok((id.to_owned(), state))
    };
    let mut states = vec![
        save(components.advantage.id(), &|| components.advantage.save())?,
        save(components.objective.id(), &|| components.objective.save())?,
    ];
    for mask in &components.masks {
        states.push(save(mask.id(), &|| mask.save())?);
    }
    Ok(states)
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
    run.progress = manifest.progress;
    Ok(())
}

fn load_components(run: &mut Run, dir: &Path, saved: &[String]) -> Result<()> {
    let ids = run.config.component_ids();
    if ids != *saved {
        bail!(
            "it holds the state of `{}`, the run has `{}` (resume with the plugins and the `config.toml` that the run began with)",
            saved.join("`, `"),
            ids.join("`, `")
        );
    }
    let state = |number: usize| files::read(&dir.join(component_file(number)));
    let load = |id: &str, load: &mut dyn FnMut(&[u8]) -> Result<(), PluginError>, number: usize| -> Result<()> {
        let state = state(number)?;
        Ok(run.watchdog.watch(id, "load", || load(&state))?)
    };
    let Components { advantage, objective, masks } = &mut run.components;
    load(&ids[0], &mut |state| advantage.load(state), 0)?;
    load(&ids[1], &mut |state| objective.load(state), 1)?;
    for (number, mask) in masks.iter_mut().enumerate() {
        load(&ids[number + 2], &mut |state| mask.load(state), number + 2)?;
    }
    Ok(())
}
