//! The types of values, as nodes tell each other.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyType;
use treadle_interpreter::Pickling;

/// A pickle of more bytes is not worth to be sent with each value.
const LONGEST: usize = 1 << 20;

/// The pickle of a class, by value where nobody can import it; its name as a string's bytes where
/// it cannot be pickled.
pub(super) fn class_bytes(class: &Bound<'_, PyType>) -> Bytes {
    let _pickling = Pickling::new();
    let dumps = |module: &str| -> PyResult<Vec<u8>> {
        let module = class.py().import(module)?;
        module.call_method1("dumps", (class, 5))?.extract()
    };
    let pickled = dumps("pickle").or_else(|_| dumps("treadle.pickling._by_value"));
    match pickled {
        Ok(pickled) if pickled.len() <= LONGEST => pickled.into(),
        _ => class.to_string().into_bytes().into(),
    }
}
