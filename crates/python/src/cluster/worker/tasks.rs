//! The tasks that run.

use super::Worker;
use super::executor::{self, Current};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::Ordering;
use treadle_interpreter::lock;
use treadle_recipe as recipe;

#[pymethods]
impl Worker {
    /// The key of the calling thread's task.
    fn current_key(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let key = |current: Current| Ok(recipe::decode_key(py, &current.key)?.unbind());
        executor::current().map(key).transpose()
    }

    /// When the calling thread's task began, on the clock of `time.time`.
    fn started(&self) -> Option<f64> {
        executor::current().map(|current| current.started)
    }

    /// Gives the slot of the calling thread's task away; whether it had one.
    fn secede(&self, py: Python<'_>) -> PyResult<bool> {
        let shared = self.own()?;
        let Some(current) = executor::current() else {
            return Ok(false);
        };
        let changed = executor::set_seceded(true);
        if changed {
            py.detach(|| shared.node.secede(current.object));
        }
        Ok(changed)
    }

    /// Takes a slot again, if the calling thread's task has none.
    fn rejoin(&self, py: Python<'_>) -> PyResult<()> {
        let shared = self.own()?;
        let Some(current) = executor::current() else {
            return Ok(());
        };
        if executor::set_seceded(false) {
            py.detach(|| shared.node.rejoin(current.object));
        }
        Ok(())
    }

    /// Whether the service wants to hear of each task.
    fn observe(&self, wanted: bool) {
        self.0.observed.store(wanted, Ordering::Relaxed);
    }

    /// `threading.get_ident()` and key of each task that runs.
    fn running<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let running: Vec<_> = {
            let running = lock(&self.own()?.running);
            running
                .iter()
                .map(|(thread, current)| (*thread, current.key.clone()))
                .collect()
        };
        let dict = PyDict::new(py);
        for (thread, key) in running {
            dict.set_item(thread, recipe::decode_key(py, &key)?)?;
        }
        Ok(dict)
    }
}
