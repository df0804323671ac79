//! Memory with the batches of a group.

use super::memory::expose;
use bytes::Bytes;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use treadle_memory::Buffer;
use treadle_rows::Batch;
use treadle_shuffle::block::{BlockError, HEADER, Table};

/// The batches of one transfer for one group, side by side; read-only.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Arena {
    buffer: Buffer,
    batches: Vec<(Batch, Table)>,
}

impl Arena {
    pub(crate) fn new(buffer: Buffer, batches: Vec<Batch>) -> Result<Self, BlockError> {
        let with_table = |batch: Batch| {
            let start = batch.offset + HEADER;
            let table = &buffer.as_slice()[start..][..batch.header.table_length() as usize];
            let table = Table::new(&batch.header, Bytes::copy_from_slice(table))?;
            Ok((batch, table))
        };
        let batches = batches
            .into_iter()
            .map(with_table)
            .collect::<Result<_, _>>()?;
        Ok(Self { buffer, batches })
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
        let batches = self.batches.iter().map(|(batch, _)| {
            let tally = batch.header.tally;
            let length = batch.header.length();
            (batch.offset, length, tally.rows, tally.bytes, tally.digest)
        });
        batches.collect()
    }

    /// Offset, length, rows and half digest of each piece for a partition, in order.
    fn find(&self, partition: u32) -> Vec<(usize, u64, u64, u64)> {
        let found = self.batches.iter().filter_map(|(batch, table)| {
            let piece = table.find(partition)?;
            let tally = piece.tally;
            let offset = batch.offset + (batch.header.rows_offset() + piece.offset) as usize;
            Some((offset, tally.bytes, tally.rows, tally.digest))
        });
        found.collect()
    }

    /// # Safety
    /// Called by the interpreter with a place for the answer.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: as above; the object keeps its memory where it is.
        unsafe { expose(&slf, slf.get().buffer.as_slice(), view, flags) }
    }
}
