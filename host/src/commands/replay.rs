//! `host replay`.

use anyhow::Result;
use capo_loader::replay::replay;
use capo_loader::watchdog::Watchdog;
use capo_loader::{ComponentConfig, mask_names, upload};

use super::args::ReplayArgs;
use super::sweep::{Range, Sweep};
use crate::config::{self, Draft};
use crate::report::terminal::say;

/// Runs masks over recorded batches.
pub(super) fn run(args: &ReplayArgs) -> Result<()> {
    let device = upload::Device::open(&args.device, args.dtype())?;
    let registry = args.plugins.open()?;
    let masks = |set: Option<String>| -> Result<Vec<ComponentConfig>> {
        let sets: Vec<String> = args.set.iter().cloned().chain(set).collect();
        let draft = Draft::read(args.config.as_deref(), config::DEFAULT, &sets)?.with_masks(&args.masks.mask);
        if args.config.is_some() { draft.masks() } else { Ok(config::resolve(&registry, draft)?.config.mask) }
    };
    let ranges = args.sweep.iter().map(|text| text.parse()).collect::<Result<Vec<Range>>>()?;
    let target = args.target_rate.as_deref().map(str::parse).transpose()?;
    if let Some(out) = &args.out {
        let masks = masks(None)?;
        let watchdog = Watchdog::start(0, mask_names(&masks));
        let mut masks = registry.masks(&masks, &watchdog)?;
        replay(&mut masks, &watchdog, &args.batches, device.as_ref(), out, &say)?;
    }
    Sweep::open(&registry, &masks, &args.batches, device.as_ref(), &ranges)?.run(&ranges, target.as_ref(), &say)
}
