//! The end of a process whose parent is gone.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::process::{Signal, getpid, kill_process};
use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Interrupts this process when its standard input ends, and kills it `patience` seconds later: by
/// then it has ended by itself, unless a task holds the interpreter's lock. What reads standard input
/// from now on finds it empty: a task, or a program that a task starts, would wait for ever.
#[pyfunction]
pub(crate) fn end_with_input(patience: f64) -> PyResult<()> {
    let patience = Duration::try_from_secs_f64(patience)
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))?;
    let input = take_input()?;
    let watch = move || {
        let mut part = [0; 4096];
        loop {
            match rustix::io::read(&input, &mut part) {
                Ok(0) => break,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        let _ = kill_process(getpid(), Signal::INT);
        std::thread::sleep(patience);
        let _ = kill_process(getpid(), Signal::KILL);
    };
    treadle_reactor::thread::start("treadle-input", watch)
        .map(drop)
        .map_err(|error| PyOSError::new_err(error.to_string()))
}

/// What standard input was; `/dev/null` takes its place.
fn take_input() -> std::io::Result<OwnedFd> {
    // SAFETY: it is borrowed for a moment. If it is closed, an error says so.
    let input = unsafe { BorrowedFd::borrow_raw(0) }.try_clone_to_owned()?;
    let nothing = std::fs::File::open("/dev/null")?;
    // SAFETY: both are descriptors of this process.
    match unsafe { libc::dup2(nothing.as_raw_fd(), 0) } {
        0 => Ok(input),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A pipe whose end for writing only this process has: it ends with the process, however that ends.
struct Lifeline {
    read: RawFd,
    /// -1 where it is closed: in children.
    write: AtomicI32,
    /// Where a child opens the pipe a second time: what it sets there is its own.
    path: CString,
}

static LIFELINE: OnceLock<Lifeline> = OnceLock::new();

/// From now on the kernel kills forked children of this process, and theirs, when this process has
/// ended, unless they are other programs by then. Not `PR_SET_PDEATHSIG`: that is about the thread
/// that forked.
#[pyfunction]
pub(crate) fn end_children_with_process() -> PyResult<()> {
    if LIFELINE.get().is_some() {
        return Ok(());
    }
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(PyOSError::new_err(format!(
            "no pipe for forked children: {error}"
        )));
    }
    let [read, write] = ends;
    let lifeline = Lifeline {
        read,
        write: write.into(),
        path: CString::new(format!("/proc/self/fd/{read}")).expect("it has no zero in it"),
    };
    if LIFELINE.set(lifeline).is_ok() {
        // SAFETY: the handler does only what may be done between a fork and whatever follows.
        unsafe { libc::pthread_atfork(None, None, Some(hold_lifeline)) };
    }
    Ok(())
}

/// In a forked child: has the kernel kill it when the pipe ends.
extern "C" fn hold_lifeline() {
    /// `fcntl`: which signal says that a descriptor is ready (linux/fcntl.h).
    const F_SETSIG: libc::c_int = 10;
    let Some(lifeline) = LIFELINE.get() else {
        return;
    };
    // SAFETY: system calls that a signal handler may make; the descriptors are this library's.
    unsafe {
        let write = lifeline.write.swap(-1, Ordering::Relaxed);
        if write >= 0 {
            libc::close(write);
        }
        let own = libc::open(
            lifeline.path.as_ptr(),
            libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC,
        );
        if own < 0 {
            return;
        }
        libc::fcntl(own, libc::F_SETOWN, libc::getpid());
        libc::fcntl(own, F_SETSIG, libc::SIGKILL);
        libc::fcntl(own, libc::F_SETFL, libc::O_NONBLOCK | libc::O_ASYNC);
        // After the signal was asked for, so that no end is missed.
        let mut ready = libc::pollfd {
            fd: lifeline.read,
            events: 0,
            revents: 0,
        };
        if libc::poll(&raw mut ready, 1, 0) == 1 {
            // It had ended before.
            libc::_exit(1);
        }
    }
}
