//! Running tasks on a thread that is attached to Python.

use crate::error;
use pyo3::ffi;
use pyo3::prelude::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static IDENTIFIER: Cell<u64> = const { Cell::new(0) };
}

/// `threading.get_ident()`.
#[inline]
pub fn thread_identifier() -> u64 {
    if IDENTIFIER.get() == 0 {
        // SAFETY: always safe to ask.
        IDENTIFIER.set(unsafe { libc::pthread_self() } as u64);
    }
    IDENTIFIER.get()
}

/// The context variables of a `get`, which each of its tasks sees a copy of.
pub struct Context(Py<PyAny>);

impl Context {
    /// A copy of the calling thread's context.
    pub fn of_caller(py: Python<'_>) -> PyResult<Self> {
        // SAFETY: the thread is attached; the call returns a new reference or fails.
        let context = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyContext_CopyCurrent())? };
        Ok(Context(context.unbind()))
    }

    /// Runs `f` in a copy of the context, as `contextvars.Context.run` does. A panic is an error: the
    /// task fails, and the thread goes on, outside of the context.
    #[inline]
    pub fn run<T>(&self, py: Python<'_>, f: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
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
