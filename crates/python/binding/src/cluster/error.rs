//! Errors of nodes as Python's exceptions.

use crate::transfer::failed;
use pyo3::exceptions::{PyConnectionError, PyConnectionRefusedError, PyOSError, PyValueError};
use pyo3::prelude::*;
use treadle_schedule_wire::NodeError;

/// The exception of what went wrong while `doing` something.
pub(crate) fn raised(error: NodeError, doing: &str) -> PyErr {
    match error {
        NodeError::Net(error) => failed(doing)(error),
        NodeError::TooLong { .. } | NodeError::Introduction { .. } => {
            PyValueError::new_err(error.to_string())
        }
        NodeError::Refused(reason) => {
            PyConnectionRefusedError::new_err(format!("{doing}: {reason}"))
        }
        other => PyOSError::new_err(format!("{doing}: {other}")),
    }
}

/// The exception of something that the end of a connection has made impossible.
pub(crate) fn ended(text: String) -> PyErr {
    PyConnectionError::new_err(text)
}
