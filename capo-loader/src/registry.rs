//! Every component and recipe that this run knows, whichever image it came from.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use capo_plugin::{Advantage, Image, Mask, ObjectiveFn, Point, RewardFn, nearest};

use crate::component::{ComponentConfig, mask_names};
use crate::open;
use crate::trust::{PluginRecord, Trust, TrustedFile};
use crate::watchdog::Watchdog;

/// An image's name in sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Linked into the executable.
    BuiltIn,
    /// Loaded from a file.
    File(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built in"),
            Self::File(path) => write!(f, "`{}`", path.display()),
        }
    }
}

/// One component on offer.
#[derive(Debug, Clone)]
pub struct Offer {
    /// Its extension point.
    pub point: Point,
    /// Its id.
    pub id: String,
    /// One line for a person.
    pub about: String,
    /// The crate that registered it, with its version.
    pub package: String,
    /// The configuration keys it reads.
    pub keys: Vec<String>,
    /// Where it came from.
    pub origin: Origin,
    image: usize,
}

/// One recipe on offer.
#[derive(Debug, Clone)]
pub struct OfferedRecipe {
    /// What `recipe = "..."` calls it.
    pub name: String,
    /// One line for a person.
    pub about: String,
    /// Component tables.
    pub toml: String,
    /// Where it came from.
    pub origin: Origin,
}

/// Images, their components and their recipes.
#[derive(Default)]
pub struct Registry {
    images: Vec<Image>,
    offers: Vec<Offer>,
    recipes: Vec<OfferedRecipe>,
    plugins: Vec<TrustedFile>,
}

/// The components of a run, built.
pub struct Components {
    /// The one advantage estimator.
    pub advantage: Advantage,
    /// The one objective.
    pub objective: ObjectiveFn,
    /// The masks, in order.
    pub masks: Vec<Mask>,
}

impl Registry {
    /// What is linked into this executable, and the plugins `names`, in order.
    ///
    /// # Errors
    ///
    /// When a plugin is not found, is not to be trusted, cannot be loaded, or offers an id that is already taken.
    pub fn open(names: &[PathBuf]) -> Result<Self> {
        Self::open_with(names, &Trust::default())
    }

    /// The same with other demands on the files.
    ///
    /// # Errors
    ///
    /// As [`Registry::open`].
    pub fn open_with(names: &[PathBuf], trust: &Trust) -> Result<Self> {
        let mut registry = Self::default();
        registry.add(Image::own(), Origin::BuiltIn)?;
        for name in names {
            let file = trust.check(name)?;
            if registry.plugins.iter().any(|other| other.path == file.path) {
                bail!("plugin `{}` is given twice (leave one out)", file.path.display());
            }
            registry.add(open::load(&file.path)?, Origin::File(file.path.clone()))?;
            registry.plugins.push(file);
        }
        Ok(registry)
    }

    fn add(&mut self, image: Image, origin: Origin) -> Result<()> {
        for point in Point::ALL {
            for info in image.components(point).map_err(|differences| anyhow!(differences))? {
                let id = info.id.into_string();
                if let Some(first) = self.offers.iter().find(|offer| offer.id == id) {
                    bail!("component `{id}` is offered twice: {} and {origin} (load only one of them)", first.origin);
                }
                self.offers.push(Offer {
                    point,
                    id,
                    about: info.about.into(),
                    package: format!("{} {}", info.package, info.version),
                    keys: info.keys.into_iter().map(Into::into).collect(),
                    origin: origin.clone(),
                    image: self.images.len(),
                });
            }
        }
        for recipe in image.recipes().map_err(|differences| anyhow!(differences))? {
            let name = recipe.name.into_string();
            if let Some(first) = self.recipes.iter().find(|known| known.name == name) {
                bail!("recipe `{name}` is offered twice: {} and {origin} (load only one of them)", first.origin);
            }
            let (about, toml) = (recipe.about.into(), recipe.toml.into());
            self.recipes.push(OfferedRecipe { name, about, toml, origin: origin.clone() });
        }
        self.images.push(image);
        Ok(())
    }

    /// All components, in the order of points and ids.
    #[must_use]
    pub fn offers(&self) -> Vec<&Offer> {
        let mut offers = self.offers.iter().collect::<Vec<_>>();
        offers.sort_by(|a, b| (a.point, &a.id).cmp(&(b.point, &b.id)));
        offers
    }

    /// All recipes, in the order of their names.
    #[must_use]
    pub fn recipes(&self) -> Vec<&OfferedRecipe> {
        let mut recipes = self.recipes.iter().collect::<Vec<_>>();
        recipes.sort_by(|a, b| a.name.cmp(&b.name));
        recipes
    }

    /// The plugins that were loaded, in order.
    #[must_use]
    pub fn plugins(&self) -> Vec<PluginRecord> {
        let record = |file: &TrustedFile| {
            let origin = Origin::File(file.path.clone());
            let offers = || self.offers.iter().filter(|offer| offer.origin == origin);
            let packages = offers().map(|offer| offer.package.clone()).collect::<BTreeSet<_>>();
            PluginRecord {
                path: file.path.clone(),
                packages: packages.into_iter().collect(),
                sha256: file.sha256.clone(),
                components: offers().map(|offer| offer.id.clone()).collect(),
            }
        };
        self.plugins.iter().map(record).collect()
    }

    /// The recipe called `name`.
    ///
    /// # Errors
    ///
    /// When no image carries it: the nearest one, or all there are.
    pub fn recipe(&self, name: &str) -> Result<&OfferedRecipe> {
        let names = || self.recipes().into_iter().map(|recipe| recipe.name.as_str());
        self.recipes.iter().find(|recipe| recipe.name == name).ok_or_else(|| {
            let hint = nearest(name, names()).map_or_else(
                || {
                    format!(
                        "known: `{}`; a plugin's recipe needs its `--plugin`",
                        names().collect::<Vec<_>>().join("`, `")
                    )
                },
                |near| format!("did you mean `{near}`?"),
            );
            anyhow!("recipe `{name}` is unknown ({hint})")
        })
    }

    /// The one recipe that a plugin carries, else the built-in one called `built_in`.
    ///
    /// # Errors
    ///
    /// When several plugins carry a recipe.
    pub fn default_recipe(&self, built_in: &str) -> Result<&OfferedRecipe> {
        let loaded = self.recipes.iter().filter(|recipe| recipe.origin != Origin::BuiltIn).collect::<Vec<_>>();
        match loaded[..] {
            [] => self.recipe(built_in),
            [one] => Ok(one),
            _ => {
                let names = loaded.iter().map(|recipe| format!("`{}`", recipe.name)).collect::<Vec<_>>().join(" and ");
                bail!(
                    "the plugins carry {} recipes, {names}, and the config does not choose (add `--set recipe={}`, or name `[advantage]` and `[objective]` in a config)",
                    loaded.len(),
                    loaded[0].name
                )
            }
        }
    }

    /// Builds the components of a run.
    ///
    /// # Errors
    ///
    /// When an id is unknown or at the wrong point, or a component refuses its table.
    pub fn build(
        &self,
        advantage: &ComponentConfig,
        objective: &ComponentConfig,
        masks: &[ComponentConfig],
        watchdog: &Watchdog,
    ) -> Result<Components> {
        let advantage = self.one("[advantage]", Point::Advantage, advantage, watchdog, Image::advantage)?;
        let objective = self.one("[objective]", Point::Objective, objective, watchdog, Image::objective)?;
        Ok(Components { advantage, objective, masks: self.masks(masks, watchdog)? })
    }

    /// Builds masks alone, each under its name in reports.
    ///
    /// # Errors
    ///
    /// As [`Registry::build`].
    pub fn masks(&self, configs: &[ComponentConfig], watchdog: &Watchdog) -> Result<Vec<Mask>> {
        let build = |(config, name): (&ComponentConfig, String)| {
            let mask = self.one("[[mask]]", Point::Mask, config, watchdog, Image::mask)?;
            Ok(mask.renamed(&name))
        };
        configs.iter().zip(mask_names(configs)).map(build).collect()
    }

    /// Builds one reward.
    ///
    /// # Errors
    ///
    /// As [`Registry::build`].
    pub fn reward(&self, config: &ComponentConfig, watchdog: &Watchdog) -> Result<RewardFn> {
        self.one("[[reward]]", Point::Reward, config, watchdog, Image::reward)
    }

    fn one<C>(
        &self,
        section: &str,
        point: Point,
        config: &ComponentConfig,
        watchdog: &Watchdog,
        build: impl Fn(&Image, &str, &str) -> Result<C, capo_plugin::PluginError>,
    ) -> Result<C> {
        let offer = self.offer(section, point, &config.id)?;
        let table = serde_json::to_string(&config.table)?;
        watchdog
            .watch(&offer.id, "create", || build(&self.images[offer.image], &offer.id, &table))
            .map_err(|error| anyhow!("`{section}` with `use = \"{}\"`: {error}", config.id))
    }

    fn offer(&self, section: &str, point: Point, id: &str) -> Result<&Offer> {
        let Some(offer) = self.offers.iter().find(|offer| offer.id == id) else {
            let here = || self.offers().into_iter().filter(|offer| offer.point == point).map(|offer| offer.id.as_str());
            let hint = nearest(id, here()).map_or_else(
                || {
                    format!(
                        "known here: `{}`; a plugin's components need its `--plugin`",
                        here().collect::<Vec<_>>().join("`, `")
                    )
                },
                |near| format!("did you mean `{near}`?"),
            );
            bail!("`{section}` names `{id}`, which no loaded image offers ({hint})");
        };
        if offer.point != point {
            let name = offer.point.name();
            let right = match offer.point {
                Point::Reward | Point::Mask => format!("[[{name}]]"),
                Point::Advantage | Point::Objective => format!("[{name}]"),
            };
            bail!("`{section}` names `{id}`, which is offered at the {name} point (move it to `{right}`)");
        }
        Ok(offer)
    }
}
