//! What messages say of objects and panics.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::any::Any;

/// `repr(object)`, cut to a readable length; never fails.
pub fn repr(object: Borrowed<'_, '_, PyAny>) -> String {
    const LONGEST: usize = 200;
    let text = match object.repr() {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => format!("<{} object>", object.get_type()),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The exception for a panic of a thread, which would otherwise be the end of that thread only.
pub fn panicked(panic: &(dyn Any + Send)) -> PyErr {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    PyRuntimeError::new_err(format!(
        "a thread of Treadle's engine panicked: {}. What it worked on is lost, the process may go on. \
         Please report it",
        text.unwrap_or("it does not say why")
    ))
}
