//! Memory with the batches of a group.

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use treadle_memory::Buffer;
use treadle_rows::Batch;
use treadle_shuffle::block::{HEADER, Table};

/// The batches of one transfer for one group, side by side; read-only.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Arena {
    buffer: Buffer,
    batches: Vec<Batch>,
}

impl Arena {
    pub(crate) fn new(buffer: Buffer, batches: Vec<Batch>) -> Self {
        Self { buffer, batches }
    }
}

#[pymethods]
impl Arena {
    fn __len__(&self) -> usize {
        self.buffer.len()
    }

    /// Offset, length, rows, bytes of rows, and digest of each batch.
    #[getter]
    fn batches(&self) -> Vec<(usize, u64, u64, u64, u64)> {
        let batches = self.batches.iter().map(|batch| {
            let tally = batch.header.tally;
            let length = batch.header.length();
            (batch.offset, length, tally.rows, tally.bytes, tally.digest)
        });
        batches.collect()
    }

    /// Offset, length, rows and half digest of each piece for a partition, in order.
    fn find(&self, partition: u32) -> PyResult<Vec<(usize, u64, u64, u64)>> {
        let mut found = Vec::new();
        for batch in &self.batches {
            let header = &batch.header;
            let start = batch.offset + HEADER;
            let table = &self.buffer.as_slice()[start..][..header.table_length() as usize];
            let table = Table::new(header, bytes::Bytes::copy_from_slice(table))
                .map_err(|error| PyValueError::new_err(error.to_string()))?;
            if let Some(piece) = table.find(partition) {
                let tally = piece.tally;
                let offset = batch.offset + (header.rows_offset() + piece.offset) as usize;
                found.push((offset, tally.bytes, tally.rows, tally.digest));
            }
        }
        Ok(found)
    }

    /// # Safety
    /// Called by the interpreter with a place for the answer.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let buffer = &slf.get().buffer;
        // SAFETY: the view keeps a reference to this object, which keeps the memory, and is read-only.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                buffer.as_ptr().cast_mut().cast(),
                buffer.len() as ffi::Py_ssize_t,
                1,
                flags,
            )
        };
        match failed {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}
