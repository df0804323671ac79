//! The cluster engine, as Python sees it.

mod connection;
mod error;
mod security;
mod server;
mod worker;

use pyo3::prelude::*;

/// Adds the classes of this folder to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<connection::Connection>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<worker::Worker>()
}
