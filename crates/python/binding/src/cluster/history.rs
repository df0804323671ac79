//! `treadle._core.History`: the pages of a history file, as native threads of this process.

use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use treadle_interpreter::refuse_forked;
use treadle_node_scheduler::{History as Native, HistoryEnd as End, HistoryError};

/// The pages of a history file. Closed when it is dropped.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct History(Native);

#[pymethods]
impl History {
    /// Reads a file, and serves its pages at `http` for who knows `http_token` (a random one by default),
    /// and asks by one of `http_names`.
    #[new]
    #[pyo3(signature = (path, *, http="127.0.0.1:0", http_token=None, http_names=Vec::new()))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        http: &str,
        http_token: Option<String>,
        http_names: Vec<String>,
    ) -> PyResult<Self> {
        refuse_forked()?;
        let pages = super::scheduler::pages(http, http_token, http_names)?;
        treadle_log::init();
        py.detach(|| Native::open(&path, pages))
            .map(Self)
            .map_err(|error| match error {
                HistoryError::Other(_) | HistoryError::NoFile(_) => {
                    PyValueError::new_err(error.to_string())
                }
                other => PyOSError::new_err(other.to_string()),
            })
    }

    /// `http://…/?token=…`.
    #[getter]
    fn http(&self) -> &str {
        self.0.link()
    }

    /// Events that were read, and those that could not be.
    #[getter]
    fn counts(&self) -> (u64, u64) {
        self.0.counts()
    }

    /// Bytes that were left out: they are damaged, or the end of a file that was cut off.
    #[getter]
    fn unread(&self) -> u64 {
        self.0.unread()
    }

    /// How it ended: `closed`, `full` or `failed`; `None`: that is missing.
    #[getter]
    fn end(&self) -> Option<&'static str> {
        self.0.end().map(|end| match end {
            End::Closed => "closed",
            End::Full(_) => "full",
            End::Failed(_) => "failed",
        })
    }

    /// All spans by column, as integers of this machine's order, and what the numbers stand for.
    fn tables<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tables = py.detach(|| self.0.tables());
        let found = PyDict::new(py);
        let names = ["start", "read", "computed", "end"];
        for (name, column) in names.into_iter().zip(&tables.times) {
            found.set_item(name, long(py, column))?;
        }
        found.set_item("object", long(py, &tables.object))?;
        found.set_item("bytes", long(py, &tables.bytes))?;
        for (name, column) in [
            ("group", &tables.group),
            ("worker", &tables.worker),
            ("lane", &tables.lane),
        ] {
            let bytes: Vec<u8> = column.iter().flat_map(|one| one.to_ne_bytes()).collect();
            found.set_item(name, PyBytes::new(py, &bytes))?;
        }
        found.set_item("kind", PyBytes::new(py, &tables.kind))?;
        found.set_item("failed", PyBytes::new(py, &tables.failed))?;
        found.set_item("groups", tables.groups)?;
        found.set_item("workers", tables.workers)?;
        found.set_item("keys", tables.keys)?;
        Ok(found)
    }

    /// Ends the pages.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

fn long<'py>(py: Python<'py>, column: &[u64]) -> Bound<'py, PyBytes> {
    let bytes: Vec<u8> = column.iter().flat_map(|one| one.to_ne_bytes()).collect();
    PyBytes::new(py, &bytes)
}
