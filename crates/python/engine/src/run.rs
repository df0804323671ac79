//! Running tasks one after another on a thread that is attached to Python.

use crate::job::{Job, Started, Turn};
use pyo3::prelude::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use treadle_interpreter::{Context, PeriodicSwitch, clock, fork, panicked, thread_identifier};

thread_local! {
    /// The fork generation in which this thread entered a task, or 0.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
}

/// Whether this thread is running a task, so that a `get` here must not wait for other threads.
pub(crate) fn inside_a_task() -> bool {
    INSIDE.get() == fork::generation()
}

/// Marks the thread as running tasks until dropped.
pub(crate) struct InTask(u64);

impl InTask {
    pub(crate) fn enter() -> Self {
        InTask(INSIDE.replace(fork::generation()))
    }
}

impl Drop for InTask {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// Runs a task, and records it where somebody asked for that.
#[inline]
pub(crate) fn run_task(
    py: Python<'_>,
    job: &Job,
    started: &Started,
    context: Option<&Context>,
) -> PyResult<Py<PyAny>> {
    let evaluate = || match context {
        Some(context) => context.run(py, || job.evaluate(py, started)),
        None => job.evaluate(py, started),
    };
    if !job.recorders.any() {
        return evaluate();
    }
    let start = clock::now();
    let result = evaluate();
    let key = job.key(py, started.task);
    job.recorders.task(
        key,
        std::process::id(),
        thread_identifier(),
        start,
        clock::now(),
    );
    result
}

/// Takes a turn, and records the time that the engine needs for it.
#[inline]
pub(crate) fn take_turn(
    job: &Job,
    finished: Option<(treadle_graph::TaskId, Py<PyAny>)>,
    turn: &mut Turn,
) -> PyResult<()> {
    if job.recorders.any() {
        let began = clock::now();
        job.turn(finished, true, turn)?;
        job.recorders.engine(clock::now() - began);
    } else {
        job.turn(finished, true, turn)?;
    }
    turn.drop_garbage();
    Ok(())
}

/// Runs all tasks of a job on the calling thread, in the planned order.
///
/// # Errors
/// What the first failing task raises, or a signal handler.
pub(crate) fn run_inline(py: Python<'_>, job: &Job) -> PyResult<()> {
    let _inside = InTask::enter();
    // As in a thread of the engine, a panic is the end of this run alone.
    let run = AssertUnwindSafe(|| run_all(py, job));
    catch_unwind(run).unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn run_all(py: Python<'_>, job: &Job) -> PyResult<()> {
    let mut switch = PeriodicSwitch::from_now();
    let mut turn = Turn::default();
    let mut finished = None;
    loop {
        take_turn(job, finished.take(), &mut turn)?;
        let Some(started) = turn.next.take() else {
            return Ok(());
        };
        let value = run_task(py, job, &started, None)?;
        finished = Some((started.task, value));
        switch.switch_if_due(py)?;
    }
}
