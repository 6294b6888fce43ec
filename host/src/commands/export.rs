//! `host export`.

use std::path::Path;

use anyhow::Result;
use host_model::{Policy, device, embedded};

use super::args::ExportArgs;
use super::card;
use super::failure::Failure;
use crate::folder::{self, Companions};
use crate::run::checkpoint;
use crate::terminal::{grouped, say};

/// Writes a model as a Hugging Face folder. An adapter's product is added to its base, and a run's
/// model gets a card.
pub(super) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let open = || -> Result<_> {
        folder::check_new(&args.out, "--out")?;
        let chosen = checkpoint::chosen(&args.model, args.step)?;
        let model = chosen.as_ref().map_or_else(
            || args.model.clone(),
            |(path, _)| path.display().to_string(),
        );
        let files = embedded::model_files(&model)?;
        let policy = Policy::load(&files, &device::open(device::CPU)?)?;
        let companions = Companions::read(&files)?;
        let card = chosen
            .as_ref()
            .map(|(_, step)| card::of_run(Path::new(&args.model), *step))
            .transpose()?;
        Ok((companions, policy, card, chosen))
    };
    let (companions, policy, card, chosen) = open().map_err(Failure::Input)?;
    let count = grouped(policy.weights().element_count() as u64);
    let merged = if policy.adapter().is_some() {
        ", the adapter merged"
    } else {
        ""
    };
    let written = policy
        .merged()
        .and_then(|policy| folder::write(&args.out, &policy, &companions, card.as_deref()));
    written.map_err(Failure::Run)?;
    let step = chosen.map_or(String::new(), |(_, step)| format!(", step {step}"));
    say(&format!(
        "{count} parameters{merged}{step}: `{}`",
        args.out.display()
    ));
    Ok(())
}
