//! The columns of a table, as they lie in memory.

use core::fmt;

use crate::{Field, RowsError};

/// A column to read from.
#[derive(Clone, Copy, Debug)]
pub enum Column<'a> {
    /// A value every `stride` bytes.
    Fixed {
        /// From the first value to the last.
        bytes: &'a [u8],
        /// Bytes from one value to the next; 0: all rows have the same.
        stride: usize,
        /// Bytes of a value.
        width: usize,
    },
    /// Values of any length, as Arrow's large binary arrays have them.
    Bytes {
        /// Where each value begins in `data`, and where the last one ends: `i64` each, in the order of
        /// bytes of this machine.
        offsets: &'a [u8],
        /// The values.
        data: &'a [u8],
        /// A byte for each row, not 0 if it is null.
        nulls: Option<&'a [u8]>,
    },
    /// Values of any length that are not side by side in memory, without nulls.
    Scattered(&'a dyn Scattered),
}

/// Values that are put together where they are written.
pub trait Scattered: fmt::Debug + Sync {
    /// How many there are.
    fn rows(&self) -> usize;
    /// Bytes of the value of a row.
    fn length(&self, row: usize) -> usize;
    /// Writes the value of a row, all of `place`, which has its length.
    fn write(&self, row: usize, place: &mut [u8]);
}

/// A value of any length.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    Null,
    Bytes(&'a [u8]),
    Scattered(&'a dyn Scattered, usize),
}

impl Content<'_> {
    /// `None`: it is null.
    pub(crate) fn length(&self) -> Option<usize> {
        match self {
            Self::Null => None,
            Self::Bytes(bytes) => Some(bytes.len()),
            Self::Scattered(values, row) => Some(values.length(*row)),
        }
    }

    pub(crate) fn write(&self, place: &mut [u8]) {
        match self {
            Self::Null => {}
            Self::Bytes(bytes) => place.copy_from_slice(bytes),
            Self::Scattered(values, row) => values.write(*row, place),
        }
    }
}

impl<'a> Column<'a> {
    /// Whether its values have any length.
    pub(crate) fn is_of_bytes(&self) -> bool {
        !matches!(self, Self::Fixed { .. })
    }

    /// Whether it has so many rows of this field.
    pub(crate) fn fits(&self, field: Field, rows: usize) -> bool {
        match (*self, field) {
            (
                Self::Fixed {
                    bytes,
                    stride,
                    width,
                },
                Field::Fixed(expected),
            ) => {
                let length = rows
                    .checked_sub(1)
                    .map_or(Some(0), |last| last.checked_mul(stride)?.checked_add(width));
                width == expected && length.is_some_and(|length| length <= bytes.len())
            }
            (Self::Bytes { offsets, nulls, .. }, Field::Bytes) => {
                let has_nulls = nulls.is_none_or(|nulls| nulls.len() >= rows);
                has_nulls && (rows == 0 || offsets.len() / 8 > rows)
            }
            (Self::Scattered(values), Field::Bytes) => values.rows() >= rows,
            _ => false,
        }
    }

    /// The value of a row of a column of bytes. `None`: offsets point outside of the data.
    pub(crate) fn value(&self, row: usize) -> Option<Content<'a>> {
        if let Self::Scattered(values) = *self {
            return Some(Content::Scattered(values, row));
        }
        let Self::Bytes {
            offsets,
            data,
            nulls,
        } = *self
        else {
            return None;
        };
        if nulls.is_some_and(|nulls| nulls[row] != 0) {
            return Some(Content::Null);
        }
        let pair = offsets.get(8 * row..)?.first_chunk::<16>()?;
        let [start, end] = [0, 8].map(|at| {
            let chunk = core::array::from_fn(|i| pair[at + i]);
            usize::try_from(i64::from_ne_bytes(chunk)).ok()
        });
        data.get(start?..end?).map(Content::Bytes)
    }
}

/// A column to write to: all rows, without gaps.
#[derive(Debug)]
pub enum ColumnMut<'a> {
    /// Values side by side.
    Fixed {
        bytes: &'a mut [u8],
        /// Bytes of a value.
        width: usize,
    },
    /// Values of any length, as [`Column::Bytes`].
    Bytes {
        /// One offset more than rows.
        offsets: &'a mut [u8],
        /// The values.
        data: &'a mut [u8],
        /// A byte for each row.
        nulls: &'a mut [u8],
    },
}

/// Whether columns are those of the fields.
pub(crate) fn check(
    columns: &[Column<'_>],
    fields: &[Field],
    rows: usize,
) -> Result<(), RowsError> {
    let count = columns.len().max(fields.len());
    let misfit = (0..count).find(|&at| match (columns.get(at), fields.get(at)) {
        (Some(column), Some(field)) => !column.fits(*field, rows),
        _ => true,
    });
    misfit.map_or(Ok(()), |field| Err(RowsError::Column { field, rows }))
}
