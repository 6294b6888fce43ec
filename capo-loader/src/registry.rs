//! The registry of all components and recipes that a run can use, from every image.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use capo_plugin::wire::KeyDoc;
use capo_plugin::{
    AdvantageHandle, Component, Image, Inputs, ObjectiveHandle, Point, StepControlHandle,
    WireObject, nearest,
};

use crate::decision::Deciders;
use crate::find;
use crate::offer::{self, Offer, OfferedRecipe, Origin};
use crate::open;
use crate::tables::{Choice, ComponentConfig, component_names};
use crate::trust::{LoadedPlugin, Trust, TrustedFile};
use crate::warning::one_line;
use crate::watchdog::Watchdog;

/// Images, their components and their recipes.
#[derive(Default)]
pub struct Registry {
    images: Vec<Image>,
    offers: Vec<Offer>,
    recipes: Vec<OfferedRecipe>,
    plugins: Vec<LoadedPlugin>,
    /// Watches over the plugins while they are opened or answer questions about their components.
    watchdog: Watchdog,
}

/// The components of a run, built.
pub struct Components {
    /// The one advantage estimator.
    pub advantage: AdvantageHandle,
    /// The one objective.
    pub objective: ObjectiveHandle,
    /// The masks and weights, in order.
    pub deciders: Deciders,
    /// The step controls, in order.
    pub step_controls: Vec<StepControlHandle>,
}

impl Registry {
    /// Opens a registry of the components linked into this executable and of the plugins `names`,
    /// in order.
    ///
    /// # Errors
    ///
    /// When a plugin is not found, not trusted or cannot be loaded, or an id that it offers is
    /// taken or invalid.
    pub fn open(names: &[PathBuf]) -> Result<Self> {
        Self::open_with(names, &Trust::default(), None)
    }

    /// Opens plugins like `open`, with the checks of `trust`. With `seconds`, the process ends with
    /// a message if opening a plugin takes longer, or if the plugin ends the process; 0 is no time
    /// limit. `None` does not watch.
    ///
    /// # Errors
    ///
    /// The errors of [`Registry::open`].
    pub fn open_with(names: &[PathBuf], trust: &Trust, seconds: Option<u64>) -> Result<Self> {
        let mut registry = Self::default();
        registry.add(Image::own(), &Origin::BuiltIn)?;
        let files = names
            .iter()
            .map(|name| trust.check(name))
            .collect::<Result<Vec<_>>>()?;
        let watchdog = match seconds {
            Some(seconds) => Watchdog::over_plugins(seconds, files.iter().map(shown).collect()),
            None => Watchdog::off(),
        };
        for file in files {
            // A user may name a plugin again on the command line.
            if registry.plugins.iter().any(|other| other.path == file.path) {
                continue;
            }
            watchdog.watch(&shown(&file), "open", || {
                let image = open::load_bytes(&file.path, &file.bytes)?;
                registry.add(image, &Origin::File(file.path.clone()))
            })?;
            registry.note(file.path, file.sha256);
        }
        Ok(Self {
            watchdog,
            ..registry
        })
    }

    /// Adds what an image offers.
    fn add(&mut self, image: Image, origin: &Origin) -> Result<()> {
        for point in Point::ALL {
            let mut offered: Vec<_> = image
                .components(point)
                .map_err(|differences| anyhow!(differences))?
                .into_iter()
                .collect();
            // The linker decides the order of registration, which may differ in another build.
            offered.sort_by(|one, other| one.id.cmp(&other.id));
            for info in offered {
                let id = info.id.into_string();
                offer::check_name("component", &id, origin)?;
                if let Some(first) = self
                    .offers
                    .iter()
                    .find(|offer| offer.point == point && offer.id == id)
                {
                    bail!("component `{id}` {}", twice(&first.origin, origin));
                }
                self.offers.push(Offer {
                    point,
                    id,
                    about: one_line(&info.about),
                    package: one_line(&format!("{} {}", info.package, info.version)),
                    keys: info.keys.into_iter().map(with_plain_name).collect(),
                    origin: origin.clone(),
                    image: self.images.len(),
                });
            }
        }
        for recipe in image
            .recipes()
            .map_err(|differences| anyhow!(differences))?
        {
            let name = recipe.name.into_string();
            offer::check_name("recipe", &name, origin)?;
            if let Some(first) = self.recipes.iter().find(|known| known.name == name) {
                bail!("recipe `{name}` {}", twice(&first.origin, origin));
            }
            self.recipes.push(OfferedRecipe {
                name,
                about: one_line(&recipe.about),
                toml: recipe.toml.into(),
                origin: origin.clone(),
            });
        }
        self.images.push(image);
        Ok(())
    }

    /// All components, in the order of points and ids.
    pub fn offers(&self) -> Vec<&Offer> {
        let mut offers = self.offers.iter().collect::<Vec<_>>();
        offers.sort_by(|a, b| (a.point, &a.id).cmp(&(b.point, &b.id)));
        offers
    }

    /// Inputs that a component asks of a batch, if it can be built without keys. `None` for
    /// components that see no batch.
    pub fn inputs(&self, offer: &Offer) -> Option<Inputs> {
        let path = match &offer.origin {
            Origin::BuiltIn => String::new(),
            Origin::File(path) => path.display().to_string(),
        };
        let image = &self.images[offer.image];
        let id = &offer.id;
        self.watchdog
            .watch(&path, "describe", || match offer.point {
                Point::Environment | Point::Reward => None,
                Point::Advantage => image
                    .advantage(id, "{}")
                    .ok()
                    .map(|component| component.inputs()),
                Point::Objective => image
                    .objective(id, "{}")
                    .ok()
                    .map(|component| component.inputs()),
                Point::Mask => image
                    .mask(id, "{}")
                    .ok()
                    .map(|component| component.inputs()),
                Point::Weight => image
                    .weight(id, "{}")
                    .ok()
                    .map(|component| component.inputs()),
                Point::StepControl => image
                    .step_control(id, "{}")
                    .ok()
                    .map(|component| component.inputs()),
            })
    }

    /// All recipes, ordered by name.
    pub fn recipes(&self) -> Vec<&OfferedRecipe> {
        let mut recipes = self.recipes.iter().collect::<Vec<_>>();
        recipes.sort_by(|a, b| a.name.cmp(&b.name));
        recipes
    }

    /// The plugins that were loaded, in order.
    pub fn plugins(&self) -> Vec<LoadedPlugin> {
        self.plugins.clone()
    }

    /// Records the plugin at `path`, whose components have been added.
    fn note(&mut self, path: PathBuf, sha256: String) {
        let origin = Origin::File(path.clone());
        let offers: Vec<&Offer> = self
            .offers
            .iter()
            .filter(|offer| offer.origin == origin)
            .collect();
        let packages = offers
            .iter()
            .map(|offer| offer.package.clone())
            .collect::<BTreeSet<_>>();
        let components = offers.iter().map(|offer| offer.id.clone()).collect();
        self.plugins.push(LoadedPlugin {
            path,
            packages: packages.into_iter().collect(),
            sha256,
            components,
        });
    }

    /// A message for each plugin that the run does not use: none of its components is among `used`,
    /// and its recipe is not `recipe`.
    pub fn unused(&self, used: &[String], recipe: Option<&str>) -> Vec<String> {
        self.plugins
            .iter()
            .filter_map(|plugin| self.advice_to_use(plugin, used, recipe))
            .collect()
    }

    /// The message about `plugin`, if the run does not use it.
    fn advice_to_use(
        &self,
        plugin: &LoadedPlugin,
        used: &[String],
        recipe: Option<&str>,
    ) -> Option<String> {
        let origin = Origin::File(plugin.path.clone());
        let recipes = self.recipes.iter().filter(|recipe| recipe.origin == origin);
        let is_used = plugin.components.iter().any(|id| used.contains(id))
            || recipes
                .clone()
                .any(|offered| Some(offered.name.as_str()) == recipe);
        if is_used {
            return None;
        }
        // Chosen by name: a linker lays out a library's components and recipes in any order.
        let offers = self.offers.iter().filter(|offer| offer.origin == origin);
        let offer = offers.max_by_key(|offer| (offer.point, &offer.id));
        let advice = match (recipes.min_by_key(|recipe| &recipe.name), offer) {
            (Some(recipe), _) => format!("recipe = \"{}\"", recipe.name),
            (None, Some(offer)) => format!("{} use = \"{}\"", section(offer.point), offer.id),
            (None, None) => return None,
        };
        Some(format!(
            "{}: loaded, none of its components is used (add {advice})",
            origin.name()
        ))
    }

    /// The recipe called `name`.
    ///
    /// # Errors
    ///
    /// When no image offers it. The message suggests the nearest name, or lists all names.
    pub fn recipe(&self, name: &str) -> Result<&OfferedRecipe> {
        if let Some(recipe) = self.recipes.iter().find(|recipe| recipe.name == name) {
            return Ok(recipe);
        }
        let names: Vec<&str> = self
            .recipes()
            .into_iter()
            .map(|recipe| recipe.name.as_str())
            .collect();
        let hint = match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known: `{}`;", names.join("`, `")),
        };
        bail!("recipe `{name}` is unknown ({hint} a plugin's recipe needs its `--plugin`)")
    }

    /// True if a plugin offers `recipe` as a variant of another one.
    fn is_variant(&self, recipe: &OfferedRecipe) -> bool {
        self.recipes.iter().any(|base| {
            let rest = recipe.name.strip_prefix(&base.name);
            base.origin == recipe.origin && rest.is_some_and(|rest| rest.starts_with('-'))
        })
    }

    /// The only recipe that a plugin offers, else the built-in recipe `built_in`. A recipe
    /// `NAME-...` beside `NAME` in one plugin is a variant, which a config must name.
    ///
    /// # Errors
    ///
    /// When several plugins offer a recipe.
    pub fn default_recipe(&self, built_in: &str) -> Result<&OfferedRecipe> {
        let loaded: Vec<_> = self
            .recipes
            .iter()
            .filter(|recipe| recipe.origin != Origin::BuiltIn && !self.is_variant(recipe))
            .collect();
        match loaded[..] {
            [] => self.recipe(built_in),
            [one] => Ok(one),
            _ => {
                let names = loaded
                    .iter()
                    .map(|recipe| format!("`{}`", recipe.name))
                    .collect::<Vec<_>>()
                    .join(" and ");
                bail!(
                    "the plugins carry {} recipes, {names}, and the config does not choose (add \
                     `--set recipe={built_in}` for the built-in method, or one of these, as \
                     `--set recipe={}`)",
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
    pub fn build(&self, choice: Choice<'_>, watchdog: &Watchdog) -> Result<Components> {
        Ok(Components {
            advantage: self.create(choice.advantage, watchdog)?,
            objective: self.create(choice.objective, watchdog)?,
            deciders: self.deciders(choice.masks, choice.weights, watchdog)?,
            step_controls: self.create_all(choice.step_controls, watchdog)?,
        })
    }

    /// Builds masks and weights, each under its name in reports.
    ///
    /// # Errors
    ///
    /// The errors of [`Registry::build`].
    pub fn deciders(
        &self,
        masks: &[ComponentConfig],
        weights: &[ComponentConfig],
        watchdog: &Watchdog,
    ) -> Result<Deciders> {
        Ok(Deciders {
            masks: self.create_all(masks, watchdog)?,
            weights: self.create_all(weights, watchdog)?,
        })
    }

    /// Builds the components of a point that takes any number of them, each under its name in
    /// reports.
    ///
    /// # Errors
    ///
    /// The errors of [`Registry::build`].
    pub fn create_all<W: WireObject>(
        &self,
        configs: &[ComponentConfig],
        watchdog: &Watchdog,
    ) -> Result<Vec<Component<W>>> {
        let named = configs.iter().zip(component_names(configs));
        named
            .map(|(config, name)| Ok(self.create(config, watchdog)?.renamed(&name)))
            .collect()
    }

    /// Builds one component.
    ///
    /// # Errors
    ///
    /// The errors of [`Registry::build`].
    pub fn create<W: WireObject>(
        &self,
        config: &ComponentConfig,
        watchdog: &Watchdog,
    ) -> Result<Component<W>> {
        let section = section(W::POINT);
        let offer = self.offer(&section, W::POINT, &config.id)?;
        // JSON has no such numbers: a key would be absent, and so have its default.
        if let Some((key, number)) = not_finite(&config.table) {
            bail!(
                "`{section}` with `use = \"{}\"`: `{key}` is {number} (give a finite number)",
                config.id
            );
        }
        let table = serde_json::to_string(&config.table)?;
        watchdog
            .watch(&offer.id, "create", || {
                self.images[offer.image].create(&offer.id, &table)
            })
            .map_err(|error| anyhow!("`{section}` with `use = \"{}\"`: {error}", config.id))
    }

    fn offer(&self, section: &str, point: Point, id: &str) -> Result<&Offer> {
        // An id belongs to its point: a reward and an environment may have the same.
        let of_id = self.offers.iter().filter(|offer| offer.id == id);
        let Some(offer) = of_id.max_by_key(|offer| offer.point == point) else {
            let hint = self.hint_for_unknown(point, id);
            bail!("`{section}` names `{id}`, which no loaded plugin offers ({hint})");
        };
        if offer.point != point {
            bail!(
                "`{section}` names `{id}`, which is offered at the {} point (move it to `{}`)",
                words(offer.point),
                self::section(offer.point)
            );
        }
        Ok(offer)
    }

    /// The advice about `id`, which no image offers.
    fn hint_for_unknown(&self, point: Point, id: &str) -> String {
        let known: Vec<&str> = self
            .offers()
            .into_iter()
            .filter(|offer| offer.point == point)
            .map(|offer| offer.id.as_str())
            .collect();
        if let Some(near) = nearest(id, known.iter().copied()) {
            return format!("did you mean `{near}`?");
        }
        if let Some(library) = find::carrier(id) {
            return format!("give `--plugin {library}`");
        }
        if known.is_empty() {
            let name = words(point);
            return format!("no {name} is built in: load a plugin with `--plugin`");
        }
        let known = known.join("`, `");
        format!("known here: `{known}`; a plugin's components need its `--plugin`")
    }
}

/// The plugin's path, for messages.
fn shown(file: &TrustedFile) -> String {
    file.path.display().to_string()
}

/// The first number of `table` that is NaN or infinite, with its key.
fn not_finite(table: &toml::Table) -> Option<(&str, f64)> {
    fn within(value: &toml::Value) -> Option<f64> {
        match value {
            toml::Value::Float(number) => Some(*number).filter(|number| !number.is_finite()),
            toml::Value::Array(values) => values.iter().find_map(within),
            toml::Value::Table(table) => table.values().find_map(within),
            _ => None,
        }
    }
    table
        .iter()
        .find_map(|(key, value)| Some((key.as_str(), within(value)?)))
}

/// The point's name in messages.
fn words(point: Point) -> String {
    point.name().replace('_', " ")
}

/// The section of a config that names components of `point`.
fn section(point: Point) -> String {
    match point {
        Point::Reward | Point::Mask | Point::Weight | Point::StepControl => {
            format!("[[{}]]", point.name())
        }
        Point::Environment | Point::Advantage | Point::Objective => format!("[{}]", point.name()),
    }
}

/// Message about an id that two images offer, or that one image offers twice.
fn twice(first: &Origin, second: &Origin) -> String {
    if first == second {
        return format!(
            "is offered twice by {first} (the library registers it twice: give each its own id)"
        );
    }
    let built_in = [first, second].contains(&&Origin::BuiltIn);
    let advice = if built_in {
        "leave this plugin out"
    } else {
        "load only one of them"
    };
    format!("is offered twice: {first} and {second} ({advice})")
}

/// The key with a name that cannot forge lines of a listing.
fn with_plain_name(key: KeyDoc) -> KeyDoc {
    KeyDoc {
        name: one_line(&key.name).into(),
        ..key
    }
}
