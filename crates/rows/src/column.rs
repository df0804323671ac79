//! The columns of a table, as they lie in memory.

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
}

impl<'a> Column<'a> {
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
            _ => false,
        }
    }

    /// The value of a row, if it is a column of bytes: `Ok(None)` if it is null.
    ///
    /// # Errors
    /// `None`: offsets point outside of the data.
    pub(crate) fn value(&self, row: usize) -> Option<Option<&'a [u8]>> {
        let Self::Bytes {
            offsets,
            data,
            nulls,
        } = *self
        else {
            return None;
        };
        if nulls.is_some_and(|nulls| nulls[row] != 0) {
            return Some(None);
        }
        let pair = offsets.get(8 * row..)?.first_chunk::<16>()?;
        let [start, end] = [0, 8].map(|at| {
            let chunk = core::array::from_fn(|i| pair[at + i]);
            usize::try_from(i64::from_ne_bytes(chunk)).ok()
        });
        data.get(start?..end?).map(Some)
    }
}

/// A column to write to: all rows, without gaps.
#[derive(Debug)]
pub enum ColumnMut<'a> {
    /// Values side by side.
    Fixed {
        /// All of them.
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
