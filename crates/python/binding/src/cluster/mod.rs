//! The cluster engine, as Python sees it.

mod answer;
mod class;
mod connection;
mod directory;
mod error;
mod history;
mod registry;
mod scheduler;
mod security;
mod service;
mod supervised;
mod worker;

use bytes::Bytes;
use pyo3::exceptions::{PyKeyError, PyOSError, PyValueError};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::path::PathBuf;
use treadle_recipe as recipe;

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
    // It runs once.
    let own = |number: usize| match inputs.get(number) {
        Some(value) => Ok(value.clone_ref(py)),
        None => Err(PyKeyError::new_err(number)),
    };
    recipe::execute(py, &body, &inputs, &own, &definition)
}

/// How often this process was stopped for longer than a moment, or had no processor for so long: time
/// in which others cannot be said to have been silent.
#[pyfunction]
fn stops() -> u64 {
    treadle_reactor::awake::stops()
}

/// Waits a little until what native threads said is written to standard error.
#[pyfunction]
fn flush_log(py: Python<'_>) {
    py.detach(treadle_log::flush);
}

/// Has what this process prints appended to a file, which is `longest` bytes long at most, about: then
/// it is renamed to `PATH.1`, and so on to `PATH.4`.
#[pyfunction]
fn log_to_file(path: PathBuf, longest: u64) -> PyResult<()> {
    let of_file = |error: std::io::Error| {
        let text = format!("logging to {}: {error}", path.display());
        PyOSError::new_err(text)
    };
    treadle_log::to_file(&path, longest).map_err(of_file)
}

/// Adds the classes of this folder to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(decode_value, module)?)?;
    module.add_function(wrap_pyfunction!(run_recipe, module)?)?;
    module.add_function(wrap_pyfunction!(supervised::end_with_input, module)?)?;
    module.add_function(wrap_pyfunction!(
        supervised::end_children_with_process,
        module
    )?)?;
    module.add_function(wrap_pyfunction!(security::user_secret_file, module)?)?;
    module.add_function(wrap_pyfunction!(security::read_secret, module)?)?;
    module.add_function(wrap_pyfunction!(registry::list_registry, module)?)?;
    module.add_function(wrap_pyfunction!(registry::registry_masters, module)?)?;
    module.add_function(wrap_pyfunction!(registry::registry_server, module)?)?;
    module.add_function(wrap_pyfunction!(stops, module)?)?;
    let flush = wrap_pyfunction!(flush_log, module)?;
    // The thread that writes does not outlive the interpreter.
    let at_exit = module.py().import("atexit")?;
    at_exit.call_method1("register", (flush.clone(),))?;
    module.add_function(flush)?;
    module.add_function(wrap_pyfunction!(log_to_file, module)?)?;
    module.add_function(wrap_pyfunction!(connection::count, module)?)?;
    module.add("give_up", connection::finaliser(module.py())?)?;
    module.add_class::<connection::ClientConnection>()?;
    module.add_class::<connection::Undecoded>()?;
    module.add_class::<directory::Directory>()?;
    module.add_class::<scheduler::Scheduler>()?;
    module.add_class::<history::History>()?;
    service::register(module)?;
    module.add_class::<worker::Worker>()
}
