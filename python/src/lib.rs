//! The native half of the Python package `capo_rl`: plugins on `capo-loader`, tensors through
//! DLPack, numpy arrays back.
//!
//! Users call the Python side (`python/capo_rl`), which has signatures, defaults and documentation.

mod array;
mod batch;
mod callback;
mod collective;
mod component;
mod decide;
mod dlpack;
mod error;
mod export;
mod fields;
mod lock;
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
    use crate::decide::Deciders;
    #[pymodule_export]
    use crate::error::{CapoError, CapoWarning};
    #[pymodule_export]
    use crate::registry::Registry;
    #[pymodule_export]
    use crate::replay::replay;
    use pyo3::prelude::*;

    /// Sets the directory of the plugins that came with the package.
    #[pyfunction]
    fn carried_in(folder: PathBuf) {
        capo_loader::find::carried_in(folder);
    }
}
