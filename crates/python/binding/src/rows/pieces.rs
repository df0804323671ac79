//! Pieces of arrays: NumPy's views, straight from their memory.

use super::buffers::Target;
use super::failed;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use treadle_rows::{Chunk, ColumnMut, Scattered, View, plain_head};

use super::buffers::bytes_of;

/// Pieces of a chunk, as rows: a head each, and elements, if the head says that they follow.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Pieces {
    pieces: Vec<(Vec<u8>, Option<Array>)>,
}

/// An array of any dimensions, which is kept meanwhile.
struct Array {
    buffer: PyUntypedBuffer,
    view: View,
}

impl Array {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        let strides = buffer.strides().iter();
        let strides = strides.map(|&stride| usize::try_from(stride));
        let strides = strides.collect::<Result<Vec<_>, _>>();
        let (Ok(strides), None) = (strides, buffer.suboffsets()) else {
            let text = "an array that goes forward, without indirection, was expected";
            return Err(PyBufferError::new_err(text));
        };
        let view = View::new(buffer.item_size(), buffer.shape(), &strides);
        let view = view.ok_or_else(|| PyBufferError::new_err("an array of this size cannot be"))?;
        Ok(Self { buffer, view })
    }

    fn bytes(&self) -> &[u8] {
        match self.view.extent() {
            0 => &[],
            // SAFETY: strides go forward, and the exporter keeps all elements until the buffer is
            // released. A task does not change its input while it hands it over.
            length => unsafe {
                std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<u8>(), length)
            },
        }
    }
}

/// Index, array, and the type of its elements; or the rest of the head.
type Given<'py> = (Vec<u32>, Option<Bound<'py, PyAny>>, Vec<u8>);

#[pymethods]
impl Pieces {
    /// For each piece: its index, its array (or `None`, if the head has it), and the type of the elements
    /// as bytes (or the rest of the head).
    #[new]
    fn new(pieces: Vec<Given<'_>>) -> PyResult<Self> {
        let piece = |(index, array, kind): Given<'_>| {
            let Some(array) = array else {
                let mut head = (kind.len() as u32).to_le_bytes().to_vec();
                head.extend(kind);
                return Ok((head, None));
            };
            let array = Array::new(&array)?;
            let head = plain_head(&index, array.buffer.shape(), &kind);
            let head = head.ok_or_else(|| PyValueError::new_err("an index fits the axes"))?;
            Ok((head, Some(array)))
        };
        let pieces = pieces.into_iter().map(piece).collect::<PyResult<_>>()?;
        Ok(Self { pieces })
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pieces({})", self.pieces.len())
    }
}

impl Scattered for Pieces {
    fn rows(&self) -> usize {
        self.pieces.len()
    }

    fn length(&self, row: usize) -> usize {
        let (head, array) = &self.pieces[row];
        head.len() + array.as_ref().map_or(0, |array| array.view.len())
    }

    fn write(&self, row: usize, place: &mut [u8]) {
        let (head, array) = &self.pieces[row];
        let (start, elements) = place.split_at_mut(head.len());
        start.copy_from_slice(head);
        if let Some(array) = array {
            array.view.read(array.bytes(), elements);
        }
    }
}

/// The shape of the chunk that pieces make up, and the type of its elements. `None`: it is for Python
/// to put them together.
#[pyfunction]
fn scan_chunk<'py>(
    py: Python<'py>,
    pieces: Vec<Bound<'py, PyAny>>,
) -> PyResult<Option<(Vec<usize>, Bound<'py, PyBytes>)>> {
    let buffers = bytes_of(&pieces)?;
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| buffer.bytes()).collect();
    let chunk = py.detach(|| Chunk::new(&slices)).map_err(failed)?;
    Ok(chunk.map(|chunk| (chunk.shape().collect(), PyBytes::new(py, chunk.kind()))))
}

/// Copies pieces to a chunk, whose bytes are `to`; its elements have `width` bytes.
#[pyfunction]
fn join_chunk(
    py: Python<'_>,
    pieces: Vec<Bound<'_, PyAny>>,
    to: &Bound<'_, PyAny>,
    width: usize,
) -> PyResult<()> {
    let buffers = bytes_of(&pieces)?;
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| buffer.bytes()).collect();
    let mut target = Target::new(to)?;
    let ColumnMut::Fixed { bytes, .. } = target.column() else {
        return Err(PyValueError::new_err("one array was expected"));
    };
    py.detach(|| match Chunk::new(&slices)? {
        Some(chunk) => chunk.fill(width, bytes),
        None => Ok(()),
    })
    .map_err(failed)
}

/// Adds what is here to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pieces>()?;
    module.add_function(wrap_pyfunction!(scan_chunk, module)?)?;
    module.add_function(wrap_pyfunction!(join_chunk, module)?)
}
