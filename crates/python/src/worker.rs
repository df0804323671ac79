//! Running tasks one after another on a thread that is attached to Python.

use crate::clock;
use crate::error;
use crate::fork;
use crate::job::{Job, Started, Turn};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// The fork generation in which this thread entered a task, or 0.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
    static IDENTIFIER: Cell<u64> = const { Cell::new(0) };
}

/// Whether this thread is running a task, so that a `get` here must not wait for other threads.
pub(crate) fn inside_a_task() -> bool {
    INSIDE.get() == fork::generation()
}

/// Marks the thread as running tasks until dropped.
pub(crate) struct Inside(u64);

impl Inside {
    pub(crate) fn enter() -> Self {
        Inside(INSIDE.replace(fork::generation()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// `threading.get_ident()`.
pub(crate) fn thread_identifier() -> u64 {
    if IDENTIFIER.get() == 0 {
        // SAFETY: always safe to ask.
        IDENTIFIER.set(unsafe { libc::pthread_self() } as u64);
    }
    IDENTIFIER.get()
}

/// Lets other threads and signal handlers run about every millisecond. Tasks that are implemented
/// in C never reach the point at which the interpreter itself would.
///
/// So a Python function that does nothing is called: on entering it the interpreter looks whether
/// another thread asked for its lock, or a signal came. Just letting go of the lock and taking it
/// again would starve the others: whoever waits is woken, finds the lock taken again, and waits
/// another whole switch interval before it asks.
pub(crate) struct Pulse {
    next: u64,
}

static NOTHING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

impl Pulse {
    const INTERVAL: u64 = 1_000_000;

    pub(crate) fn new() -> Self {
        Pulse {
            next: clock::coarse() + Self::INTERVAL,
        }
    }

    /// Lets others run if it is time to; whether it was.
    ///
    /// # Errors
    /// What a signal handler raises (on the main thread): `KeyboardInterrupt`, for example.
    #[inline]
    pub(crate) fn beat(&mut self, py: Python<'_>) -> PyResult<bool> {
        let now = clock::coarse();
        if now < self.next {
            return Ok(false);
        }
        self.next = now + Self::INTERVAL;
        let nothing = NOTHING.get_or_try_init(py, || {
            py.eval(c"lambda: None", None, None).map(Bound::unbind)
        })?;
        nothing.call0(py)?;
        Ok(true)
    }
}

/// The context variables of a `get`, which each of its tasks sees a copy of.
pub(crate) struct Context(Py<PyAny>);

impl Context {
    /// A copy of the calling thread's context.
    pub(crate) fn of_caller(py: Python<'_>) -> PyResult<Self> {
        // SAFETY: the thread is attached; the call returns a new reference or fails.
        let context = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent())? };
        Ok(Context(context.unbind()))
    }

    /// Runs `f` in a copy of the context, as `contextvars.Context.run` does. A panic is an error: the
    /// task fails, and the thread goes on, outside of the context.
    #[inline]
    pub(crate) fn run<T>(&self, py: Python<'_>, f: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        // SAFETY: the thread is attached; enter and exit are paired on the same copy, which
        // nobody else knows of.
        unsafe {
            let copy = ffi::PyContext_Copy(self.0.as_ptr());
            let copy = Bound::from_owned_ptr_or_err(py, copy)?;
            if ffi::PyContext_Enter(copy.as_ptr()) != 0 {
                return Err(PyErr::fetch(py));
            }
            let result = catch_unwind(AssertUnwindSafe(f))
                .unwrap_or_else(|panic| Err(error::panicked(&*panic)));
            if ffi::PyContext_Exit(copy.as_ptr()) != 0 {
                return Err(PyErr::fetch(py));
            }
            result
        }
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
    let _inside = Inside::enter();
    let mut pulse = Pulse::new();
    let mut turn = Turn::default();
    let mut finished = None;
    loop {
        take_turn(job, finished.take(), &mut turn)?;
        let Some(started) = turn.next.take() else {
            return Ok(());
        };
        let value = run_task(py, job, &started, None)?;
        finished = Some((started.task, value));
        pulse.beat(py)?;
    }
}
