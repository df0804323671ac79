//! How large objects are.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Bytes of memory that an object takes, as Dask estimates it.
///
/// # Errors
/// What `dask.sizeof` raises.
pub fn size_of(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    static SIZEOF: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let sizeof = SIZEOF.import(object.py(), "dask.sizeof", "sizeof")?;
    sizeof.call1((object,))?.extract()
}
