//! Masks and weights run on recorded batches: `host replay` with numpy arrays as results.

use std::path::{Path, PathBuf};

use anyhow::Result;
use capo_loader::batch_file::Outcome;
use capo_loader::replay::{OptimizerSettings, Replay};
use capo_loader::tables;
use capo_loader::upload::{Device, Dtype};
use capo_loader::watchdog::Watchdog;
use capo_system::files;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::failed;
use crate::numpy;
use crate::records::add;
use crate::registry::Registry;

/// Result for one batch: its shape, the outcome, and a line for users.
type Step = ([usize; 2], Outcome, String);

/// Runs the masks and weights of a config, or of the only recipe in `registry`, on batch files.
/// Returns a dict of arrays for each file.
#[pyfunction]
pub(crate) fn replay<'py>(
    py: Python<'py>,
    registry: &Registry,
    batches: Vec<PathBuf>,
    config: Option<PathBuf>,
    device: &str,
    dtype: &str,
    out: Option<PathBuf>,
) -> PyResult<Vec<(Bound<'py, PyDict>, String)>> {
    let Some((_, dtype)) = Dtype::NAMES.into_iter().find(|(name, _)| *name == dtype) else {
        let known = Dtype::NAMES.map(|(name, _)| name).join("`, `");
        return Err(PyValueError::new_err(format!(
            "`dtype` is `{dtype}` (known: `{known}`)"
        )));
    };
    let steps = py
        .detach(|| {
            let device = Device::open(device, dtype)?;
            let replay = Replay {
                batches: &batches,
                optimizer: OptimizerSettings::default(),
                device: device.as_ref(),
                out: out.as_deref(),
            };
            run(registry, config.as_deref(), &replay)
        })
        .map_err(|error| failed(&error))?;
    steps
        .into_iter()
        .map(|(shape, outcome, line)| Ok((to_dict(py, &shape, &outcome)?, line)))
        .collect()
}

fn run(
    Registry(registry): &Registry,
    config: Option<&Path>,
    replay: &Replay<'_>,
) -> Result<Vec<Step>> {
    let watchdog = Watchdog::off();
    let (text, origin) = match config {
        Some(path) => (files::text(path)?, format!("`{}`", path.display())),
        None => {
            let recipe = registry.default_recipe("")?;
            (recipe.toml.clone(), format!("recipe `{}`", recipe.name))
        }
    };
    let table = tables::parse(&text, &origin)?;
    let masks = tables::components(&table, "mask", &origin)?;
    let weights = tables::components(&table, "weight", &origin)?;
    let mut deciders = registry.deciders(&masks, &weights, &watchdog)?;
    let mut steps = Vec::with_capacity(replay.batches.len());
    replay.run(&mut deciders, &watchdog, &mut |replayed| {
        let dims = replayed.batch.scalars.dims;
        let line = replayed.to_string();
        steps.push((
            [dims.completions as usize, dims.tokens as usize],
            replayed.outcome,
            line,
        ));
    })?;
    Ok(steps)
}

/// The outcome as a dict, with the names that `host replay` writes.
fn to_dict<'py>(
    py: Python<'py>,
    shape: &[usize],
    outcome: &Outcome,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("token_mask", numpy::array(py, shape, &outcome.token_mask)?)?;
    if let Some(weights) = &outcome.weights {
        dict.set_item("weights", numpy::array(py, shape, weights)?)?;
    }
    add(&dict, shape, outcome)?;
    Ok(dict)
}
