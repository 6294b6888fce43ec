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

struct Open {
    policy: Policy,
    companions: Companions,
    card: Option<String>,
    /// The step of a run's checkpoint.
    step: Option<u64>,
}

fn open(args: &ExportArgs) -> Result<Open> {
    folder::check_new(&args.out, "--out")?;
    let chosen = checkpoint::chosen(&args.model, args.step)?;
    let (model, step) = match chosen {
        Some((path, step)) => (path.display().to_string(), Some(step)),
        None => (args.model.clone(), None),
    };
    let files = embedded::model_files(&model)?;
    let card = step.map(|step| card::of_run(Path::new(&args.model), step));
    Ok(Open {
        policy: Policy::load(&files, &device::open(device::CPU)?)?,
        companions: Companions::read(&files)?,
        card: card.transpose()?,
        step,
    })
}

/// Writes a model as a Hugging Face folder. An adapter's product is added to its base, and a run's
/// model gets a card.
pub(super) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let Open {
        policy,
        companions,
        card,
        step,
    } = open(args).map_err(Failure::Input)?;
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
    let step = step.map_or(String::new(), |step| format!(", step {step}"));
    say(&format!(
        "{count} parameters{merged}{step}: `{}`",
        args.out.display()
    ));
    Ok(())
}
