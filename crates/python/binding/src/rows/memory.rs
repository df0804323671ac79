//! Memory that Python reads, and does not write.

use bytes::Bytes;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Rows that were read; read-only.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct RowMemory(pub(crate) Bytes);

#[pymethods]
impl RowMemory {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// # Safety
    /// Called by the interpreter with a place for the answer.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: as above; the object keeps its bytes where they are.
        unsafe { expose(&slf, &slf.get().0, view, flags) }
    }
}

/// A read-only view of `bytes`, which `owner` keeps where they are.
///
/// # Safety
/// `view` is a place for the answer.
pub(super) unsafe fn expose<T>(
    owner: &Bound<'_, T>,
    bytes: &[u8],
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    // SAFETY: the view keeps a reference to the owner, which keeps the memory, and is read-only.
    let failed = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            bytes.as_ptr().cast_mut().cast(),
            bytes.len() as ffi::Py_ssize_t,
            1,
            flags,
        )
    };
    match failed {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}
