//! Telling somebody how far a transfer is.

use pyo3::prelude::*;
use pyo3::types::PyBool;
use std::time::{Duration, Instant};

/// Progress is reported this often.
const REPORT: Duration = Duration::from_millis(200);

/// Whom to tell how far a transfer is.
pub(crate) struct Progress {
    callable: Py<PyAny>,
    next: Instant,
}

impl Progress {
    pub(crate) fn new(asked: Option<&Bound<'_, PyAny>>, text: &str) -> PyResult<Option<Self>> {
        let Some(asked) = asked.filter(|asked| !asked.is_none()) else {
            return Ok(None);
        };
        let callable = match asked.cast::<PyBool>() {
            Ok(asked) if !asked.is_true() => return Ok(None),
            Ok(asked) => {
                let module = asked.py().import("treadle.transfer._progress")?;
                module.call_method1("bar", (text,))?
            }
            Err(_) => asked.clone(),
        };
        Ok(Some(Self {
            callable: callable.unbind(),
            next: Instant::now(),
        }))
    }

    pub(crate) fn report(
        &mut self,
        py: Python<'_>,
        progress: impl FnOnce() -> (u64, u64) + Send,
    ) -> PyResult<()> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + REPORT;
        let progress = py.detach(progress);
        self.callable.call1(py, progress).map(drop)
    }

    pub(crate) fn finish(self, py: Python<'_>, total: u64) -> PyResult<()> {
        self.callable.call1(py, (total, total)).map(drop)
    }
}
