//! Received memory that Python uses.

use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use treadle_interpreter::ProcessLocal;
use treadle_memory::{Buffer, Pool};
use treadle_net::Frame;

/// What keeps the memory.
enum Owner {
    #[expect(dead_code, reason = "held only to be dropped")]
    Frame(Frame),
    #[expect(dead_code, reason = "held only to be dropped")]
    Buffer(Buffer),
}

/// A received buffer: writable, its first byte at a multiple of 64.
///
/// Arrays that were received are views of one; it lives as long as any of them.
#[pyclass(frozen, module = "treadle.transfer", name = "Memory")]
pub struct Memory {
    pointer: *mut u8,
    length: usize,
    _owner: ProcessLocal<Owner>,
}

// SAFETY: the memory is this value's own; Python's arrays are read and written by whoever has them.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// The frame's own memory; that of a small frame is copied, once, as the header that it came in
    /// is shared.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(mut frame: Frame) -> PyResult<Self> {
        let length = frame.len();
        if let Some(pointer) = frame.as_mut_ptr() {
            return Ok(Self {
                pointer,
                length,
                _owner: ProcessLocal::new(Owner::Frame(frame)),
            });
        }
        let mut buffer = Pool::global()
            .buffer(length)
            .map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        buffer.as_mut_slice().copy_from_slice(frame.as_slice());
        Ok(Self {
            pointer: buffer.as_mut_ptr(),
            length,
            _owner: ProcessLocal::new(Owner::Buffer(buffer)),
        })
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.length
    }

    /// # Safety
    /// Called by the interpreter with a place for the answer.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = slf.get();
        // SAFETY: the view keeps a reference to this object, which keeps the memory.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                memory.pointer.cast(),
                memory.length as ffi::Py_ssize_t,
                0,
                flags,
            )
        };
        if failed == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}
