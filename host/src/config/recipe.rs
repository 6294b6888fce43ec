//! Which recipe fills in what a config leaves open.

use anyhow::Result;
use capo_loader::registry::Registry;

use super::{Config, Draft};
use crate::builtin::DEFAULT_RECIPE;

/// Chooses the recipe for what `draft` leaves open, and finishes it.
///
/// A config that names a recipe gets that one; one that names both an advantage and an objective needs none; else the one recipe
/// that a plugin carries; else the built-in default.
///
/// # Errors
///
/// When several plugins carry a recipe and the config does not choose, the named recipe is unknown, or the config is
/// wrong.
pub fn resolve(registry: &Registry, mut draft: Draft) -> Result<Config> {
    let chosen = match draft.recipe()? {
        Some(name) => Some(registry.recipe(name)?),
        None if draft.names_components() => None,
        None => Some(registry.default_recipe(DEFAULT_RECIPE)?),
    };
    if let Some(recipe) = chosen {
        draft.merge_recipe(&recipe.name, &recipe.toml)?;
    }
    draft.finish()
}
