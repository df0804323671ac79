//! The cluster engine, as Python sees it.

mod class;
mod connection;
mod error;
mod security;
mod server;
mod supervised;
mod worker;

use crate::recipe;
use bytes::Bytes;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use std::collections::HashMap;

/// Decodes a value that a call's answer carries as bytes.
#[pyfunction]
fn decode_value(py: Python<'_>, bytes: &[u8]) -> PyResult<Py<PyAny>> {
    recipe::decode_value(py, bytes)
}

/// Runs a recipe outside of a worker: for those who look for a mistake in a task.
///
/// `inputs` are the values of its inputs, in their order, and `definitions` what it shares with
/// other recipes, pickled, by number.
#[pyfunction]
fn run_recipe(
    py: Python<'_>,
    recipe: &[u8],
    inputs: Vec<Py<PyAny>>,
    definitions: HashMap<u32, Vec<u8>>,
) -> PyResult<Py<PyAny>> {
    let definition = |number| match definitions.get(&number) {
        Some(bytes) => recipe::Definition::new(bytes.clone().into()).get(py),
        None => Err(PyKeyError::new_err(number)),
    };
    let parts = worker::split(&Bytes::copy_from_slice(recipe));
    let (_, body) = parts.ok_or_else(|| PyValueError::new_err("this is no recipe"))?;
    recipe::execute(py, &body, &inputs, &definition)
}

/// Adds the classes of this folder to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode_value, module)?)?;
    module.add_function(wrap_pyfunction!(run_recipe, module)?)?;
    module.add_function(wrap_pyfunction!(supervised::end_with_input, module)?)?;
    module.add_function(wrap_pyfunction!(security::user_secret_file, module)?)?;
    module.add_class::<connection::Connection>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<worker::Worker>()
}
