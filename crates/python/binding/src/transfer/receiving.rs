//! An object on its way here.

use super::error::raised;
use super::timeline::{Stages, Track};
use super::wait::detached;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use treadle_interpreter::{ProcessLocal, lock};
use treadle_net::{Incoming, Received};
use treadle_serialise::{Destination, decode};

/// Makes an object of what was received; `allocation` is how long getting the memory took.
pub(crate) fn finish<'py>(
    py: Python<'py>,
    received: Received,
    allocation: Duration,
) -> PyResult<(Bound<'py, PyAny>, Stages)> {
    let began = Instant::now();
    let timings = received.timings;
    let bytes = received.frames.iter().map(|frame| frame.len() as u64).sum();
    let object = decode(py, received)?;
    let stages = Stages::received(bytes, timings, allocation, began);
    Ok((object, stages))
}

/// The same for an object that was received into an array.
pub(crate) fn finish_into(
    py: Python<'_>,
    received: Received,
    destination: &Destination,
) -> PyResult<Stages> {
    let began = Instant::now();
    let timings = received.timings;
    let bytes = received.frames.iter().map(|frame| frame.len() as u64).sum();
    detached(py, move || destination.fill(&received))?;
    Ok(Stages::received(bytes, timings, Duration::ZERO, began))
}

struct State {
    incoming: Option<Incoming>,
    destination: Option<Destination>,
    allocation: Duration,
}

/// An object whose header is here, for :mod:`treadle.transfer.aio`: nothing here waits. Dropped, the
/// object is the next to be received again.
#[pyclass(frozen, module = "treadle.transfer")]
pub(crate) struct Receiving {
    state: ProcessLocal<Mutex<State>>,
    doing: String,
    track: Track,
}

impl Receiving {
    pub(crate) fn new(incoming: Incoming, doing: String, track: Track) -> Self {
        let state = State {
            incoming: Some(incoming),
            destination: None,
            allocation: Duration::ZERO,
        };
        Self {
            state: ProcessLocal::new(Mutex::new(state)),
            doing,
            track,
        }
    }

    /// Never held while waiting for anything.
    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        Ok(lock(self.state.get()?))
    }
}

fn gone() -> PyErr {
    PyRuntimeError::new_err("the object was taken or put back")
}

#[pymethods]
impl Receiving {
    /// Lets it come, into `array` if there is one.
    #[pyo3(signature = (array=None))]
    fn accept(&self, py: Python<'_>, array: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let destination = array.map(Destination::new).transpose()?;
        let incoming = self.state()?.incoming.take().ok_or_else(gone)?;
        let began = Instant::now();
        let targets = match &destination {
            Some(destination) => destination.targets(py, &incoming)?,
            None => Vec::new(),
        };
        let accepted = detached(py, || incoming.accept(targets).map(drop));
        accepted.map_err(|error| raised(error, &self.doing))?;
        let mut state = self.state()?;
        state.allocation = began.elapsed();
        state.incoming = Some(incoming);
        state.destination = destination;
        Ok(())
    }

    /// Whether it can be taken, or will never come.
    fn done(&self) -> PyResult<bool> {
        let state = self.state()?;
        state
            .incoming
            .as_ref()
            .map(Incoming::is_done)
            .ok_or_else(gone)
    }

    /// `(done, total)` in bytes.
    #[getter]
    fn progress(&self) -> PyResult<(u64, u64)> {
        let state = self.state()?;
        state
            .incoming
            .as_ref()
            .map(Incoming::progress)
            .ok_or_else(gone)
    }

    /// The object, which must be done; `None` where it went into an array. The second value is its
    /// timings.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let mut state = self.state()?;
        let incoming = state.incoming.take().ok_or_else(gone)?;
        let destination = state.destination.take();
        let allocation = state.allocation;
        drop(state);
        let received = detached(py, move || incoming.take());
        let received = received.map_err(|error| raised(error, &self.doing))?;
        let (object, stages) = match destination {
            Some(destination) => {
                let stages = finish_into(py, received, &destination)?;
                (py.None().into_bound(py), stages)
            }
            None => finish(py, received, allocation)?,
        };
        stages.record(&self.track);
        Ok((object, stages.to_dict(py)?.into_any()))
    }

    /// Makes it the next to be received again.
    fn put_back(&self, py: Python<'_>) -> PyResult<()> {
        let incoming = self.state()?.incoming.take();
        detached(py, move || drop(incoming));
        Ok(())
    }
}
