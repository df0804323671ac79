//! Memory of Python's objects, as slices.

use super::pieces::Pieces;
use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use treadle_rows::{Column, ColumnMut, Integer, Scattered};

/// One-dimensional memory of an object, which is kept meanwhile.
pub(crate) struct Held {
    buffer: PyUntypedBuffer,
    /// Bytes from one item to the next.
    stride: usize,
    /// Bytes from the first item to the end of the last.
    length: usize,
}

impl Held {
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        let (&[items], &[stride]) = (buffer.shape(), buffer.strides()) else {
            return Err(PyBufferError::new_err(
                "an array of one dimension was expected",
            ));
        };
        if buffer.suboffsets().is_some() {
            return Err(PyBufferError::new_err(
                "an array without indirection was expected",
            ));
        }
        // One item has any stride.
        let stride = if items > 1 {
            stride
        } else {
            buffer.item_size() as isize
        };
        let stride = usize::try_from(stride)
            .map_err(|_| PyBufferError::new_err("an array that goes forward was expected"))?;
        let length = match items {
            0 => 0,
            _ => (items - 1) * stride + buffer.item_size(),
        };
        Ok(Self {
            buffer,
            stride,
            length,
        })
    }

    fn contiguous(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let held = Self::new(object)?;
        if !held.buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("an array without gaps was expected"));
        }
        Ok(held)
    }

    fn writable(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let held = Self::contiguous(object)?;
        match held.buffer.readonly() {
            true => Err(PyBufferError::new_err("a writable array was expected")),
            false => Ok(held),
        }
    }

    /// All bytes, gaps included.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self.length {
            0 => &[],
            // SAFETY: the exporter keeps so many bytes until the buffer is released. A task does not
            // change its input while it hands it over.
            length => unsafe {
                std::slice::from_raw_parts(self.buffer.buf_ptr().cast::<u8>(), length)
            },
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self.length {
            0 => &mut [],
            // SAFETY: as above; the arrays that are written to were made for it, by the one caller
            // of `join_rows`, and each is named once.
            length => unsafe {
                std::slice::from_raw_parts_mut(self.buffer.buf_ptr().cast::<u8>(), length)
            },
        }
    }
}

/// The memory of pieces.
pub(crate) fn bytes_of(pieces: &[Bound<'_, PyAny>]) -> PyResult<Vec<Held>> {
    pieces.iter().map(Held::contiguous).collect()
}

/// A column to read.
pub(crate) enum Source {
    Fixed(Held),
    Bytes {
        offsets: Held,
        data: Held,
        nulls: Option<Held>,
    },
    Pieces(Py<Pieces>),
}

impl Source {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(pieces) = object.cast::<Pieces>() {
            return Ok(Self::Pieces(pieces.clone().unbind()));
        }
        if let Ok((offsets, data, nulls)) =
            object.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>, Option<Bound<'_, PyAny>>)>()
        {
            return Ok(Self::Bytes {
                offsets: Held::contiguous(&offsets)?,
                data: Held::contiguous(&data)?,
                nulls: nulls.as_ref().map(Held::contiguous).transpose()?,
            });
        }
        let held = Held::new(object)?;
        match held.buffer.item_size() {
            0 => Err(PyTypeError::new_err("values of no bytes have no column")),
            _ => Ok(Self::Fixed(held)),
        }
    }

    /// Bytes of a value; 0: they differ.
    pub(crate) fn width(&self) -> usize {
        match self {
            Self::Fixed(held) => held.buffer.item_size(),
            Self::Bytes { .. } | Self::Pieces(_) => 0,
        }
    }

    /// How many rows it has.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Fixed(held) => held.buffer.item_count(),
            Self::Bytes { offsets, .. } => offsets.buffer.item_count().saturating_sub(1),
            Self::Pieces(pieces) => Scattered::rows(pieces.get()),
        }
    }

    pub(crate) fn column(&self) -> Column<'_> {
        match self {
            Self::Fixed(held) => Column::Fixed {
                bytes: held.bytes(),
                stride: held.stride,
                width: held.buffer.item_size(),
            },
            Self::Bytes {
                offsets,
                data,
                nulls,
            } => Column::Bytes {
                offsets: offsets.bytes(),
                data: data.bytes(),
                nulls: nulls.as_ref().map(Held::bytes),
            },
            Self::Pieces(pieces) => Column::Scattered(pieces.get()),
        }
    }
}

/// The type of an array of integers in this machine's order of bytes; the machines that this is built
/// for have the least byte first.
pub(crate) fn integer(source: &Source) -> Option<Integer> {
    let Source::Fixed(held) = source else {
        return None;
    };
    if matches!(held.buffer.format().to_bytes(), [b'>' | b'!', ..]) {
        return None;
    }
    match ElementType::from_format(held.buffer.format()) {
        ElementType::SignedInteger { bytes: 1 } => Some(Integer::I8),
        ElementType::SignedInteger { bytes: 2 } => Some(Integer::I16),
        ElementType::SignedInteger { bytes: 4 } => Some(Integer::I32),
        ElementType::SignedInteger { bytes: 8 } => Some(Integer::I64),
        ElementType::UnsignedInteger { bytes: 1 } => Some(Integer::U8),
        ElementType::UnsignedInteger { bytes: 2 } => Some(Integer::U16),
        ElementType::UnsignedInteger { bytes: 4 } => Some(Integer::U32),
        ElementType::UnsignedInteger { bytes: 8 } => Some(Integer::U64),
        _ => None,
    }
}

/// A column to write.
pub(crate) enum Target {
    Fixed(Held),
    Bytes {
        offsets: Held,
        data: Held,
        nulls: Held,
    },
}

impl Target {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok((offsets, data, nulls)) =
            object.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)>()
        {
            return Ok(Self::Bytes {
                offsets: Held::writable(&offsets)?,
                data: Held::writable(&data)?,
                nulls: Held::writable(&nulls)?,
            });
        }
        Ok(Self::Fixed(Held::writable(object)?))
    }

    pub(crate) fn column(&mut self) -> ColumnMut<'_> {
        match self {
            Self::Fixed(held) => ColumnMut::Fixed {
                width: held.buffer.item_size(),
                bytes: held.bytes_mut(),
            },
            Self::Bytes {
                offsets,
                data,
                nulls,
            } => ColumnMut::Bytes {
                offsets: offsets.bytes_mut(),
                data: data.bytes_mut(),
                nulls: nulls.bytes_mut(),
            },
        }
    }
}
