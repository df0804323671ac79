//! `treadle._core.Directory`: files of a process that go when it is gone.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Mutex;
use treadle_interpreter::fork;
use treadle_reactor::thread::lock;
use treadle_volume::{Directory as Made, DirectoryKind};

/// A new directory of this process, which only this user may enter, in `parent`. What processes that
/// are gone left there is removed.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Directory {
    generation: u64,
    path: PathBuf,
    made: Mutex<Option<Made>>,
}

#[pymethods]
impl Directory {
    #[new]
    fn new(py: Python<'_>, kind: &str, parent: PathBuf) -> PyResult<Self> {
        let kind = match kind {
            "worker" => DirectoryKind::Worker,
            "cluster" => DirectoryKind::Cluster,
            "scheduler" => DirectoryKind::Scheduler,
            other => return Err(PyValueError::new_err(format!("kind={other:?}"))),
        };
        fork::watch();
        // A task may change the directory in which paths begin.
        let parent = std::path::absolute(&parent).unwrap_or(parent);
        let made = py.detach(|| Made::create(&parent, kind)).map_err(|error| {
            let parent = parent.display();
            PyOSError::new_err(format!("cannot make a directory in {parent}: {error}"))
        })?;
        Ok(Self {
            generation: fork::generation(),
            path: made.path().to_owned(),
            made: Mutex::new(Some(made)),
        })
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Removes it with all that is in it. In a forked child, nothing: it is the parent's.
    fn remove(&self, py: Python<'_>) {
        if self.generation == fork::generation() {
            py.detach(|| {
                if let Some(made) = lock(&self.made).take() {
                    made.remove();
                }
            });
        }
    }
}
