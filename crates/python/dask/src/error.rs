//! From what can go wrong with a graph to Python's exceptions.

use crate::keys::Keys;
use pyo3::create_exception;
use pyo3::exceptions::{PyKeyError, PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use treadle_graph::{GraphError, RunError, TaskId};
use treadle_interpreter::repr;

create_exception!(
    treadle,
    CycleError,
    PyRuntimeError,
    "Tasks of the graph wait for each other. The message names them in order."
);
create_exception!(
    treadle,
    MissingDependencyError,
    PyValueError,
    "A task reads a key that is neither in the graph nor in the cache."
);

/// A requested key that is not in the graph.
pub fn missing_key(key: Borrowed<'_, '_, PyAny>) -> PyErr {
    PyKeyError::new_err(key.to_owned().unbind())
}

/// A key that `reader` needs and that is not in the graph.
pub fn missing_dependency(key: Borrowed<'_, '_, PyAny>, reader: Borrowed<'_, '_, PyAny>) -> PyErr {
    MissingDependencyError::new_err(format!(
        "Missing dependency: {} reads {}, which is not in the graph. Add it to the graph, or give \
         its value in `cache`.",
        repr(reader),
        repr(key)
    ))
}

/// An error of the graph without keys.
pub fn graph(error: GraphError) -> PyErr {
    match error {
        GraphError::TooLarge => PyMemoryError::new_err(error.to_string()),
        GraphError::UnknownTask { .. } | GraphError::Cycle(_) => {
            PyRuntimeError::new_err(error.to_string())
        }
    }
}

/// An error of ordering, with the keys of the tasks.
pub fn unorderable(error: GraphError, keys: &Keys) -> PyErr {
    /// So many keys of a cycle make a readable message.
    const NAMED: usize = 20;
    let GraphError::Cycle(tasks) = error else {
        return graph(error);
    };
    Python::attach(|py| {
        let name = |task: &TaskId| repr(keys.get(*task).bind_borrowed(py));
        let mut names: Vec<String> = tasks.iter().take(NAMED).map(name).collect();
        if tasks.len() > NAMED {
            names.push(format!("… {} more", tasks.len() - NAMED));
        }
        names.extend(tasks.first().map(name));
        CycleError::new_err(format!(
            "Cycle detected between the following keys, each of which reads the next:\n  -> {}",
            names.join("\n  -> ")
        ))
    })
}

/// An error of the run.
pub fn run(error: RunError, keys: &Keys) -> PyErr {
    match error {
        RunError::Graph(error) => unorderable(error, keys),
        RunError::Impossible { task, .. } => Python::attach(|py| {
            let key = repr(keys.get(task).bind_borrowed(py));
            PyRuntimeError::new_err(format!("{key}: {error}"))
        }),
    }
}

/// Names the key that cannot be hashed, and who reads it.
pub fn unhashable(
    error: PyErr,
    key: Borrowed<'_, '_, PyAny>,
    reader: Option<Borrowed<'_, '_, PyAny>>,
) -> PyErr {
    let py = key.py();
    if !error.is_instance_of::<PyTypeError>(py) {
        return error;
    }
    let who = reader.map_or_else(|| "the request".to_owned(), repr);
    let message = format!("{who} names a key that cannot be hashed: {}", repr(key));
    let named = PyTypeError::new_err(message);
    named.set_cause(py, Some(error));
    named
}
