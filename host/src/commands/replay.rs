//! `host replay`.

use anyhow::Result;
use capo_loader::registry::Registry;
use capo_loader::replay::Replay;
use capo_loader::upload;
use capo_loader::watchdog::Watchdog;

use super::args::ReplayArgs;
use super::batches::Batches;
use super::sweep::{Chosen, Range, Sweep};
use crate::config::{self, Draft, replayed_settings};
use crate::terminal::say;

/// Runs masks and weights over recorded batches.
pub(super) fn run(args: &ReplayArgs) -> Result<()> {
    let device = upload::Device::open(&args.device, args.dtype())?;
    let registry = args.plugins.open()?;
    let reads: &[&str] = if args.config.is_some() {
        &["mask", "weight"]
    } else {
        &["mask", "weight", "recipe"]
    };
    let optimizer = replayed_settings("a replay", reads, &args.set)?;
    let ranges = args
        .sweep
        .iter()
        .map(|text| text.parse())
        .collect::<Result<Vec<Range>>>()?;
    let target = args.target_rate.as_deref().map(str::parse).transpose()?;
    if let Some(out) = &args.out {
        let chosen = choose(args, &registry, None)?;
        let watchdog = Watchdog::start(0, chosen.names());
        let mut deciders = chosen.build(&registry, &watchdog)?;
        let replay = Replay {
            batches: &args.batches,
            optimizer,
            device: device.as_ref(),
            out: Some(out),
        };
        replay.run(&mut deciders, &watchdog, &mut |replayed| {
            say(&replayed.to_string());
        })?;
    }
    let batches = Batches {
        paths: &args.batches,
        optimizer,
        held: None,
    };
    let choose = |set| choose(args, &registry, set);
    Sweep::open(&registry, &choose, batches, device.as_ref(), &ranges)?
        .run(&ranges, target.as_ref())
}

/// The masks and weights of the config or the recipe, with one more override.
fn choose(args: &ReplayArgs, registry: &Registry, set: Option<String>) -> Result<Chosen> {
    let sets: Vec<String> = args.set.iter().cloned().chain(set).collect();
    let draft = Draft::read(args.config.as_deref(), config::DEFAULT, &sets)?
        .with_appended(args.masks.appended());
    let (masks, weights) = match &args.config {
        Some(_) => draft.masks_and_weights()?,
        None => {
            let config = config::resolve(registry, draft)?.config;
            (config.mask, config.weight)
        }
    };
    Ok(Chosen { masks, weights })
}
