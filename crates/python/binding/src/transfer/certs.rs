//! Making certificates.

use pyo3::exceptions::{PyFileExistsError, PyOSError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;
use treadle_security::certs::{CertsError, create};

/// Makes a CA, where there is none, and certificates of `nodes` in `directory`; returns the paths
/// of the files that were written. See the command `treadle certs`.
#[pyfunction]
pub(crate) fn create_certs(
    py: Python<'_>,
    directory: PathBuf,
    nodes: Vec<String>,
    days: u32,
    overwrite: bool,
) -> PyResult<Vec<String>> {
    let created = py.detach(|| create(&directory, &nodes, days, overwrite));
    let created = created.map_err(|error| {
        let text = error.to_string();
        match &error {
            CertsError::Exists(_) => PyFileExistsError::new_err(text),
            CertsError::Io { source, .. } => match source.raw_os_error() {
                Some(number) => PyOSError::new_err((number, text)),
                None => PyOSError::new_err(text),
            },
            _ => PyValueError::new_err(text),
        }
    })?;
    let name = |path: PathBuf| path.to_string_lossy().into_owned();
    Ok(created.files.into_iter().map(name).collect())
}
