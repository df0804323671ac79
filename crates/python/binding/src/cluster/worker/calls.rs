//! Calls between nodes.

use super::Worker;
use super::service::{answer, plain};
use crate::cluster::error::raised;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use treadle_interpreter::fork;
use treadle_messages::Call;

#[pymethods]
impl Worker {
    /// Answers a call of another node.
    #[pyo3(signature = (id, result, error=None))]
    fn answer(
        &self,
        py: Python<'_>,
        id: u64,
        result: &Bound<'_, PyAny>,
        error: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.0.is_parents() {
            fork::end_returned(py, "a call", None);
        }
        let answer = answer(id, result, error)?;
        py.detach(|| self.0.node.answer(answer))
            .map_err(|error| raised(error, "answering"))
    }

    /// Asks another node; `done(result, error)` is called in a native thread.
    fn call(
        &self,
        py: Python<'_>,
        node: String,
        operation: String,
        argument: &Bound<'_, PyAny>,
        done: Py<PyAny>,
    ) -> PyResult<()> {
        let argument = plain(argument)?;
        let thread = self.own()?.service_thread.get();
        let thread = thread.ok_or_else(|| PyRuntimeError::new_err("the worker has not started"))?;
        let id = thread.register(done);
        let call = Call {
            id,
            node,
            operation,
            argument,
        };
        if let Err(error) = py.detach(|| self.0.node.call(call)) {
            thread.unregister(id);
            return Err(raised(error, "asking"));
        }
        // It may have ended before the question was noted.
        if let Some(end) = self.0.node.ended() {
            thread.close(py, &end.reason);
        }
        Ok(())
    }
}
