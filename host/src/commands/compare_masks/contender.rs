//! Chooses the masks to compare, and leaves out those that cannot run.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use capo_loader::offer::Offer;
use capo_loader::registry::Registry;
use capo_loader::replay::check_held;
use capo_loader::watchdog::Watchdog;
use capo_loader::{ComponentConfig, component_names};
use capo_plugin::wire::KeyRange;
use capo_plugin::{BatchBuffer, MaskHandle, Point};

use super::super::args::CompareArgs;
use super::super::sweep::Range;
use crate::config::{self, Appended, Draft};

#[derive(Clone)]
pub struct Contender {
    pub name: String,
    pub config: ComponentConfig,
    /// The key that decides how many tokens it rejects, if its author names one.
    pub key: Option<(String, KeyRange)>,
}

impl Contender {
    /// A copy of the mask with `value` under `key`.
    pub fn with(&self, key: &str, value: toml::Value) -> Self {
        let mut changed = self.clone();
        changed.config.table.insert(key.to_owned(), value);
        changed
    }

    /// The key that a search varies; `None` if the author names none, or the table already has a
    /// value.
    pub fn open_key(&self) -> Option<&(String, KeyRange)> {
        self.key
            .as_ref()
            .filter(|(key, _)| !self.config.table.contains_key(key))
    }

    /// Builds the mask with a fresh state.
    pub fn build(&self, registry: &Registry, watchdog: &Watchdog) -> Result<MaskHandle> {
        Ok(registry.create(&self.config, watchdog)?.renamed(&self.name))
    }
}

/// The masks of the config, and the `appended` ones behind them.
fn masks(
    args: &CompareArgs,
    sets: &[String],
    appended: Vec<String>,
) -> Result<Vec<ComponentConfig>> {
    let appended = Appended {
        masks: appended,
        ..Appended::default()
    };
    let (masks, _) = Draft::read(args.config.as_deref(), config::DEFAULT, sets)?
        .with_appended(appended)
        .masks_and_weights()?;
    Ok(masks)
}

/// The key of the mask `id` for which its author gives a range to search.
fn searched_key(offers: &[&Offer], id: &str) -> Option<(String, KeyRange)> {
    let offer = offers.iter().find(|offer| offer.id == id)?;
    let mut keys = offer.keys.iter();
    keys.find_map(|key| Some((key.name.to_string(), key.range.into_option()?)))
}

pub struct SelectedMasks {
    /// The masks in the order of the report.
    pub contenders: Vec<Contender>,
    /// A message about each mask that the user did not name and that cannot run.
    pub left_out: Vec<String>,
    /// True if the user named the masks; then a mask that cannot run is an error.
    named: bool,
    /// True if open keys are searched, so that they need no value.
    searched: bool,
    /// The built masks by name, to ask for their inputs.
    built: BTreeMap<String, MaskHandle>,
}

impl SelectedMasks {
    /// Chooses the masks of the config and of `--mask`; without either, all available masks.
    pub fn choose(args: &CompareArgs, registry: &Registry, searched: bool) -> Result<Self> {
        let mut offers = registry.offers();
        offers.retain(|offer| offer.point == Point::Mask);
        let named = !masks(args, &[], args.mask.clone())?.is_empty();
        let ids = if named {
            args.mask.clone()
        } else {
            offers.iter().map(|offer| offer.id.clone()).collect()
        };
        ensure!(
            named || !ids.is_empty(),
            "there is no mask to compare (load a plugin that offers some with `--plugin`)"
        );
        let configs = masks(args, &args.set, ids)?;
        let names = component_names(&configs);
        let contenders = configs.into_iter().zip(names);
        let contenders = contenders
            .map(|(config, name)| Contender {
                name,
                key: searched_key(&offers, &config.id),
                config,
            })
            .collect();
        Ok(Self {
            contenders,
            left_out: Vec::new(),
            named,
            searched,
            built: BTreeMap::new(),
        })
    }

    pub fn names(&self) -> Vec<String> {
        self.contenders
            .iter()
            .map(|contender| contender.name.clone())
            .collect()
    }

    /// Keeps the masks that can be built. A mask with a searched key is built at both ends of its
    /// range.
    pub fn keep_buildable(&mut self, registry: &Registry, watchdog: &Watchdog) -> Result<()> {
        let searched = self.searched;
        let mut built = BTreeMap::new();
        self.retain(&mut |contender| {
            let mask = match contender.open_key().filter(|_| searched) {
                None => contender.build(registry, watchdog)?,
                Some((key, ends)) => {
                    let range = Range::of_author(key, *ends);
                    let [low, high] = [ends.low, ends.high].map(|end| range.toml(end));
                    contender.with(key, low).build(registry, watchdog)?;
                    contender.with(key, high).build(registry, watchdog)?
                }
            };
            built.insert(contender.name.clone(), mask);
            Ok(())
        })?;
        self.built = built;
        Ok(())
    }

    /// Keeps the masks whose inputs the batch of the file `path` contains.
    pub fn keep_supplied(&mut self, path: &Path, batch: &BatchBuffer) -> Result<()> {
        let built = std::mem::take(&mut self.built);
        self.retain(&mut |contender| check_held(&built[&contender.name], path, batch))?;
        self.built = built;
        Ok(())
    }

    /// Leaves out the masks that `check` refuses.
    fn retain(&mut self, check: &mut dyn FnMut(&Contender) -> Result<()>) -> Result<()> {
        let mut left = Vec::with_capacity(self.contenders.len());
        for contender in std::mem::take(&mut self.contenders) {
            match check(&contender) {
                Ok(()) => left.push(contender),
                // A mask with keys in its table was named by the user too.
                Err(error) if self.named || !contender.config.table.is_empty() => {
                    return Err(error);
                }
                Err(error) => self
                    .left_out
                    .push(format!("left out `{}`: {error:#}", contender.name)),
            }
        }
        self.contenders = left;
        Ok(())
    }
}
