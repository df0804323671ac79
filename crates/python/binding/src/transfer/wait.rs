//! Waiting without the interpreter's lock, but not without Ctrl-C.

use super::error;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::{Duration, Instant};
use treadle_net::{NetError, Wait};
use treadle_reactor::leader::is_busy;

/// The longest timeout that is told from none.
const LONGEST: f64 = 1e9;

/// When a call has to end.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) deadline: Option<Instant>,
}

impl Limit {
    /// Never.
    pub(crate) const NONE: Self = Self { deadline: None };

    /// In so many seconds from now.
    ///
    /// # Errors
    /// For what is no time.
    pub(crate) fn new(timeout: Option<f64>) -> PyResult<Self> {
        let deadline = match timeout {
            None => None,
            Some(seconds) if seconds >= 0.0 => {
                (seconds < LONGEST).then(|| Instant::now() + Duration::from_secs_f64(seconds))
            }
            Some(seconds) => {
                return Err(PyValueError::new_err(format!(
                    "timeout={seconds}: give seconds, or None to wait without a limit"
                )));
            }
        };
        Ok(Self { deadline })
    }
}

/// Whether Python's signal handlers run on the calling thread.
pub(crate) fn is_main_thread() -> bool {
    // SAFETY: always safe to ask.
    unsafe { libc::getpid() == libc::gettid() }
}

/// Runs `operation` detached. Now and then while it waits, signal handlers get their turn (on the
/// main thread), and `look`, if there is one; what they raise ends the wait and is raised here.
///
/// # Errors
/// What was raised, or what `failed` makes of the operation's own error.
pub(crate) fn blocking<R: Send, E: Send>(
    py: Python<'_>,
    limit: Limit,
    look: Option<Look<'_>>,
    failed: impl FnOnce(E) -> PyErr,
    operation: impl FnOnce(&mut Wait<'_>) -> Result<R, E> + Send,
) -> PyResult<R> {
    let (result, raised) = py.detach(|| {
        let mut raised = None;
        let mut look = look;
        let mut interrupted = || {
            // Other threads run no signal handlers: they need not wait for the interpreter.
            if look.is_none() && !is_main_thread() {
                return false;
            }
            let outcome = attach(|py| {
                py.check_signals()?;
                look.as_mut().map_or(Ok(()), |look| look(py))
            });
            match outcome {
                Some(Ok(())) => false,
                Some(Err(error)) => {
                    raised = Some(error);
                    true
                }
                // The interpreter is ending.
                None => true,
            }
        };
        let result = operation(&mut Wait {
            deadline: limit.deadline,
            interrupted: Some(&mut interrupted),
        });
        (result, raised)
    });
    treadle_serialise::release_all(py);
    match (result, raised) {
        (Ok(value), None) => Ok(value),
        (_, Some(error)) => Err(error),
        (Err(error), None) => Err(failed(error)),
    }
}

/// Runs Python on a thread that waits natively; `None`: the interpreter is ending. Python may run any code,
/// for example what a signal handler does, and that may wait for what only this thread brings if it leads.
pub(crate) fn attach<R>(run: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    debug_assert!(!is_busy(), "Python runs on a thread that leads");
    Python::try_attach(run)
}

/// Something to do while waiting.
pub(crate) type Look<'a> = &'a mut (dyn FnMut(Python<'_>) -> PyResult<()> + Send);

/// Runs something short that takes locks, detached: nobody may wait for a lock while attached.
pub(crate) fn detached<R: Send>(py: Python<'_>, operation: impl FnOnce() -> R + Send) -> R {
    let result = py.detach(operation);
    treadle_serialise::release_all(py);
    result
}

/// The exception of an operation that `doing` describes.
pub(crate) fn failed(doing: &str) -> impl FnOnce(NetError) -> PyErr {
    move |error| error::raised(error, doing)
}
