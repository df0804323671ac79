//! Letting other threads run, and signal handlers.

use crate::clock;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Lets other threads and signal handlers run about every millisecond. Tasks that are implemented
/// in C never reach the point at which the interpreter itself would.
///
/// So a Python function that does nothing is called: on entering it the interpreter looks whether
/// another thread asked for its lock, or a signal came. Just letting go of the lock and taking it
/// again would starve the others: whoever waits is woken, finds the lock taken again, and waits
/// another whole switch interval before it asks.
pub struct PeriodicSwitch {
    next: u64,
}

static NOTHING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

impl PeriodicSwitch {
    const INTERVAL: u64 = 1_000_000;

    /// The first switch is due in a millisecond.
    pub fn from_now() -> Self {
        PeriodicSwitch {
            next: clock::coarse() + Self::INTERVAL,
        }
    }

    /// Lets others run if it is time to; whether it was.
    ///
    /// # Errors
    /// What a signal handler raises (on the main thread): `KeyboardInterrupt`, for example.
    #[inline]
    pub fn switch_if_due(&mut self, py: Python<'_>) -> PyResult<bool> {
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
