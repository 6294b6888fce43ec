//! Loaded plugins, and their components and recipes.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use capo_loader::listing;
use capo_loader::registry;
use capo_loader::trust::Trust;
use capo_loader::watchdog::Watchdog;
use capo_loader::{ComponentConfig, find};
use capo_plugin::{Point, plain};
use capo_system::terminal::escape;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::component::{Component, Handle};
use crate::error::failed;
use crate::lock::Lock;

/// Sets of open libraries. Each set is opened once per process, because libraries are never
/// unloaded.
static OPEN: Lock<Vec<Arc<registry::Registry>>> = Lock::new(Vec::new());

/// Plugins by their files; users see the class `capo_rl.Plugins`.
#[pyclass(frozen, module = "capo_rl._native")]
pub(crate) struct Registry(pub(crate) Arc<registry::Registry>);

#[pymethods]
impl Registry {
    /// Opens the plugins `names`, or without names the plugins that came with this package.
    #[new]
    fn new(py: Python<'_>, names: Vec<PathBuf>, unsafe_path: bool) -> PyResult<Self> {
        let trust = Trust {
            unsafe_path,
            known: None,
        };
        let opened = OPEN.with(py, "the opening of plugins", |known| {
            open(known, names, &trust)
        })?;
        opened.map(Self).map_err(|error| failed(&error))
    }

    /// The available components and recipes, as lines for users.
    fn lines(&self, verbose: bool) -> Vec<String> {
        listing::lines(&self.0, verbose)
            .iter()
            .map(|line| escape(line).into_owned())
            .collect()
    }

    /// One line per plugin: its file and the file's hash.
    fn pins(&self) -> Vec<String> {
        listing::pins(&self.0)
            .iter()
            .map(|line| escape(line).into_owned())
            .collect()
    }

    /// The available components and recipes, as JSON.
    fn json(&self) -> String {
        escape(&listing::json(&self.0, "capo_rl", env!("CARGO_PKG_VERSION")).to_string())
            .into_owned()
    }

    /// The description of the component `id` of the point `point`, with its keys.
    fn describe(&self, point: &str, id: &str) -> String {
        let point = Point::ALL.into_iter().find(|known| known.name() == point);
        let lines = point.map(|point| listing::of_component(&self.0, point, id));
        escape(&lines.unwrap_or_default().join("\n")).into_owned()
    }

    /// The component `id` of the point `point`, with its keys as JSON.
    fn component(&self, py: Python<'_>, point: &str, id: &str, keys: &str) -> PyResult<Component> {
        let config = config(id, keys)?;
        let handle = py
            .detach(|| self.build(point, &config))
            .map_err(|error| failed(&error))?;
        Ok(Component::new(id, handle))
    }
}

/// The component `id` with its keys as JSON.
fn config(id: &str, keys: &str) -> PyResult<ComponentConfig> {
    let table = serde_json::from_str(keys).map_err(|error| {
        PyValueError::new_err(format!(
            "the keys of `{id}` are no table of TOML: {}",
            plain::toml(&error)
        ))
    })?;
    Ok(ComponentConfig {
        id: id.to_owned(),
        table,
    })
}

impl Registry {
    fn build(&self, point: &str, config: &ComponentConfig) -> Result<Handle> {
        let watchdog = Watchdog::off();
        Ok(match point {
            "reward" => Handle::Reward(self.0.create(config, &watchdog)?),
            "advantage" => Handle::Advantage(self.0.create(config, &watchdog)?),
            "objective" => Handle::Objective(self.0.create(config, &watchdog)?),
            "weight" => Handle::Weight(self.0.create(config, &watchdog)?),
            "step_control" => Handle::StepControl(self.0.create(config, &watchdog)?),
            _ => Handle::Mask(self.0.create(config, &watchdog)?),
        })
    }
}

/// The plugins `names`, or those that came with this package. Files that are already open are not
/// opened again.
fn open(
    open: &mut Vec<Arc<registry::Registry>>,
    names: Vec<PathBuf>,
    trust: &Trust,
) -> Result<Arc<registry::Registry>> {
    let names = if names.is_empty() {
        find::carried()
    } else {
        names
    };
    ensure!(
        !names.is_empty(),
        "this installation of `capo_rl` carries no plugins (install its wheel, or name a `plugin`)"
    );
    let files = names
        .iter()
        .map(|name| trust.check(name))
        .collect::<Result<Vec<_>>>()?;
    let known = open.iter().find(|known| {
        let plugins = known.plugins();
        plugins.len() == files.len()
            && plugins
                .iter()
                .zip(&files)
                .all(|(one, file)| one.path == file.path && one.sha256 == file.sha256)
    });
    if let Some(known) = known {
        return Ok(Arc::clone(known));
    }
    let new = Arc::new(registry::Registry::open_with(&names, trust, None)?);
    open.push(Arc::clone(&new));
    Ok(new)
}
