//! Copies pieces back into columns.
//!
//! The host has the pieces of a partition in the order of their maps. [`scan`] says how much memory
//! the columns need; [`fill`] writes them, each as one run of memory.

use alloc::vec;
use alloc::vec::Vec;

use treadle_shuffle::RowDigest;

use crate::blocks::{BLOCK, copy};
use crate::format::{Head, PREFIX, Row};
use crate::{ColumnMut, Field, Format, Note, RowsError};

/// What pieces have together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Joined {
    pub rows: usize,
    /// Bytes of the values of each field of bytes.
    pub bytes: Vec<usize>,
    /// The notes, in the order of the pieces.
    pub notes: Vec<Note>,
}

/// Calls `each` with each row of a piece of variable rows.
pub(crate) fn walk<'a>(
    number: usize,
    piece: &'a [u8],
    mut each: impl FnMut(usize, Row<'a>) -> Option<()>,
) -> Result<(), RowsError> {
    let mut at = 0;
    while at < piece.len() {
        let row = Row::first(&piece[at..]);
        let next = row.and_then(|row| {
            let next = at + row.bytes.len();
            each(at, row).map(|()| next)
        });
        let piece = number;
        at = next.ok_or(RowsError::Damaged { piece, at })?;
    }
    Ok(())
}

/// Looks at all rows, and counts.
///
/// # Errors
/// [`RowsError::Damaged`]: bytes are no rows of the format.
pub fn scan(format: &Format, pieces: &[&[u8]]) -> Result<Joined, RowsError> {
    let mut joined = Joined {
        bytes: vec![0; format.byte_fields()],
        ..Joined::default()
    };
    if format.width() > 0 {
        for (piece, bytes) in pieces.iter().enumerate() {
            let rest = bytes.len() % format.width();
            if rest > 0 {
                let at = bytes.len() - rest;
                return Err(RowsError::Damaged { piece, at });
            }
            joined.rows += bytes.len() / format.width();
        }
        return Ok(joined);
    }
    let head = Head::new(format);
    for (number, piece) in pieces.iter().enumerate() {
        walk(number, piece, |at, row| {
            joined.rows += 1;
            if let Some(note) = &row.note {
                joined.notes.push(Note {
                    piece: number,
                    bytes: at + note.start..at + note.end,
                });
            }
            row.fields(&head, |field, value| {
                joined.bytes[field] += value.map_or(0, <[u8]>::len);
            })
        })?;
    }
    Ok(joined)
}

/// Writes the columns: one for each field, as long as [`scan`] has said.
///
/// # Errors
/// [`RowsError::Column`]: a column is not that of its field, or too short. [`RowsError::Damaged`]: as
/// for [`scan`].
pub fn fill(
    format: &Format,
    pieces: &[&[u8]],
    columns: &mut [ColumnMut<'_>],
) -> Result<(), RowsError> {
    // Looked at again: what follows indexes by what this has checked.
    let joined = scan(format, pieces)?;
    let mut lengths = joined.bytes.iter();
    let mut fits = |column: &ColumnMut<'_>, field: &Field| match (column, *field) {
        (ColumnMut::Fixed { bytes, width }, Field::Fixed(expected)) => {
            *width == expected && bytes.len() == joined.rows * width
        }
        (
            ColumnMut::Bytes {
                offsets,
                data,
                nulls,
            },
            Field::Bytes,
        ) => {
            offsets.len() == 8 * (joined.rows + 1)
                && nulls.len() == joined.rows
                && lengths.next() == Some(&data.len())
        }
        _ => false,
    };
    let count = columns.len().max(format.fields().len());
    for at in 0..count {
        let is_right = match (columns.get(at), format.fields().get(at)) {
            (Some(column), Some(field)) => fits(column, field),
            _ => false,
        };
        if !is_right {
            let (field, rows) = (at, joined.rows);
            return Err(RowsError::Column { field, rows });
        }
    }
    match format.width() {
        0 => fill_variable(format, pieces, columns),
        width => {
            let mut first = 0;
            for piece in pieces {
                for block in piece.chunks(BLOCK * width) {
                    let rows = block.len() / width;
                    fields(block, width, 0, columns, first, rows);
                    first += rows;
                }
            }
            Ok(())
        }
    }
}

/// Copies the fixed fields of rows that are `step` bytes apart to the columns, from row `first` on.
fn fields(
    rows: &[u8],
    step: usize,
    mut at: usize,
    columns: &mut [ColumnMut<'_>],
    first: usize,
    count: usize,
) {
    for column in columns {
        if let ColumnMut::Fixed { bytes, width } = column {
            let to = &mut bytes[first * *width..];
            copy(&rows[at..], step, to, *width, *width, count);
            at += *width;
        }
    }
}

fn fill_variable(
    format: &Format,
    pieces: &[&[u8]],
    columns: &mut [ColumnMut<'_>],
) -> Result<(), RowsError> {
    let head = Head::new(format);
    let byte_columns: Vec<usize> = (0..columns.len())
        .filter(|&at| matches!(columns[at], ColumnMut::Bytes { .. }))
        .collect();
    let mut ends = vec![0; byte_columns.len()];
    let mut next = 0;
    for (number, piece) in pieces.iter().enumerate() {
        walk(number, piece, |_, row| {
            fields(row.bytes, row.bytes.len(), PREFIX, columns, next, 1);
            row.fields(&head, |field, value| {
                let ColumnMut::Bytes {
                    offsets,
                    data,
                    nulls,
                } = &mut columns[byte_columns[field]]
                else {
                    return;
                };
                let end: &mut usize = &mut ends[field];
                nulls[next] = u8::from(value.is_none());
                offsets[8 * next..][..8].copy_from_slice(&(*end as i64).to_ne_bytes());
                if let Some(value) = value {
                    data[*end..*end + value.len()].copy_from_slice(value);
                    *end += value.len();
                }
            })?;
            next += 1;
            Some(())
        })?;
    }
    for (&at, end) in byte_columns.iter().zip(ends) {
        if let ColumnMut::Bytes { offsets, .. } = &mut columns[at] {
            offsets[8 * next..].copy_from_slice(&(end as i64).to_ne_bytes());
        }
    }
    Ok(())
}

/// The digest of a piece: the sum of those of its rows, which are `width` bytes wide, or variable (0).
///
/// # Errors
/// [`RowsError::Damaged`], as of piece 0: these are no rows.
pub fn digest(width: usize, rows: RowDigest, piece: &[u8]) -> Result<u64, RowsError> {
    if width > 0 {
        let rest = piece.len() % width;
        return match rest {
            0 => Ok(rows.of_rows(piece, width)),
            _ => Err(RowsError::Damaged {
                piece: 0,
                at: piece.len() - rest,
            }),
        };
    }
    let mut sum = 0_u64;
    walk(0, piece, |_, row| {
        sum = sum.wrapping_add(rows.of(row.bytes));
        Some(())
    })?;
    Ok(sum)
}
