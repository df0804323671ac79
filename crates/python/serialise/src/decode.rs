//! From received frames to a Python object.

use crate::array;
use crate::encode::{ARRAY, BYTEARRAY, BYTES, PICKLE, TENSOR};
use crate::memory::Memory;
use bytes::Bytes;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList};
use treadle_memory::Pool;
use treadle_net::{Frame, Received};

/// The object. What it consists of views the received memory, but for `bytes` and `bytearray`, which
/// are copies. An array can be written to, also where the one that it was made of could not.
///
/// # Errors
/// When it cannot be unpickled here.
pub fn decode<'py>(py: Python<'py>, received: Received) -> PyResult<Bound<'py, PyAny>> {
    decode_frames(py, received.kind, received.frames, false)
}

/// A value of a cluster, read-only where the one that it was made of was.
///
/// # Errors
/// When it cannot be unpickled here.
pub fn decode_value(py: Python<'_>, kind: u32, frames: Vec<Frame>) -> PyResult<Bound<'_, PyAny>> {
    decode_frames(py, kind, frames, true)
}

/// The object that serialised parts make up, which stay in memory as long as it views them; read-only
/// where the one that they were made of was. They are a value of which others may have live objects
/// too, or send it: whoever writes to one of them writes to all, as with any object that several
/// tasks read.
///
/// # Errors
/// When it cannot be unpickled here.
pub fn decode_parts<'py>(
    py: Python<'py>,
    kind: u32,
    parts: &[Bytes],
) -> PyResult<Bound<'py, PyAny>> {
    /// Arrays want their memory aligned; small parts may be anywhere in that of others.
    const ALIGNMENT: usize = 64;
    let frame = |part: &Bytes| {
        if part.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            // SAFETY: parts are received or read into buffers of their own, never into memory that
            // cannot be written; who else reads it is told above.
            unsafe { Frame::writable(part.clone()) }
        } else {
            Frame::from(part.clone())
        }
    };
    decode_frames(py, kind, parts.iter().map(frame).collect(), true)
}

/// As [`decode_parts`], in memory of its own: nobody else sees what is written to it.
///
/// # Errors
/// When it cannot be unpickled here, or there is no memory.
pub fn decode_own<'py>(py: Python<'py>, kind: u32, parts: &[Bytes]) -> PyResult<Bound<'py, PyAny>> {
    let frames = parts.iter().enumerate().map(|(number, part)| match kind {
        // These are copied anyway.
        BYTES | BYTEARRAY => Ok(Frame::from(part.clone())),
        // SAFETY: a stream of pickle and the header of an array are only read.
        PICKLE | ARRAY if number == 0 => Ok(unsafe { Frame::writable(part.clone()) }),
        _ => own(py, part),
    });
    decode_frames(py, kind, frames.collect::<PyResult<_>>()?, true)
}

/// A frame with the same bytes. Of shared memory, pages are copied when they are written to.
fn own(py: Python<'_>, part: &Bytes) -> PyResult<Frame> {
    py.detach(|| {
        #[cfg(target_os = "linux")]
        if let Some(handover) = treadle_memory::Handover::of(part.as_ptr(), part.len())
            && let Ok(mapping) = handover.map()
        {
            // SAFETY: a private mapping that nobody else knows.
            return Ok(unsafe { Frame::writable(mapping.into_bytes()) });
        }
        let mut buffer = Pool::global()
            .buffer(part.len())
            .map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        buffer.as_mut_slice().copy_from_slice(part);
        // SAFETY: nobody else has it.
        Ok(unsafe { Frame::writable(buffer.into_bytes()) })
    })
}

/// As [`decode`], of the parts of what was received.
///
/// # Errors
/// When it cannot be unpickled here.
fn decode_frames<'py>(
    py: Python<'py>,
    kind: u32,
    frames: Vec<Frame>,
    keeps: bool,
) -> PyResult<Bound<'py, PyAny>> {
    match kind {
        BYTES => bytes(py, frames.first()).map(Bound::into_any),
        ARRAY => array::decode(py, frames, keeps),
        TENSOR => array::decode_tensor(py, frames),
        BYTEARRAY => {
            let frame = frames.first().map_or(&[][..], Frame::as_slice);
            Ok(PyByteArray::new(py, frame).into_any())
        }
        PICKLE => pickled(py, frames),
        _ => other(py, kind, frames),
    }
}

/// Copied while other threads run, if it takes long.
fn bytes<'py>(py: Python<'py>, frame: Option<&Frame>) -> PyResult<Bound<'py, PyBytes>> {
    const LONG: usize = 1 << 20;
    let frame = frame.map_or(&[][..], Frame::as_slice);
    if frame.len() < LONG {
        return Ok(PyBytes::new(py, frame));
    }
    // SAFETY: a new object of this length, or an error.
    let object: Bound<'_, PyBytes> = unsafe {
        let length = frame.len() as ffi::Py_ssize_t;
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
        Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked()
    };
    // SAFETY: of this length; as yet, nobody else has it.
    let memory = unsafe {
        let start = ffi::PyBytes_AsString(object.as_ptr());
        std::slice::from_raw_parts_mut(start.cast::<u8>(), frame.len())
    };
    py.detach(|| memory.copy_from_slice(frame));
    Ok(object)
}

/// Frames as objects with a buffer, which is writable where a frame's memory is its own.
pub fn memories<'py>(py: Python<'py>, frames: Vec<Frame>) -> PyResult<Vec<Bound<'py, Memory>>> {
    let memory = |frame| Bound::new(py, Memory::new(frame)?);
    frames.into_iter().map(memory).collect()
}

fn pickled<'py>(py: Python<'py>, frames: Vec<Frame>) -> PyResult<Bound<'py, PyAny>> {
    static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let loads = LOADS.import(py, "pickle", "loads")?;
    let mut frames = memories(py, frames)?.into_iter();
    let stream = frames.next();
    if frames.len() == 0 {
        return loads.call1((stream,));
    }
    let options = PyDict::new(py);
    options.set_item(intern!(py, "buffers"), PyList::new(py, frames)?)?;
    loads.call((stream,), Some(&options))
}

fn other<'py>(py: Python<'py>, kind: u32, frames: Vec<Frame>) -> PyResult<Bound<'py, PyAny>> {
    let module = py.import("treadle.transfer._serialise")?;
    module.call_method1("decode", (kind, memories(py, frames)?))
}
