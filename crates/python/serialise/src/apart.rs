//! Which buffers of a pickle are frames of their own.

use crate::buffer::ExportedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyList;

/// A `buffer_callback` of pickle: keeps the buffers that stay out of the stream.
#[pyclass(frozen, module = "treadle._core")]
pub struct Apart {
    least: usize,
    most: usize,
    /// Those kept, in their order.
    #[pyo3(get)]
    buffers: Py<PyList>,
}

#[pymethods]
impl Apart {
    /// It keeps buffers of `least` bytes and more that are contiguous, `most` of them.
    #[new]
    fn new(py: Python<'_>, least: usize, most: usize) -> Self {
        Self {
            least,
            most,
            buffers: PyList::empty(py).unbind(),
        }
    }

    /// Whether a buffer stays in the stream.
    fn __call__(&self, buffer: &Bound<'_, PyAny>) -> PyResult<bool> {
        let kept = self.buffers.bind(buffer.py());
        let Ok(held) = ExportedBuffer::new(buffer, false) else {
            return Ok(true);
        };
        let is_long = held.len() >= self.least;
        held.release();
        if !is_long || kept.len() >= self.most {
            return Ok(true);
        }
        kept.append(buffer)?;
        Ok(false)
    }
}
