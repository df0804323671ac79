//! From what can go wrong to Python's exceptions.

use crate::keys::Keys;
use pyo3::create_exception;
use pyo3::exceptions::{PyKeyError, PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::any::Any;
use treadle_graph::{GraphError, RunError, TaskId};

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

/// `repr(object)`, cut to a readable length; never fails.
pub(crate) fn repr(object: Borrowed<'_, '_, PyAny>) -> String {
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

/// A requested key that is not in the graph.
pub(crate) fn missing_key(key: Borrowed<'_, '_, PyAny>) -> PyErr {
    PyKeyError::new_err(key.to_owned().unbind())
}

/// A key that `reader` needs and that is not in the graph.
pub(crate) fn missing_dependency(
    key: Borrowed<'_, '_, PyAny>,
    reader: Borrowed<'_, '_, PyAny>,
) -> PyErr {
    MissingDependencyError::new_err(format!(
        "Missing dependency: {} reads {}, which is not in the graph. Add it to the graph, or give \
         its value in `cache`.",
        repr(reader),
        repr(key)
    ))
}

/// An error of the graph without keys.
pub(crate) fn graph(error: GraphError) -> PyErr {
    match error {
        GraphError::TooLarge => PyMemoryError::new_err(error.to_string()),
        GraphError::UnknownTask { .. } | GraphError::Cycle(_) => {
            PyRuntimeError::new_err(error.to_string())
        }
    }
}

/// An error of ordering, with the keys of the tasks.
pub(crate) fn unorderable(error: GraphError, keys: &Keys) -> PyErr {
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
pub(crate) fn run(error: RunError, keys: &Keys) -> PyErr {
    match error {
        RunError::Graph(error) => unorderable(error, keys),
        RunError::Impossible { task, .. } => Python::attach(|py| {
            let key = repr(keys.get(task).bind_borrowed(py));
            PyRuntimeError::new_err(format!("{key}: {error}"))
        }),
    }
}

/// The exception for a panic of a thread, which would otherwise be the end of that thread only.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> PyErr {
    PyRuntimeError::new_err(format!(
        "a thread of Treadle's engine panicked: {}. What it worked on is lost, the process may go on. \
         Please report it",
        treadle_net::thread::said(panic)
    ))
}
