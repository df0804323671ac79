//! `treadle._core`: the engine, as Python sees it.

mod clock;
#[cfg(target_os = "linux")]
mod cluster;
mod dask;
mod error;
mod fork;
mod job;
mod keys;
mod legacy;
#[cfg(target_os = "linux")]
mod load;
mod node;
mod pool;
#[cfg(target_os = "linux")]
mod recipe;
mod shared;
mod steps;
mod subgraph;
mod threads;
mod trace;
#[cfg(target_os = "linux")]
mod transfer;
mod worker;

use crate::job::Job;
use crate::threads::{Crew, Source};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;

/// The threads that run one graph; given to the callable that supplies them.
#[pyclass(frozen, name = "Crew", module = "treadle._core")]
struct PyCrew(Arc<Crew>);

impl PyCrew {
    fn new(crew: Arc<Crew>) -> Self {
        PyCrew(crew)
    }
}

#[pymethods]
impl PyCrew {
    /// Runs tasks on the calling thread until none is ready.
    fn work(&self, py: Python<'_>) {
        if self.0.work(py).has_to_announce() {
            py.detach(|| self.0.end.announce());
        }
    }

    /// The thread will not come: the run fails with `error`.
    fn lost(&self, error: Bound<'_, PyAny>) {
        self.0.lost(PyErr::from_value(error));
    }
}

/// Runs a graph on the calling thread. See `treadle.sync.get`.
#[pyfunction]
#[pyo3(signature = (graph, keys, cache=None))]
fn run_inline<'py>(
    graph: &Bound<'py, PyDict>,
    keys: &Bound<'py, PyAny>,
    cache: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    fork::watch();
    let job = Job::load(graph, keys, cache)?;
    worker::run_inline(keys.py(), &job)?;
    job.results(keys)
}

/// Runs a graph on `threads` threads: the engine's own, or those that `recruit` makes call
/// `Crew.work`. See `treadle.threaded.get`.
#[pyfunction]
#[pyo3(signature = (graph, keys, threads, recruit=None))]
fn run_threads<'py>(
    graph: &Bound<'py, PyDict>,
    keys: &Bound<'py, PyAny>,
    threads: usize,
    recruit: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = keys.py();
    let job = Job::load(graph, keys, None)?;
    let source = recruit.map_or(Source::Pool, Source::Python);
    let crew = Crew::new(py, job, threads, source)?;
    crew.run(py)?;
    crew.job.results(keys)
}

/// Whether the calling thread is running a task.
#[pyfunction]
fn inside_a_task() -> bool {
    worker::inside_a_task()
}

/// Ends the engine's threads; waits for tasks in flight.
#[pyfunction]
fn close_pool(py: Python<'_>) -> PyResult<()> {
    pool::Pool::get().close(py)
}

/// Priorities of the tasks that `keys` need, the first to run lowest. Data come right before
/// their first reader.
#[pyfunction]
fn order<'py>(
    graph: &Bound<'py, PyDict>,
    keys: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = keys.py();
    let job = Job::load(graph, keys, None)?;
    let priorities = PyDict::new(py);
    let place = |task| -> PyResult<()> {
        let key = job.key(py, task);
        if !priorities.contains(key)? {
            priorities.set_item(key, priorities.len())?;
        }
        Ok(())
    };
    for task in job.sequence() {
        for dependency in job.dependencies(task) {
            place(dependency)?;
        }
        place(task)?;
    }
    for task in job.tasks() {
        place(task)?;
    }
    Ok(priorities)
}

#[pymodule(gil_used = false)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("CycleError", py.get_type::<error::CycleError>())?;
    module.add(
        "MissingDependencyError",
        py.get_type::<error::MissingDependencyError>(),
    )?;
    module.add_class::<PyCrew>()?;
    module.add_class::<steps::Steps>()?;
    module.add_class::<steps::Call>()?;
    module.add_class::<trace::Recorder>()?;
    module.add_function(wrap_pyfunction!(run_inline, module)?)?;
    module.add_function(wrap_pyfunction!(run_threads, module)?)?;
    module.add_function(wrap_pyfunction!(inside_a_task, module)?)?;
    module.add_function(wrap_pyfunction!(close_pool, module)?)?;
    module.add_function(wrap_pyfunction!(fork::end_forked_child, module)?)?;
    module.add_function(wrap_pyfunction!(order, module)?)?;
    #[cfg(target_os = "linux")]
    transfer::register(module)?;
    #[cfg(target_os = "linux")]
    load::register(module)?;
    #[cfg(target_os = "linux")]
    recipe::register(module)?;
    #[cfg(target_os = "linux")]
    cluster::register(module)?;
    shared::register(module)
}
