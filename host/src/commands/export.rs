//! `host export`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::args::ExportArgs;
use super::card;
use super::failure::Failure;
use crate::folder;
use crate::model::{Policy, device, embedded};
use crate::report::terminal::{grouped, say};
use crate::run::{CONFIG_FILE, checkpoint};

/// Writes a model as a Hugging Face folder. An adapter's product is added to its base, and a run's model gets a card.
pub(super) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let open = || -> Result<_> {
        folder::check_new(&args.out, "--out")?;
        let chosen = chosen(&args.model, args.step)?;
        let model = chosen.as_ref().map_or_else(|| args.model.clone(), |(path, _)| path.display().to_string());
        let files = embedded::model_files(&model)?;
        let policy = Policy::load(&files, &device::open(device::CPU, device::Dtype::F32)?)?;
        let card = chosen.as_ref().map(|(_, step)| card::of_run(Path::new(&args.model), *step)).transpose()?;
        Ok((files, policy, card, chosen))
    };
    let (files, policy, card, chosen) = open().map_err(Failure::Input)?;
    let count = grouped(policy.weights().element_count() as u64);
    let merged = if policy.adapter().is_some() { ", the adapter merged" } else { "" };
    let written = policy.merged().and_then(|policy| folder::write(&args.out, &policy, &files, card.as_deref()));
    written.map_err(Failure::Run)?;
    let step = chosen.map_or(String::new(), |(_, step)| format!(", step {step}"));
    say(&format!("{count} parameters{merged}{step}: `{}`", args.out.display()));
    Ok(())
}

/// True if `dir` holds a run with checkpoints.
pub(super) fn is_run(dir: &Path) -> bool {
    dir.join(CONFIG_FILE).is_file() && dir.join(checkpoint::FOLDER).is_dir()
}

/// The checkpoint of the run `model` at `step`, by default the best or else the newest, and its step. `None` if the model is no run.
pub(super) fn chosen(model: &str, step: Option<u64>) -> Result<Option<(PathBuf, u64)>> {
    let dir = Path::new(model);
    if !is_run(dir) {
        ensure!(step.is_none(), "`{model}` is no run, and so has no steps to choose from (remove `--step`)");
        return Ok(None);
    }
    let steps = checkpoint::steps(dir)?;
    let newest = *steps.last().with_context(|| format!("the run `{model}` has no checkpoint yet"))?;
    let step = match step {
        Some(step) => step,
        None => checkpoint::best(dir, newest)?.unwrap_or(newest),
    };
    ensure!(
        steps.contains(&step),
        "the run `{model}` has no checkpoint of step {step} (it has those of {})",
        steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
    );
    Ok(Some((checkpoint::path(dir, step), step)))
}
