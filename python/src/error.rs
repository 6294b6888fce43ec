//! Errors as Python exceptions, with the project's messages.

use std::io::ErrorKind;

use capo_loader::cause;
use capo_plugin::PluginError;
use pyo3::exceptions::{PyException, PyFileNotFoundError, PyUserWarning};
use pyo3::{PyErr, create_exception};

create_exception!(
    capo_rl,
    CapoError,
    PyException,
    "A plugin, a component or a file is not as it must be; the sentence says what to do."
);
create_exception!(
    capo_rl,
    CapoWarning,
    PyUserWarning,
    "What a component has to say to the person who trains."
);

/// A failure of the loader, with its causes.
pub(crate) fn failed(error: &anyhow::Error) -> PyErr {
    let sentence = error.chain().map(cause).collect::<Vec<_>>().join(": ");
    let missing = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    if missing
        .into_iter()
        .any(|error| error.kind() == ErrorKind::NotFound)
    {
        return PyFileNotFoundError::new_err(sentence);
    }
    CapoError::new_err(sentence)
}

/// A failure of a component.
pub(crate) fn broken(error: &PluginError) -> PyErr {
    CapoError::new_err(error.to_string())
}
