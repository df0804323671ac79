//! Arrays of NumPy on the wire: a small header, and the elements as they are in memory.

use crate::buffer::ExportedBuffer;
use crate::encode::{ARRAY, Encoded, TENSOR};
use crate::memory::Memory;
use bytes::Bytes;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyTuple, PyType};
use std::sync::Arc;
use std::time::Instant;
use treadle_interpreter::loaded_module;
use treadle_memory::Pool;
use treadle_net::{Frame, Incoming, Received, Target};

/// Frames shorter than this are gathered by `crates/transfer/net`, and up to as many bytes of them travel in
/// the object's header.
const SMALL: usize = treadle_net::SMALL as usize;
/// A longer header is not worth its trouble: such an array is pickled.
const LONGEST_HEADER: usize = 16 * 1024;

/// What is needed of NumPy, once it is loaded.
struct Numpy {
    ndarray: Py<PyType>,
    /// `treadle.transfer._dtypes.name_of`
    name_of: Py<PyAny>,
    /// `treadle.transfer._dtypes.dtype_of`
    dtype_of: Py<PyAny>,
    /// `treadle.transfer._tensors.make`
    make: Py<PyAny>,
    /// `treadle.transfer._tensors.view_of`
    view_of: Py<PyAny>,
    copyto: Py<PyAny>,
}

static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();

/// NumPy, which is imported if it is not yet.
fn numpy(py: Python<'_>) -> PyResult<&Numpy> {
    NUMPY.get_or_try_init(py, || {
        let numpy = py.import("numpy")?;
        let dtypes = py.import("treadle.transfer._dtypes")?;
        let tensors = py.import("treadle.transfer._tensors")?;
        Ok(Numpy {
            ndarray: numpy.getattr("ndarray")?.cast_into::<PyType>()?.unbind(),
            name_of: dtypes.getattr("name_of")?.unbind(),
            dtype_of: dtypes.getattr("dtype_of")?.unbind(),
            make: tensors.getattr("make")?.unbind(),
            view_of: tensors.getattr("view_of")?.unbind(),
            copyto: numpy.getattr("copyto")?.unbind(),
        })
    })
}

/// Whether an object is an array of NumPy, not one of a subclass.
pub fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    let loaded = match NUMPY.get(py) {
        Some(loaded) => loaded,
        None if loaded_module(py, intern!(py, "numpy"))?.is_none() => return Ok(false),
        None => numpy(py)?,
    };
    Ok(object.get_type_ptr() == loaded.ndarray.as_ptr().cast())
}

/// Flags of a header: the elements are in the order of Fortran.
const FORTRAN: u8 = 1;
/// The array cannot be written to.
const READ_ONLY: u8 = 2;

/// What the first frame says.
struct Header {
    fortran: bool,
    /// It cannot be written to.
    read_only: bool,
    shape: Vec<usize>,
    dtype: Vec<u8>,
}

impl Header {
    fn encode(flags: u8, shape: &[ffi::Py_ssize_t], dtype: &[u8]) -> Vec<u8> {
        let mut header = Vec::with_capacity(2 + 8 * shape.len() + dtype.len());
        header.push(flags);
        // NumPy allows 64 dimensions.
        header.push(shape.len() as u8);
        for length in shape {
            header.extend_from_slice(&(*length as u64).to_le_bytes());
        }
        header.extend_from_slice(dtype);
        header
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&[order, dimensions], rest) = bytes.split_first_chunk::<2>()?;
        let lengths = rest.get(..8 * usize::from(dimensions))?;
        let length = |bytes: &[u8]| {
            let bytes = bytes.try_into().expect("eight of them");
            usize::try_from(u64::from_le_bytes(bytes)).ok()
        };
        Some(Self {
            fortran: order & FORTRAN != 0,
            read_only: order & READ_ONLY != 0,
            shape: lengths.chunks_exact(8).map(length).collect::<Option<_>>()?,
            dtype: rest[lengths.len()..].to_vec(),
        })
    }

    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let name = PyBytes::new(py, &self.dtype);
        numpy(py)?.dtype_of.bind(py).call1((name,))
    }

    /// Bytes of the elements.
    fn bytes(&self, dtype: &Bound<'_, PyAny>) -> PyResult<usize> {
        let item: usize = dtype.getattr(intern!(dtype.py(), "itemsize"))?.extract()?;
        let bytes = self
            .shape
            .iter()
            .try_fold(item, |bytes, length| bytes.checked_mul(*length));
        bytes.ok_or_else(malformed)
    }
}

fn malformed() -> PyErr {
    crate::CorruptData::new_err("an array arrived whose header makes no sense")
}

/// The frames of an array; `None` for one that has to be pickled.
pub(crate) fn encode(array: &Bound<'_, PyAny>, began: Instant) -> PyResult<Option<Encoded>> {
    let Some(name) = name_of(array)? else {
        return Ok(None);
    };
    Ok(Some(match ExportedBuffer::new(array, false) {
        Ok(held) => encode_held(held, name.as_bytes(), began),
        Err(_) => encode_copy(array, name.as_bytes(), began)?,
    }))
}

/// The frames of an array of another library, whose memory `view`, an array of NumPy, views; `name` is that of
/// the library and its type.
///
/// # Errors
/// The view is not contiguous.
pub(crate) fn encode_named(
    view: &Bound<'_, PyAny>,
    name: &[u8],
    began: Instant,
) -> PyResult<Encoded> {
    Ok(Encoded {
        kind: TENSOR,
        ..encode_held(ExportedBuffer::new(view, false)?, name, began)
    })
}

/// The frames of an array that view its memory; `None` where they would be a copy.
pub(crate) fn encode_view(array: &Bound<'_, PyAny>) -> PyResult<Option<Encoded>> {
    let began = Instant::now();
    let Ok(held) = ExportedBuffer::new(array, false) else {
        return Ok(None);
    };
    let name = name_of(array)?;
    Ok(name.map(|name| encode_held(held, name.as_bytes(), began)))
}

/// What the type of an array's elements is called; `None` for one that has to be pickled.
fn name_of<'py>(array: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let py = array.py();
    let dtype = array.getattr(intern!(py, "dtype"))?;
    let name = numpy(py)?.name_of.bind(py).call1((dtype,))?;
    let name = name.cast_into::<PyBytes>().ok();
    Ok(name.filter(|name| name.as_bytes().len() <= LONGEST_HEADER))
}

fn encode_held(held: ExportedBuffer, name: &[u8], began: Instant) -> Encoded {
    let mut flags = 0;
    if !held.is_c_contiguous() {
        flags |= FORTRAN;
    }
    if held.is_readonly() {
        flags |= READ_ONLY;
    }
    let header = Header::encode(flags, held.shape(), name);
    let length = padded(&header, held.len());
    let elements = if length > held.len() {
        let mut padded = held.as_ref().to_vec();
        held.release();
        padded.resize(length, 0);
        padded.into()
    } else {
        held.into_bytes()
    };
    encoded(header, elements, false, began)
}

/// The frames of an array whose memory is not contiguous: its elements in the order of C, in memory
/// that whoever has sent it lets go of without the interpreter.
fn encode_copy(array: &Bound<'_, PyAny>, name: &[u8], began: Instant) -> PyResult<Encoded> {
    let py = array.py();
    let shape: Vec<ffi::Py_ssize_t> = array.getattr(intern!(py, "shape"))?.extract()?;
    let nbytes: usize = array.getattr(intern!(py, "nbytes"))?.extract()?;
    let flags = array.getattr(intern!(py, "flags"))?;
    let is_writable: bool = flags.getattr(intern!(py, "writeable"))?.extract()?;
    let header = Header::encode(if is_writable { 0 } else { READ_ONLY }, &shape, name);
    let mut buffer = Pool::global()
        .buffer(padded(&header, nbytes))
        .map_err(|error| PyMemoryError::new_err(error.to_string()))?;
    buffer.as_mut_slice()[nbytes..].fill(0);
    let pointer = buffer.as_mut_ptr().cast();
    // SAFETY: so many bytes are there. The view does not own them, and nobody but the array below
    // has the view: both are gone before the buffer is.
    let view = unsafe {
        let view = ffi::PyMemoryView_FromMemory(pointer, nbytes as _, ffi::PyBUF_WRITE);
        Bound::from_owned_ptr_or_err(py, view)?
    };
    let numpy = numpy(py)?;
    let dtype = array.getattr(intern!(py, "dtype"))?;
    let arguments = (PyTuple::new(py, &shape)?, dtype, view);
    let copy = numpy.ndarray.bind(py).call1(arguments)?;
    numpy.copyto.bind(py).call1((&copy, array))?;
    drop(copy);
    Ok(encoded(header, buffer.into_bytes(), true, began))
}

/// The length of a frame with so many bytes of elements, beside this header. Where both would be
/// gathered behind the object's header, the receiver has to see this one before it asks for the
/// other: so the other becomes a large one.
fn padded(header: &[u8], elements: usize) -> usize {
    if elements < SMALL && header.len() + elements > SMALL {
        SMALL
    } else {
        elements
    }
}

fn encoded(header: Vec<u8>, elements: Bytes, copied: bool, began: Instant) -> Encoded {
    Encoded {
        kind: ARRAY,
        frames: vec![Bytes::from(header), elements],
        copied,
        prepare: began.elapsed(),
        serialise: std::time::Duration::ZERO,
    }
}

/// An array of received frames, which views their memory. Whether it can be written to, if `keeps`,
/// as the one that it was made of.
pub(crate) fn decode<'py>(
    py: Python<'py>,
    frames: Vec<Frame>,
    keeps: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (header, dtype, memory) = parts(py, frames)?;
    let shape = PyTuple::new(py, &header.shape)?;
    let order = if header.fortran {
        intern!(py, "F")
    } else {
        intern!(py, "C")
    };
    let arguments = (shape, dtype, memory, 0, py.None(), order);
    let array = numpy(py)?.ndarray.bind(py).call1(arguments)?;
    if keeps && header.read_only {
        array.call_method1(intern!(py, "setflags"), (false,))?;
    }
    Ok(array)
}

/// An array of another library.
pub(crate) fn decode_tensor(py: Python<'_>, frames: Vec<Frame>) -> PyResult<Bound<'_, PyAny>> {
    let (header, _, memory) = parts(py, frames)?;
    let name = PyBytes::new(py, &header.dtype);
    let shape = PyTuple::new(py, &header.shape)?;
    let arguments = (name, memory, shape, header.fortran);
    numpy(py)?.make.bind(py).call1(arguments)
}

/// What the frames of an array say, its type, and its elements.
fn parts<'py>(
    py: Python<'py>,
    frames: Vec<Frame>,
) -> PyResult<(Header, Bound<'py, PyAny>, Bound<'py, Memory>)> {
    let [header, elements] = <[Frame; 2]>::try_from(frames).map_err(|_| malformed())?;
    let header = Header::decode(header.as_slice()).ok_or_else(malformed)?;
    let dtype = header.dtype(py)?;
    if header.bytes(&dtype)? > elements.len() {
        return Err(malformed());
    }
    let memory = Bound::new(py, Memory::new(elements)?)?;
    Ok((header, dtype, memory))
}

/// An array to receive into.
pub struct Destination {
    held: Arc<ExportedBuffer>,
    dtype: Py<PyAny>,
    shape: Vec<usize>,
}

impl Destination {
    /// The memory of `array`: one of NumPy, or of a library that lets NumPy view its memory.
    ///
    /// # Errors
    /// When it is no array that can be written, or its memory is not contiguous.
    pub fn new(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = array.py();
        let numpy = numpy(py)?;
        if !array.is_instance(numpy.ndarray.bind(py))? {
            let view = numpy.view_of.bind(py).call1((array,))?;
            return Self::new(&view);
        }
        let dtype = array.getattr(intern!(py, "dtype"))?;
        if numpy.name_of.bind(py).call1((&dtype,))?.is_none() {
            return Err(PyValueError::new_err(format!(
                "arrays of dtype {dtype} cannot be received in place: use recv"
            )));
        }
        let held = ExportedBuffer::new(array, true).map_err(|cause| {
            let error = PyValueError::new_err(
                "recv_into needs an array that can be written and is contiguous in C or Fortran \
                 order",
            );
            error.set_cause(py, Some(cause));
            error
        })?;
        let shape = held.shape().iter().map(|length| *length as usize).collect();
        Ok(Self {
            held: Arc::new(held),
            dtype: dtype.unbind(),
            shape,
        })
    }

    /// The memory for each frame of an object that is about to come.
    ///
    /// # Errors
    /// When the object is not an array of the same dtype and shape, in the same order.
    pub fn targets(&self, py: Python<'_>, incoming: &Incoming) -> PyResult<Vec<Option<Target>>> {
        let (kind, sizes) = incoming.header();
        let header = incoming
            .inline_frame(0)
            .filter(|_| matches!(kind, ARRAY | TENSOR) && sizes.len() == 2)
            .and_then(|frame| Header::decode(&frame));
        let Some(header) = header else {
            return Err(PyValueError::new_err(format!(
                "the next object is not an array, and recv_into was given {}; it stays the next \
                 one: use recv",
                self.describe(py)?
            )));
        };
        let dtype = header.dtype(py)?;
        let order = if header.fortran { b'F' } else { b'C' };
        if header.shape != self.shape || !dtype.eq(&self.dtype)? || !self.held.is_contiguous(order)
        {
            return Err(PyValueError::new_err(format!(
                "the next object is {}, and recv_into was given {}; it stays the next one",
                describe(&dtype, &header.shape, header.fortran)?,
                self.describe(py)?
            )));
        }
        let length = self.held.len();
        // Small frames come together with others: `fill` copies them.
        if sizes[1] != length as u64 || length < SMALL {
            return Ok(Vec::new());
        }
        // SAFETY: the buffer is exported until the owner is dropped, which may happen anywhere;
        // callers of `recv_into` are told not to use the array meanwhile.
        let target = unsafe {
            let owner = Box::new(Arc::clone(&self.held));
            Target::new(self.held.pointer(), length, owner)
        };
        Ok(vec![None, Some(target)])
    }

    fn describe(&self, py: Python<'_>) -> PyResult<String> {
        describe(
            self.dtype.bind(py),
            &self.shape,
            !self.held.is_c_contiguous(),
        )
    }

    /// Copies a received object if it is not there already. Takes a while: call it detached.
    ///
    /// # Errors
    /// When there is less than expected.
    pub fn fill(&self, received: &Received) -> PyResult<()> {
        let length = self.held.len();
        let elements = received.frames.get(1).map(Frame::as_slice);
        let elements = elements.and_then(|elements| elements.get(..length));
        let elements = elements.ok_or_else(malformed)?;
        if elements.as_ptr() != self.held.pointer().cast_const() && length > 0 {
            // SAFETY: exported for writing. The frame may overlap with it, if it was received into
            // another part of the same array.
            unsafe {
                self.held.pointer().copy_from(elements.as_ptr(), length);
            }
        }
        Ok(())
    }
}

fn describe(dtype: &Bound<'_, PyAny>, shape: &[usize], fortran: bool) -> PyResult<String> {
    let shape = PyTuple::new(dtype.py(), shape)?;
    let order = if fortran { "Fortran" } else { "C" };
    Ok(format!(
        "an array of {dtype} with shape {shape} in {order} order"
    ))
}
