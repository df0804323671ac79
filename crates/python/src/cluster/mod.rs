//! The cluster engine, as Python sees it.

mod connection;
mod error;
mod security;
mod server;
mod supervised;
mod worker;

use crate::recipe;
use pyo3::prelude::*;

/// Decodes a value that a call's answer carries as bytes.
#[pyfunction]
fn decode_value(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    recipe::decode_value(py, bytes)
}

/// Adds the classes of this folder to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode_value, module)?)?;
    module.add_function(wrap_pyfunction!(supervised::end_with_input, module)?)?;
    module.add_function(wrap_pyfunction!(security::user_secret_file, module)?)?;
    module.add_class::<connection::Connection>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<worker::Worker>()
}
