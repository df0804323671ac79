//! The end of a process whose parent is gone.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::process::{Signal, getpid, kill_process};
use std::time::Duration;

/// Interrupts this process when its standard input ends, and kills it `patience` seconds later: by
/// then it has ended by itself, unless a task holds the interpreter's lock.
#[pyfunction]
pub(crate) fn end_with_input(patience: f64) -> PyResult<()> {
    let patience = Duration::try_from_secs_f64(patience)
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
    let watch = move || {
        let mut part = [0; 4096];
        // SAFETY: standard input is open, or reading from it fails.
        let input = unsafe { std::os::fd::BorrowedFd::borrow_raw(0) };
        loop {
            match rustix::io::read(input, &mut part) {
                Ok(0) => break,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        let _ = kill_process(getpid(), Signal::INT);
        std::thread::sleep(patience);
        let _ = kill_process(getpid(), Signal::KILL);
    };
    std::thread::Builder::new()
        .name("treadle-input".into())
        .spawn(watch)
        .map(drop)
        .map_err(|error| PyOSError::new_err(error.to_string()))
}
