//! Casts to engines: what Python says, and what arrives.

use super::{Connection, client_error};
use crate::transfer::{self, Held, Limit, blocking};
use bytes::Bytes;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use treadle_node::client::{Arrival, CastError, What};

impl Connection {
    /// Who the workers are; nothing, before the scheduler has said.
    pub(super) fn engines<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let client = self.client()?;
        let members = py.detach(|| client.members()).map_err(self.failed())?;
        let Some(members) = members else {
            return Ok(None);
        };
        let members = members.iter().map(|member| {
            let (name, address) = (member.name.as_str(), member.address.as_str());
            (member.worker.0, name, address, member.host.as_str())
        });
        PyList::new(py, members).map(Some)
    }

    pub(super) fn cast_frames(
        &self,
        py: Python<'_>,
        engines: &[u32],
        head: &Bound<'_, PyAny>,
        frames: &[Bound<'_, PyAny>],
    ) -> PyResult<u64> {
        let client = self.client()?;
        let frames = std::iter::once(head).chain(frames).map(buffer);
        let frames = frames.collect::<PyResult<Vec<_>>>()?;
        let failed = |error| match error {
            CastError::Memory(_) => PyMemoryError::new_err(format!("{error}")),
            CastError::Refused(_) => PyValueError::new_err(format!("{error}")),
            CastError::NoThread => pyo3::exceptions::PyOSError::new_err(format!("{error}")),
            CastError::Wait(error) => client_error(error.into(), "casting to engines"),
        };
        let limit = Limit::new(None)?;
        blocking(py, limit, None, failed, |wait| {
            client.cast(engines, &frames, wait)
        })
    }

    /// Calls who wants to know what arrived.
    pub(super) fn arrived(&self, py: Python<'_>, arrivals: Vec<Arrival>) -> PyResult<()> {
        let callback = self.held().casts.as_ref().map(|held| held.clone_ref(py));
        let Some(callback) = callback else {
            return Ok(());
        };
        let list = PyList::empty(py);
        for arrival in arrivals {
            list.append(item(py, arrival)?)?;
        }
        callback.call1(py, (list,)).map(drop)
    }
}

/// The bytes of an object's buffer.
pub(in crate::cluster) fn buffer(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    Held::new(object, false).map(Held::into_bytes)
}

fn item<'py>(py: Python<'py>, arrival: Arrival) -> PyResult<Bound<'py, PyAny>> {
    let words = |text: &str| PyList::new(py, [PyBytes::new(py, text.as_bytes())]);
    let (kind, frames) = match arrival.what {
        What::Output(text) => (
            intern!(py, "output"),
            PyList::new(py, [PyBytes::new(py, &text)])?,
        ),
        What::Finished(frames) => (
            intern!(py, "finished"),
            PyList::new(py, transfer::memories(py, frames)?)?,
        ),
        What::Refused(reason) => (intern!(py, "refused"), words(&reason)?),
        What::Aborted => (intern!(py, "aborted"), PyList::empty(py)),
        What::Lost(reason) => (intern!(py, "lost"), words(&reason)?),
        What::Complete => (intern!(py, "complete"), PyList::empty(py)),
    };
    let engine = match arrival.engine.0 {
        u32::MAX => -1,
        engine => i64::from(engine),
    };
    let item = (arrival.number, engine, kind, frames);
    Ok(item.into_pyobject(py)?.into_any())
}
