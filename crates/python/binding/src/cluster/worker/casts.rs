//! Casts for a worker's engine.

use super::Worker;
use crate::cluster::connection::encode_times;
use crate::transfer::is_main_thread;
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::time::{Duration, Instant};
use treadle_interpreter::fork;
use treadle_net::Frame;
use treadle_node_worker::{Next, snapshot};
use treadle_serialise::{ExportedBuffer, Memory};
use treadle_types::ClientId;

/// While it waits, the process's main thread looks so often whether there is a signal for it.
const LOOK: Duration = Duration::from_millis(250);
/// And others, whether the worker is over.
const LOOK_IDLE: Duration = Duration::from_secs(1);
/// The engine may write to what it gave as a result; copies above this are made without the
/// interpreter's lock.
const LARGE: usize = 64 << 10;

/// Frames before the first that may be a buffer: what to do, and the pickle or the code of it.
const HEADS: usize = 2;
/// Python knows those again that came before, by their bytes (`treadle.pickling._canning`).
const SHORT: usize = 8 << 10;

/// A client, the number of its cast, and the frames.
type Taken<'py> = (u32, u64, Bound<'py, PyList>);

#[pymethods]
impl Worker {
    /// The next cast for this worker's engine, in each client's order: the client, its number, and the
    /// frames, which are the engine's to write. `None`: none came within `timeout` seconds, or the
    /// worker has ended. The one after it comes when it is finished.
    fn next_cast<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Option<Taken<'py>>> {
        let node = &self.own()?.node;
        let deadline = Instant::now() + Duration::from_secs_f64(timeout.clamp(0.0, 1e6));
        let mut look = LOOK;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let cast = py.detach(|| node.next_cast(left.min(look)));
            match cast {
                Next::Cast(cast) => {
                    return Ok(Some((cast.client.0, cast.number, taken(py, cast.frames)?)));
                }
                Next::Nudged => return Ok(None),
                Next::Nothing if is_main_thread() => {}
                Next::Nothing => look = LOOK_IDLE,
            }
            py.check_signals()?;
            if left.is_zero() || node.ended().is_some() {
                return Ok(None);
            }
        }
    }

    /// Has `next_cast` return nothing, now or the next time.
    fn nudge_engine(&self) -> PyResult<()> {
        self.own()?.node.nudge_engine();
        Ok(())
    }

    /// How many casts the engine has not begun.
    fn casts_waiting(&self, py: Python<'_>) -> PyResult<usize> {
        let shared = self.own()?;
        Ok(py.detach(|| shared.node.casts_waiting()))
    }

    /// Sends what the engine has put out while it runs a cast.
    fn cast_output(
        &self,
        py: Python<'_>,
        client: u32,
        number: u64,
        output: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let shared = self.own()?;
        let output = crate::cluster::connection::buffer(output)?;
        py.detach(|| shared.node.cast_output(ClientId(client), number, output));
        Ok(())
    }

    /// What was sent to other engines and to clients so far: messages, bytes through sockets, bytes as
    /// shared memory; and what came from them: messages, and bytes.
    fn cast_traffic(&self, py: Python<'_>) -> PyResult<[u64; 5]> {
        let shared = self.own()?;
        Ok(py.detach(|| shared.node.cast_traffic()).into())
    }

    /// Sends the result of a cast, and when it began and ended: the last word about it.
    #[pyo3(signature = (client, number, frames, times=None))]
    fn finish_cast(
        &self,
        py: Python<'_>,
        client: u32,
        number: u64,
        frames: Vec<Bound<'_, PyAny>>,
        times: Option<(f64, f64)>,
    ) -> PyResult<()> {
        if self.0.is_parents() {
            fork::end_returned(py, "a cast", None);
        }
        let results = frames.iter().map(|frame| result(py, frame));
        let mut frames = results.collect::<PyResult<Vec<_>>>()?;
        // Without either the result is nothing, which costs nothing on the way.
        if times.is_some() || !frames.is_empty() {
            frames.insert(0, encode_times(times));
        }
        let node = &self.0.node;
        py.detach(|| node.finish_cast(ClientId(client), number, frames));
        Ok(())
    }
}

/// The frames of a cast: short ones before the first buffer are `bytes`, the others writable memory.
fn taken(py: Python<'_>, frames: Vec<Frame>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for (index, frame) in frames.into_iter().enumerate() {
        if index < HEADS && frame.len() <= SHORT {
            list.append(PyBytes::new(py, frame.as_slice()))?;
        } else {
            list.append(Memory::new(frame)?)?;
        }
    }
    Ok(list)
}

/// A frame of a result, as it is now: it may be sent later, and more than once, and the engine goes
/// on with the object that it is of.
fn result(py: Python<'_>, frame: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let held = ExportedBuffer::new(frame, false)?;
    if held.is_readonly() {
        return Ok(held.into_bytes());
    }
    if held.as_ref().len() <= LARGE {
        let bytes = Bytes::copy_from_slice(held.as_ref());
        held.release();
        return Ok(bytes);
    }
    let bytes = held.into_bytes();
    Ok(py.detach(|| snapshot(&bytes)))
}
