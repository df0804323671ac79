//! Values that a forked child must not touch: its parent's connections.

use crate::fork;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

/// A value of the process that made it. In a forked child it can neither be used nor dropped: its
/// locks may be held for ever, and its sockets are the parent's.
pub struct ProcessLocal<T> {
    value: ManuallyDrop<T>,
    generation: u64,
}

impl<T> ProcessLocal<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            generation: fork::generation(),
        }
    }

    /// The value.
    ///
    /// # Errors
    /// In a forked child.
    pub fn get(&self) -> PyResult<&T> {
        if self.generation == fork::generation() {
            Ok(&self.value)
        } else {
            Err(PyRuntimeError::new_err(
                "this belongs to the parent process, from which this one was forked: make a \
                 connection here, in a process that was not forked (multiprocessing: \"spawn\" or \
                 \"forkserver\")",
            ))
        }
    }

    /// The value, for what may be read everywhere; `None` in a forked child.
    pub fn peek(&self) -> Option<&T> {
        (self.generation == fork::generation()).then_some(&*self.value)
    }
}

impl<T> Drop for ProcessLocal<T> {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            // SAFETY: dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Called before the first connection of a process.
///
/// # Errors
/// In a child of a process that had some: the threads that drive sockets are the parent's.
pub fn refuse_forked() -> PyResult<()> {
    static FIRST: OnceLock<u64> = OnceLock::new();
    fork::watch();
    let here = fork::generation();
    if *FIRST.get_or_init(|| here) == here {
        Ok(())
    } else {
        Err(PyRuntimeError::new_err(
            "this process was forked from one that had connections of Treadle, and can have none: \
             start it with multiprocessing's \"spawn\" or \"forkserver\", or with subprocess",
        ))
    }
}
