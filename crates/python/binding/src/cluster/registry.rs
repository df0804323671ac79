//! Registries of shuffle servers, as Python sees them.

use super::service::{LOOK, interruptible, seconds};
use pyo3::exceptions::{PyConnectionError, PyOSError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use treadle_shuffle_registry::{
    Config, Credentials, Entry, Location, News, Registry, RegistryError, Watch, open,
};

/// Nodes that are no servers, each with why.
type Skipped = Vec<(String, String)>;

/// The servers of a registry as dictionaries, and the nodes that were skipped with the reasons, read within
/// `timeout` seconds. Credentials come from the environment.
///
/// # Errors
/// `ValueError` for a URL or credentials that cannot be used, `ConnectionError` when the registry refuses,
/// `TimeoutError` when it does not answer in time.
#[pyfunction]
pub(crate) fn list_registry<'py>(
    py: Python<'py>,
    url: &str,
    timeout: f64,
) -> PyResult<(Vec<Bound<'py, PyDict>>, Skipped)> {
    let registry = opened(url)?;
    let watch = registry.watch().map_err(raised)?;
    let skipped = interruptible(py, Some(timeout), |is_over| follow(&*watch, is_over))?;
    let list = watch.list();
    let why = list.why.map(|failure| failure.why);
    match (list.age, why) {
        (None, _) => {}
        (Some(_), Some(why)) => return Err(PyConnectionError::new_err(why)),
        (Some(_), None) => {
            let at = registry.location();
            let text = format!("{at} has not answered within {timeout} s");
            return Err(PyTimeoutError::new_err(text));
        }
    }
    let servers = list.entries.iter().map(|entry| dictionary(py, entry));
    Ok((servers.collect::<PyResult<_>>()?, skipped))
}

/// The masters of a registry: the application, the address and the number of each, read within `timeout` seconds.
///
/// # Errors
/// As for [`list_registry`]; `ValueError` for a list, which has no masters.
#[pyfunction]
pub(crate) fn registry_masters(
    py: Python<'_>,
    url: &str,
    timeout: f64,
) -> PyResult<Vec<(u64, String, u32)>> {
    let registry = opened(url)?;
    let timeout = seconds("timeout", timeout)?;
    let masters = py.detach(|| registry.masters(timeout)).map_err(raised)?;
    let masters = masters.into_iter();
    Ok(masters
        .map(|master| (master.application, master.address, master.number))
        .collect())
}

/// The host and the port of the first server that a registry's URL, or its file, names; an empty host where that
/// names none. `None`: it is no such URL.
#[pyfunction]
pub(crate) fn registry_server(url: &str) -> Option<(String, u16)> {
    let location: Location = url.parse().ok()?;
    let first = location.first();
    Some(first.map_or_else(Default::default, |server| (server.host, server.port)))
}

fn opened(url: &str) -> PyResult<Box<dyn Registry>> {
    let location: Location = url
        .parse()
        .map_err(|error| PyValueError::new_err(format!("{error}")))?;
    let credentials = Credentials::from_environment().map_err(raised)?;
    open(&location, &credentials, &Config::default()).map_err(raised)
}

/// Follows the news until the list is current, the registry refuses, or `is_over`. Returns what is skipped.
fn follow(watch: &dyn Watch, is_over: &mut dyn FnMut() -> bool) -> Skipped {
    let mut skipped = Vec::new();
    while !is_over() {
        for news in watch.next(LOOK) {
            match news {
                News::Skipped { node, why } => skipped.push((node, why)),
                News::Current => return skipped,
                News::Stale(failure) if failure.is_refusal => return skipped,
                _ => {}
            }
        }
    }
    skipped
}

fn dictionary<'py>(py: Python<'py>, entry: &Entry) -> PyResult<Bound<'py, PyDict>> {
    let server = PyDict::new(py);
    server.set_item("name", &entry.name)?;
    server.set_item("incarnation", entry.incarnation)?;
    server.set_item("address", &entry.address)?;
    server.set_item("domain", &entry.domain)?;
    server.set_item("rack", &entry.rack)?;
    server.set_item("version", &entry.version)?;
    server.set_item("host_kind", &entry.host_kind)?;
    server.set_item("weight", entry.weight)?;
    server.set_item("leaving", entry.is_leaving)?;
    let load = entry.load.as_ref();
    server.set_item("free_bytes", load.map(|load| load.free))?;
    server.set_item("held_bytes", load.map(|load| load.held))?;
    server.set_item("waiting_requests", load.map(|load| load.waiting))?;
    server.set_item("full", load.map(|load| load.is_full))?;
    Ok(server)
}

pub(super) fn raised(error: RegistryError) -> PyErr {
    match error {
        RegistryError::Unanswered { .. } => PyConnectionError::new_err(error.to_string()),
        RegistryError::System { .. } | RegistryError::File { .. } => {
            PyOSError::new_err(error.to_string())
        }
        error => PyValueError::new_err(error.to_string()),
    }
}
