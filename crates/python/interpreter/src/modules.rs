//! Modules that are loaded.

use pyo3::intern;
use pyo3::prelude::*;

/// The module of this name, if it is loaded.
///
/// # Errors
/// There is no `sys.modules`.
pub fn loaded_module<'py, N: IntoPyObject<'py>>(
    py: Python<'py>,
    name: N,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let sys = py.import(intern!(py, "sys"))?;
    let modules = sys.getattr(intern!(py, "modules"))?;
    Ok(modules.get_item(name).ok())
}
