//! `host plugins`.

use anyhow::Result;
use capo_loader::listing;

use super::args::ListArgs;
use crate::terminal::say;

/// Lists components and recipes as lines or JSON, or prints the plugins' pins.
pub(super) fn run(args: &ListArgs, verbose: bool) -> Result<()> {
    let registry = args.plugins.open()?;
    if args.json {
        say(&listing::json(&registry, "host", env!("CARGO_PKG_VERSION")).to_string());
    } else {
        let lines = if args.hash {
            listing::pins(&registry)
        } else {
            listing::lines(&registry, verbose)
        };
        lines.iter().for_each(|line| say(line));
    }
    Ok(())
}
