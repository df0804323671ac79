//! The tasks that run.

use super::Worker;
use super::executor::{self, Current};
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::Ordering;
use treadle_interpreter::lock;
use treadle_node_worker::Place;
use treadle_recipe as recipe;

#[pymethods]
impl Worker {
    /// The key of the calling thread's task.
    fn current_key(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        // A forked child has a copy of what its parent's thread ran.
        self.own()?;
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
        self.0.node.watch(wanted);
    }

    /// Calls `Service.transition` for what native threads have seen of tasks.
    fn tell(&self, py: Python<'_>) {
        self.0.steps.tell(py, &self.0.service);
    }

    /// Has no further task start, and the scheduler send none, until it is let go again.
    fn hold(&self, py: Python<'_>, held: bool) -> PyResult<()> {
        let shared = self.own()?;
        py.detach(|| shared.node.hold(held));
        Ok(())
    }

    /// Whether it starts no tasks: it is held, or there is too little memory.
    fn is_paused(&self, py: Python<'_>) -> bool {
        py.detach(|| self.0.node.is_paused())
    }

    /// How many tasks have run here so far.
    fn executed(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.0.node.ended_tasks())
    }

    /// The state of each task that is here, by key, as distributed's workers name it; but for values
    /// that came from others.
    fn tasks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let shared = self.own()?;
        let (stored, pending, running) = py.detach(|| {
            // In the order in which tasks go on, so that none is missed: the last word counts.
            let pending = shared.node.pending();
            let running: Vec<_> = {
                let running = lock(&shared.running);
                let tasks = running.values();
                tasks
                    .map(|current| (current.key.clone(), current.object))
                    .collect()
            };
            let running: Vec<_> = running
                .into_iter()
                .map(|(key, object)| (key, shared.node.is_seceded(object)))
                .collect();
            let stored: Vec<_> = shared.keys().values().cloned().collect();
            (stored, pending, running)
        });
        let dict = PyDict::new(py);
        let put = |key: &Bytes, state: &str| dict.set_item(recipe::decode_key(py, key)?, state);
        for (recipe, is_ready) in pending {
            if let Some((key, _)) = executor::split(&recipe) {
                put(&key, if is_ready { "ready" } else { "waiting" })?;
            }
        }
        for (key, seceded) in running {
            put(&key, if seceded { "long-running" } else { "executing" })?;
        }
        for key in stored {
            put(&key, "memory")?;
        }
        Ok(dict)
    }

    /// Whether what it does is recorded, for the scheduler's pages.
    #[getter]
    fn is_recorded(&self) -> PyResult<bool> {
        Ok(self.own()?.node.tracing().is_recorded())
    }

    /// The log has a line more, of a level as `logging` has it.
    fn told(&self, level: u8, text: &str) -> PyResult<()> {
        self.own()?.node.tracing().line(level, text);
        Ok(())
    }

    /// Where the threads of tasks were since a time (`time.monotonic_ns()`): places, each with the position of the
    /// one that called it, which is before it, or -1, its name, and microseconds.
    fn sampled(&self, began: u64, places: Vec<(i64, String, u64)>) -> PyResult<()> {
        let places = places.into_iter().map(|(parent, name, time)| Place {
            parent: u32::try_from(parent).ok(),
            name,
            time,
        });
        let places = places.collect();
        self.own()?.node.tracing().sampled(began, places);
        Ok(())
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
