//! The types of values, as nodes tell each other.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// The pickle of a class, by value where nobody can import it; its name as a string's bytes where
/// it cannot be pickled.
pub(super) fn class_bytes(class: &Bound<'_, PyType>) -> Bytes {
    let dumps = |module: &str| -> PyResult<Vec<u8>> {
        let module = class.py().import(module)?;
        module.call_method1("dumps", (class, 5))?.extract()
    };
    let pickled = dumps("pickle").or_else(|_| dumps("cloudpickle"));
    pickled.map_or_else(|_| class.to_string().into_bytes().into(), Bytes::from)
}
