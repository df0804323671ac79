//! Rows of tables as batches of a shuffle, and columns again: `treadle_rows`, as Python sees it.

mod arena;
mod buffers;
mod memory;
mod pieces;
#[cfg(target_os = "linux")]
mod source;

pub(crate) use memory::RowMemory;

use arena::Arena;
use buffers::{Source, Target, bytes_of, integer};
use pyo3::exceptions::{PyMemoryError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use treadle_memory::Pool;
use treadle_rows::{
    Arenas, Column, ColumnMut, Field, Format, Input, Partitions, RowsError, Wanted,
};
use treadle_shuffle::{AttemptId, Generation, RowDigest, ShuffleId, Transfer};
use treadle_types::Runs;

fn failed(error: RowsError) -> PyErr {
    match error {
        RowsError::RowTooLong { .. } => PyOverflowError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

/// A format from the widths of its fields; 0: bytes. With `least`, rows are variable and have at
/// least so many bytes.
fn format(widths: &[usize], least: Option<usize>) -> Format {
    let field = |&width: &usize| match width {
        0 => Field::Bytes,
        width => Field::Fixed(width),
    };
    let fields = widths.iter().map(field).collect();
    match least {
        None => Format::new(fields),
        Some(least) => Format::variable(fields, least),
    }
}

/// The rows of a map, and where each goes.
#[pyclass(frozen, module = "treadle._core")]
pub(crate) struct Rows {
    format: Format,
    partitions: Partitions,
    columns: Vec<Source>,
    note: Vec<u8>,
}

#[pymethods]
impl Rows {
    /// `columns` are one-dimensional arrays, or tuples of offsets, data and nulls. `partitions` is an
    /// array of integers below `count`, which errors call `name`.
    #[new]
    #[pyo3(signature = (partitions, count, name, columns, note = Vec::new(), least = None))]
    fn new(
        partitions: &Bound<'_, PyAny>,
        count: u32,
        name: &str,
        columns: Vec<Bound<'_, PyAny>>,
        note: Vec<u8>,
        least: Option<usize>,
    ) -> PyResult<Self> {
        let py = partitions.py();
        let numbers = Source::new(partitions)?;
        let integer = integer(&numbers).ok_or_else(|| {
            let text = format!("column {name} has no integers, which say where rows go");
            PyTypeError::new_err(text)
        })?;
        let rows = numbers.rows();
        let Column::Fixed { bytes, stride, .. } = numbers.column() else {
            return Err(PyTypeError::new_err("partitions are one array"));
        };
        let read = py.detach(|| Partitions::read(bytes, stride, integer, rows, count));
        let partitions = read.map_err(|error| match error {
            RowsError::Partition { row, value, .. } => PyValueError::new_err(format!(
                "column {name} has {value} in row {row}: there are {count} partitions, from 0 on"
            )),
            other => failed(other),
        })?;
        let columns: Vec<Source> = columns.iter().map(Source::new).collect::<PyResult<_>>()?;
        let widths: Vec<usize> = columns.iter().map(Source::width).collect();
        Ok(Self {
            format: format(&widths, least),
            partitions,
            columns,
            note,
        })
    }

    /// How many rows there are.
    fn __len__(&self) -> usize {
        self.partitions.len()
    }

    /// Bytes of a row; 0: rows differ.
    #[getter]
    fn width(&self) -> usize {
        self.format.width()
    }

    /// Rows for each group of partitions, in an arena. A group is its epoch and ranges of partitions.
    fn gather(
        &self,
        py: Python<'_>,
        shuffle: u64,
        map_index: u32,
        attempt: u64,
        groups: Vec<(u32, Vec<(u64, u64)>)>,
    ) -> PyResult<Vec<Arena>> {
        let wanted = groups.into_iter().map(|(epoch, ranges)| {
            let partitions = partitions(ranges)?;
            let epoch = Generation(epoch);
            Ok(Wanted { epoch, partitions })
        });
        let wanted: Vec<Wanted> = wanted.collect::<PyResult<_>>()?;
        let columns = self.columns();
        let input = self.input(&columns);
        let transfer = Transfer {
            shuffle: ShuffleId(shuffle),
            map: map_index,
            attempt: AttemptId(attempt),
        };
        py.detach(|| {
            let arenas = Arenas::new(input, &wanted).map_err(failed)?;
            let memory = arenas.lengths().iter().map(|&length| {
                let buffer = Pool::global().buffer(length);
                buffer.map_err(|error| PyMemoryError::new_err(error.to_string()))
            });
            let mut memory = memory.collect::<PyResult<Vec<_>>>()?;
            let mut slices: Vec<_> = memory.iter_mut().map(|b| b.as_mut_slice()).collect();
            let batches = arenas
                .fill(ShuffleId(shuffle), transfer, &mut slices)
                .map_err(failed)?;
            let arenas = memory.into_iter().zip(batches);
            let arenas = arenas.map(|(buffer, batches)| Arena::new(buffer, batches));
            arenas
                .map(|arena| arena.map_err(|error| failed(error.into())))
                .collect()
        })
    }
}

fn partitions(ranges: Vec<(u64, u64)>) -> PyResult<Runs> {
    let error = || PyValueError::new_err("ranges of partitions ascend, and do not touch");
    Runs::from_ranges(ranges).ok_or_else(error)
}

impl Rows {
    fn columns(&self) -> Vec<Column<'_>> {
        self.columns.iter().map(Source::column).collect()
    }

    fn input<'a>(&'a self, columns: &'a [Column<'a>]) -> Input<'a> {
        Input {
            format: &self.format,
            columns,
            partitions: &self.partitions,
            note: &self.note,
        }
    }
}

/// How many rows pieces have, how many bytes their fields of bytes, and where notes are.
type Scanned = (usize, Vec<usize>, Vec<(usize, usize, usize)>);

#[pyfunction]
#[pyo3(signature = (widths, pieces, least = None))]
fn scan_rows(
    py: Python<'_>,
    widths: Vec<usize>,
    pieces: Vec<Bound<'_, PyAny>>,
    least: Option<usize>,
) -> PyResult<Scanned> {
    let format = format(&widths, least);
    let buffers = bytes_of(&pieces)?;
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| buffer.bytes()).collect();
    let joined = py.detach(|| treadle_rows::scan(&format, &slices));
    let joined = joined.map_err(failed)?;
    let notes = joined.notes.iter();
    let notes = notes.map(|note| (note.piece, note.bytes.start, note.bytes.end));
    Ok((joined.rows, joined.bytes, notes.collect()))
}

/// Copies pieces to columns: writable arrays, or tuples of offsets, data and nulls.
#[pyfunction]
#[pyo3(signature = (widths, pieces, columns, least = None))]
fn join_rows(
    py: Python<'_>,
    widths: Vec<usize>,
    pieces: Vec<Bound<'_, PyAny>>,
    columns: Vec<Bound<'_, PyAny>>,
    least: Option<usize>,
) -> PyResult<()> {
    let format = format(&widths, least);
    let buffers = bytes_of(&pieces)?;
    let slices: Vec<&[u8]> = buffers.iter().map(|buffer| buffer.bytes()).collect();
    let mut targets: Vec<Target> = columns.iter().map(Target::new).collect::<PyResult<_>>()?;
    let mut columns: Vec<ColumnMut<'_>> = targets.iter_mut().map(Target::column).collect();
    py.detach(|| treadle_rows::fill(&format, &slices, &mut columns))
        .map_err(failed)
}

/// The digest of a piece of rows of `width` bytes, or of variable ones (0).
#[pyfunction]
fn digest_rows(
    py: Python<'_>,
    width: usize,
    map_index: u32,
    partition: u32,
    piece: Bound<'_, PyAny>,
) -> PyResult<u64> {
    let buffers = bytes_of(&[piece])?;
    let bytes = buffers[0].bytes();
    py.detach(|| treadle_rows::digest(width, RowDigest::new(map_index, partition), bytes))
        .map_err(failed)
}

/// Adds the functions of this folder to `_core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Rows>()?;
    pieces::register(module)?;
    module.add_class::<Arena>()?;
    module.add_class::<RowMemory>()?;
    module.add_function(wrap_pyfunction!(scan_rows, module)?)?;
    module.add_function(wrap_pyfunction!(join_rows, module)?)?;
    module.add_function(wrap_pyfunction!(digest_rows, module)?)
}
