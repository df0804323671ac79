//! Running a graph, as Python calls it.

use crate::job::Job;
use crate::team::{Source, Team};
use crate::{pool, run};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;
use treadle_interpreter::fork;

/// The threads that run one graph; given to the callable that supplies them.
#[pyclass(frozen, name = "Team", module = "treadle._core")]
pub(crate) struct PyTeam(Arc<Team>);

impl PyTeam {
    pub(crate) fn new(team: Arc<Team>) -> Self {
        PyTeam(team)
    }
}

#[pymethods]
impl PyTeam {
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
pub(crate) fn run_inline<'py>(
    graph: &Bound<'py, PyDict>,
    keys: &Bound<'py, PyAny>,
    cache: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    fork::watch();
    let job = Job::load(graph, keys, cache)?;
    run::run_inline(keys.py(), &job)?;
    job.results(keys)
}

/// Runs a graph on `threads` threads: the engine's own, or those that `recruit` makes call
/// `Team.work`. See `treadle.threaded.get`.
#[pyfunction]
#[pyo3(signature = (graph, keys, threads, recruit=None))]
pub(crate) fn run_threads<'py>(
    graph: &Bound<'py, PyDict>,
    keys: &Bound<'py, PyAny>,
    threads: usize,
    recruit: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = keys.py();
    let job = Job::load(graph, keys, None)?;
    let source = recruit.map_or(Source::Pool, Source::Python);
    let team = Team::new(py, job, threads, source)?;
    team.run(py)?;
    team.job.results(keys)
}

/// Whether the calling thread is running a task.
#[pyfunction]
pub(crate) fn inside_a_task() -> bool {
    run::inside_a_task()
}

/// Ends the engine's threads; waits for tasks in flight.
#[pyfunction]
pub(crate) fn close_pool(py: Python<'_>) -> PyResult<()> {
    pool::Pool::get().close(py)
}

/// Priorities of the tasks that `keys` need, the first to run lowest. Data come right before
/// their first reader.
#[pyfunction]
pub(crate) fn order<'py>(
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
