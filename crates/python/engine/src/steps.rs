//! Running a job step by step: somebody else decides where each task runs.

use crate::job::{Job, Started, Turn};
use crate::run::{InTask, run_task};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::sync::Arc;
use treadle_graph::TaskId;
use treadle_interpreter::{Context, clock, thread_identifier};

struct Shared {
    job: Job,
    context: Context,
}

/// A loaded graph whose tasks are started and finished one by one.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Steps(Arc<Shared>);

#[pymethods]
impl Steps {
    #[new]
    #[pyo3(signature = (graph, keys, cache=None))]
    fn new(
        py: Python<'_>,
        graph: &Bound<'_, PyDict>,
        keys: &Bound<'_, PyAny>,
        cache: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let job = Job::load(graph, keys, cache)?;
        Ok(Steps(Arc::new(Shared {
            job,
            context: Context::of_caller(py)?,
        })))
    }

    /// Number of tasks that have not finished.
    #[getter]
    fn unfinished(&self) -> usize {
        self.0.job.unfinished()
    }

    /// The keys of all tasks to run, in the planned order.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let sequence = self.0.job.sequence();
        PyTuple::new(
            py,
            sequence.into_iter().map(|task| self.0.job.key(py, task)),
        )
    }

    /// The next task that may start, or nothing.
    fn start(&self, py: Python<'_>) -> PyResult<Option<Call>> {
        let mut turn = Turn::default();
        self.0.job.turn(None, true, &mut turn)?;
        Ok(turn.next.map(|started| Call {
            shared: self.0.clone(),
            _inputs: started.hold(py),
            started,
        }))
    }

    /// A started task returned `value`.
    fn finish(&self, call: &Call, value: Py<PyAny>) -> PyResult<()> {
        if !Arc::ptr_eq(&self.0, &call.shared) {
            return Err(PyRuntimeError::new_err("the call belongs to another run"));
        }
        let mut turn = Turn::default();
        let finished = Some((call.started.task, value));
        self.0.job.turn(finished, false, &mut turn)?;
        turn.drop_garbage();
        Ok(())
    }

    /// The engine was busy with this run for so many nanoseconds.
    fn record_engine(&self, nanoseconds: u64) {
        self.0.job.recorders.engine(nanoseconds);
    }

    /// A task ran in another process, between two times of `time.perf_counter_ns`.
    fn record(&self, py: Python<'_>, call: &Call, process: u32, thread: u64, start: u64, end: u64) {
        let key = self.0.job.key(py, call.started.task);
        self.0.job.recorders.task(key, process, thread, start, end);
    }

    /// The values of `keys`.
    fn results<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.0.job.results(keys)
    }
}

/// A task that was started. Calling it runs it; pickled, it becomes a call that runs elsewhere.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Call {
    shared: Arc<Shared>,
    started: Started,
    /// An executor may call it again after the task is finished, when the job has let go of them.
    _inputs: Vec<Py<PyAny>>,
}

impl Call {
    fn task(&self) -> TaskId {
        self.started.task
    }
}

#[pymethods]
impl Call {
    /// The key of the task.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.shared.job.key(py, self.task()).to_owned()
    }

    /// The task's node.
    #[getter]
    fn node<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.shared.job.node(py, self.task()).to_owned()
    }

    /// What the node is called with: the values that it reads, by key.
    #[getter]
    fn inputs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.shared.job.inputs(py, &self.started)
    }

    /// Runs the task: its value, the identifier of the thread, and the times of
    /// `time.perf_counter_ns` between which it ran.
    fn __call__(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, u64, u64, u64)> {
        let _inside = InTask::enter();
        let start = clock::now();
        let value = run_task(
            py,
            &self.shared.job,
            &self.started,
            Some(&self.shared.context),
        )?;
        Ok((value, thread_identifier(), start, clock::now()))
    }

    fn __reduce__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py()
            .import("treadle.local._in_executor")?
            .call_method1("reduce", (&slf,))
    }
}
