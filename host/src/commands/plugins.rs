//! `host plugins`.

use anyhow::Result;
use capo_loader::trust::PIN;
use capo_plugin::Point;

use super::args::ListArgs;
use crate::report::terminal::say;

/// Lists components and recipes, or pins.
pub(super) fn run(args: &ListArgs) -> Result<()> {
    let registry = args.plugins.open()?;
    if args.hash {
        for plugin in registry.plugins() {
            say(&format!("{}{PIN}{}  {}", plugin.path.display(), plugin.sha256, plugin.packages.join(", ")));
        }
        return Ok(());
    }
    let mut point = None;
    for offer in registry.offers() {
        if point.replace(offer.point) != Some(offer.point) {
            let gap = if offer.point == Point::ALL[0] { "" } else { "\n" };
            say(&format!("{gap}{}", offer.point.name()));
        }
        let keys =
            if offer.keys.is_empty() { "no keys".to_owned() } else { format!("keys: {}", offer.keys.join(", ")) };
        say(&format!("  {:<24} {}", offer.id, offer.about));
        say(&format!("  {:<24} {keys}", ""));
        say(&format!("  {:<24} from {}, {}", "", offer.package, offer.origin));
    }
    say("\nrecipe");
    for recipe in registry.recipes() {
        say(&format!("  {:<24} {} ({})", recipe.name, recipe.about, recipe.origin));
    }
    Ok(())
}
