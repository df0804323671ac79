//! Memory of other libraries' objects, as a buffer.

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Memory that an object keeps, which has no buffer of its own.
#[pyclass(frozen, module = "treadle._core")]
pub struct ForeignMemory {
    address: usize,
    length: ffi::Py_ssize_t,
    _owner: Py<PyAny>,
}

#[pymethods]
impl ForeignMemory {
    /// `length` bytes from `address` on must be there, and writable, as long as `owner` is.
    #[new]
    fn new(owner: Py<PyAny>, address: usize, length: ffi::Py_ssize_t) -> PyResult<Self> {
        let end = usize::try_from(length)
            .ok()
            .and_then(|length| address.checked_add(length));
        if address == 0 || end.is_none() {
            return Err(PyValueError::new_err(format!(
                "no memory has {length} bytes at address {address}"
            )));
        }
        Ok(Self {
            address,
            length,
            _owner: owner,
        })
    }

    /// # Safety
    /// Called by the interpreter with a place for the answer.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = slf.get();
        // SAFETY: the view keeps a reference to this object, which keeps the memory's owner.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                std::ptr::with_exposed_provenance_mut(memory.address),
                memory.length,
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
