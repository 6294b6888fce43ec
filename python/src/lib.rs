//! The native half of the Python package `capo_rl`: plugins on `capo-loader`, tensors through DLPack, numpy arrays back.
//!
//! Users call Python (`python/capo_rl`): signatures, defaults and documentation are there, and this is behind them.

mod array;
mod batch;
mod callback;
mod collective;
mod component;
mod dlpack;
mod error;
mod export;
mod fields;
mod fork;
mod layer;
mod numpy;
mod records;
mod registry;
mod replay;

use pyo3::pymodule;

#[pymodule]
mod _native {
    use std::path::PathBuf;

    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::component::Component;
    #[pymodule_export]
    use crate::error::{CapoError, CapoWarning};
    #[pymodule_export]
    use crate::registry::Registry;
    #[pymodule_export]
    use crate::replay::replay;
    use pyo3::prelude::*;

    /// Says where the plugins lie that came with the package.
    #[pyfunction]
    fn carried_in(folder: PathBuf) {
        capo_loader::find::carried_in(folder);
    }
}
