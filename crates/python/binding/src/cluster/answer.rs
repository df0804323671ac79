//! Answers to calls, as callbacks of Python get them.

use bytes::Bytes;
use pyo3::prelude::*;
use treadle_messages::Answer;
use treadle_recipe::decode_value;
use treadle_types::Value;

/// What a callback is called with: the value and `None`, or `None` and the error.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn outcome_of(
    py: Python<'_>,
    result: &Result<Bytes, Bytes>,
) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    Ok(match result {
        Ok(value) => (decode_value(py, value)?, py.None()),
        Err(error) => (py.None(), decode_value(py, error)?),
    })
}

/// The error of a message that cannot be read: whoever waits for an answer is told.
pub(crate) fn unreadable(error: &PyErr) -> String {
    format!("the message cannot be read: {error}")
}

/// The answer to a call that nobody here can serve, in words.
pub(crate) fn refusal(id: u64, reason: String) -> Answer {
    Answer {
        id,
        result: Err(Value::Str(reason).to_bytes().into()),
    }
}
