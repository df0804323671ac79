//! From a Python object to frames.

use crate::array;
use crate::buffer::ExportedBuffer;
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyTuple};
use std::time::{Duration, Instant};

/// A stream of pickle, protocol 5, and its buffers.
pub const PICKLE: u32 = 0;
/// `bytes`.
pub const BYTES: u32 = 1;
/// An array of NumPy: see [`array`].
pub(crate) const ARRAY: u32 = 2;
/// `bytearray`.
pub(crate) const BYTEARRAY: u32 = 3;
// 4, a `memoryview`, is known to `treadle.transfer._serialise` alone.
/// An array of another library: as one of NumPy, but for the name of its type (`treadle.transfer._tensors`).
pub(crate) const TENSOR: u32 = 5;

/// An object as it is sent.
#[derive(Clone)]
pub struct Encoded {
    /// How the frames are to be read.
    pub kind: u32,
    /// What is sent.
    pub frames: Vec<Bytes>,
    /// They are a copy of memory that was not contiguous.
    pub copied: bool,
    /// Getting hold of the memory.
    pub prepare: Duration,
    /// Pickling.
    pub serialise: Duration,
}

impl Encoded {
    /// The length of the frames, in bytes.
    pub fn bytes(&self) -> u64 {
        self.frames.iter().map(|frame| frame.len() as u64).sum()
    }
}

/// The frames of an object. Large ones view its memory.
///
/// # Errors
/// When it cannot be pickled.
pub fn encode(object: &Bound<'_, PyAny>) -> PyResult<Encoded> {
    encode_as(object, false)
}

/// As [`encode`], but an array of another library, in the memory of the CPU, is sent as one of NumPy is, so
/// that it can be received into an array.
///
/// # Errors
/// When it cannot be pickled.
pub fn encode_as_array(object: &Bound<'_, PyAny>) -> PyResult<Encoded> {
    encode_as(object, true)
}

fn encode_as(object: &Bound<'_, PyAny>, as_array: bool) -> PyResult<Encoded> {
    let began = Instant::now();
    let single = |kind| -> PyResult<Encoded> {
        Ok(Encoded {
            kind,
            frames: vec![ExportedBuffer::new(object, false)?.into_bytes()],
            copied: false,
            prepare: began.elapsed(),
            serialise: Duration::ZERO,
        })
    };
    if object.is_exact_instance_of::<PyBytes>() {
        return single(BYTES);
    }
    if object.is_exact_instance_of::<PyByteArray>() {
        return single(BYTEARRAY);
    }
    if array::is_array(object)?
        && let Some(encoded) = array::encode(object, began)?
    {
        return Ok(encoded);
    }
    general(object, as_array)
}

/// The frames of an object whose memory they view as it is: an array. `None`: it takes more than
/// that to serialise it.
///
/// # Errors
/// When NumPy cannot be asked.
pub fn encode_view(object: &Bound<'_, PyAny>) -> PyResult<Option<Encoded>> {
    match array::is_array(object)? {
        true => array::encode_view(object),
        false => Ok(None),
    }
}

/// What `treadle.transfer._serialise` makes of an object.
fn general(object: &Bound<'_, PyAny>, as_array: bool) -> PyResult<Encoded> {
    static ENCODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = object.py();
    let began = Instant::now();
    let encode = ENCODE.import(py, "treadle.transfer._serialise", "encode")?;
    let encoded = encode.call1((object, as_array))?;
    let serialise = began.elapsed();
    let began = Instant::now();
    if array::is_array(&encoded)?
        && let Some(encoded) = array::encode(&encoded, began)?
    {
        return Ok(Encoded {
            serialise,
            ..encoded
        });
    }
    let (kind, stream, buffers): (u32, Bound<'_, PyAny>, Vec<Bound<'_, PyAny>>) =
        encoded.cast::<PyTuple>()?.extract()?;
    if kind == TENSOR {
        let name = stream.cast::<PyBytes>()?;
        let encoded = array::encode_named(&buffers[0], name.as_bytes(), began)?;
        return Ok(Encoded {
            serialise,
            ..encoded
        });
    }
    let mut frames = Vec::with_capacity(1 + buffers.len());
    frames.push(ExportedBuffer::new(&stream, false)?.into_bytes());
    for buffer in &buffers {
        frames.push(ExportedBuffer::new(buffer, false)?.into_bytes());
    }
    Ok(Encoded {
        kind,
        frames,
        copied: false,
        prepare: began.elapsed(),
        serialise,
    })
}
