//! Casts to engines: what Python says, and what arrives.

use super::{Connection, client_error};
use crate::transfer::{self, Held, Limit, blocking};
use bytes::Bytes;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use treadle_net::Frame;
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
        let mut arrivals = arrivals.into_iter().peekable();
        while let Some(mut arrival) = arrivals.next() {
            let mut engines = vec![engine_of(&arrival)];
            let mut times = vec![times_of(&mut arrival)];
            while let Some(mut next) = arrivals.next_if(|next| is_same(&arrival, next)) {
                engines.push(engine_of(&next));
                times.push(times_of(&mut next));
            }
            let (kind, frames) = what(py, arrival.what)?;
            list.append((arrival.number, engines, kind, frames, times))?;
        }
        callback.call1(py, (list,)).map(drop)
    }
}

/// When an engine began and ended, in seconds.
type Times = Option<(f64, f64)>;

/// What results of more bytes have in common is not looked for.
const LITTLE: usize = 1 << 10;

fn engine_of(arrival: &Arrival) -> i64 {
    match arrival.engine.0 {
        u32::MAX => -1,
        engine => i64::from(engine),
    }
}

/// Takes the first frame of a result.
fn times_of(arrival: &mut Arrival) -> Times {
    let What::Finished(frames) = &mut arrival.what else {
        return None;
    };
    if frames.is_empty() {
        return None;
    }
    let times = frames.remove(0);
    let (began, ended) = times.as_slice().split_first_chunk()?;
    let ended = ended.first_chunk()?;
    Some((f64::from_le_bytes(*began), f64::from_le_bytes(*ended)))
}

/// Whether an arrival, whose times were taken, has the same to say as the next one.
fn is_same(arrival: &Arrival, next: &Arrival) -> bool {
    if arrival.number != next.number {
        return false;
    }
    match (&arrival.what, &next.what) {
        (What::Finished(one), What::Finished(other)) => {
            let other = other.get(1..).unwrap_or_default();
            let size: usize = one.iter().map(Frame::len).sum();
            let mut pairs = one.iter().zip(other);
            one.len() == other.len()
                && size <= LITTLE
                && pairs.all(|(one, other)| one.as_slice() == other.as_slice())
        }
        (What::Aborted, What::Aborted) => true,
        (What::Lost(one), What::Lost(other)) | (What::Refused(one), What::Refused(other)) => {
            one == other
        }
        _ => false,
    }
}

/// What precedes the frames of a result on their way.
pub(in crate::cluster) fn encode_times(times: Times) -> Bytes {
    times.map_or_else(Bytes::new, |(began, ended)| {
        [began.to_le_bytes(), ended.to_le_bytes()].concat().into()
    })
}

/// The bytes of an object's buffer.
pub(in crate::cluster) fn buffer(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    Held::new(object, false).map(Held::into_bytes)
}

fn what<'py>(
    py: Python<'py>,
    what: What,
) -> PyResult<(&'py Bound<'py, PyString>, Bound<'py, PyList>)> {
    let words = |text: &str| PyList::new(py, [PyBytes::new(py, text.as_bytes())]);
    Ok(match what {
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
    })
}
