//! Telling a forked child from its parent, and what becomes of the child.

use pyo3::prelude::*;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(1);
static WATCH: Once = Once::new();

/// Counts the forks between the first process that loaded the engine and this one, from 1.
/// What was noted in another generation belongs to a parent process: its threads do not exist
/// here, and its locks may be held for ever.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    // A child begins with one thread: nobody reads it meanwhile.
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Notices forks from now on, those by C code included.
pub fn watch() {
    // SAFETY: the handler only touches an atomic.
    WATCH.call_once(|| unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
    });
}

/// Ends a forked child as `multiprocessing` does: without the parent's exit handlers.
pub fn end_child(py: Python<'_>, status: i32) -> ! {
    for stream in ["stdout", "stderr"] {
        let flushed = py
            .import("sys")
            .and_then(|sys| sys.getattr(stream)?.call_method0("flush"));
        // Nobody is left to tell.
        drop(flushed);
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(status) }
}

/// Ends a forked child that has come back to its parent's engine from what a user wrote, and says so.
/// What it raised, if it did, is shown as the interpreter would at its end.
pub fn end_returned(py: Python<'_>, what: &str, raised: Option<PyErr>) -> ! {
    use pyo3::exceptions::PySystemExit;
    let status = match raised {
        // To print it would end the process here, with the parent's exit handlers.
        Some(error) if error.is_instance_of::<PySystemExit>(py) => {
            let code = error.value(py).getattr("code").ok();
            match code {
                Some(code) if code.is_none() => 0,
                Some(code) => code.extract().unwrap_or(1),
                None => 1,
            }
        }
        Some(error) => {
            error.print(py);
            1
        }
        None => 0,
    };
    let line = format!(
        "treadle: process {} was forked in {what} and has come back from there: it ends, and its \
         parent goes on. A forked child should end itself, by os._exit() for example\n",
        std::process::id()
    );
    // Not through a stream whose lock a thread of the parent may have held.
    // SAFETY: a buffer of this length; standard error is open, or writing to it fails.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    end_child(py, status)
}
