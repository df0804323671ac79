//! What a row is as bytes. Numbers are little-endian.
//!
//! ```text
//! fixed      the fields side by side; all rows have the same width
//!
//! variable   4   length of the row in bytes, this included; the highest bit: a note follows
//!            ..  the fixed fields side by side
//!            4   for each field of bytes: its length; 2³² − 1: null
//!            ..  the bytes of these fields
//!            ..  zeros, up to the least length
//!            ..  the note, and 4 bytes with its length
//! ```
//!
//! A *note* is what only one map has to say: its types, where they are not those that were agreed for
//! the shuffle. It is at the first row of each partition, so that the rows of a map for a partition
//! have the same bytes however they are cut into pieces.
//!
//! A variable row can have a least length. Where a fixed format was agreed, rows of a map with a note
//! are longer than the agreed width: so a piece whose length is its rows times the width is fixed, and
//! any other is not.

use alloc::vec::Vec;
use core::ops::Range;

/// Bytes before the fields of a variable row.
pub(crate) const PREFIX: usize = 4;
/// The bit of the length that says that there is a note.
pub(crate) const NOTED: u32 = 1 << 31;
/// The length of a field that is null.
pub(crate) const NULL: u32 = u32::MAX;

/// One field of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// So many bytes in each row; more than none.
    Fixed(usize),
    /// Any bytes, or null.
    Bytes,
}

/// The fields of a row, and how they lie in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Format {
    fields: Vec<Field>,
    is_fixed: bool,
    least: usize,
}

impl Format {
    /// A format; it is fixed if no field is of bytes.
    pub fn new(fields: Vec<Field>) -> Self {
        let is_fixed = !fields.is_empty()
            && fields
                .iter()
                .all(|field| matches!(field, Field::Fixed(1..)));
        Self {
            fields,
            is_fixed,
            least: 0,
        }
    }

    /// A variable format, whatever the fields are, whose rows have at least so many bytes.
    pub fn variable(fields: Vec<Field>, least: usize) -> Self {
        Self {
            fields,
            is_fixed: false,
            least,
        }
    }

    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Bytes of a row; 0: rows differ.
    pub fn width(&self) -> usize {
        match self.is_fixed {
            true => self.fixed_width(),
            false => 0,
        }
    }

    /// Bytes of the fixed fields.
    pub(crate) fn fixed_width(&self) -> usize {
        let widths = self.fields.iter().map(|field| match field {
            Field::Fixed(width) => *width,
            Field::Bytes => 0,
        });
        widths.sum()
    }

    /// How many fields are of bytes.
    pub(crate) fn byte_fields(&self) -> usize {
        let is_bytes = |field: &&Field| **field == Field::Bytes;
        self.fields.iter().filter(is_bytes).count()
    }

    /// Bytes of a variable row before the bytes of its fields.
    pub(crate) fn head(&self) -> usize {
        PREFIX + self.fixed_width() + 4 * self.byte_fields()
    }

    /// Bytes that a variable row has at least.
    pub(crate) fn least(&self) -> usize {
        self.least.max(self.head())
    }
}

/// Where a note was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The position of the piece.
    pub piece: usize,
    /// Its bytes in the piece.
    pub bytes: Range<usize>,
}

/// One variable row, as it was found in a piece.
pub(crate) struct Row<'a> {
    pub(crate) bytes: &'a [u8],
    /// Where the note is in it, if there is one.
    pub(crate) note: Option<Range<usize>>,
}

/// The little-endian word at `at`, if it is there.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let chunk = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*chunk))
}

impl<'a> Row<'a> {
    /// The row at the beginning of `bytes`. `None`: there is none, whole and in bounds.
    pub(crate) fn first(bytes: &'a [u8]) -> Option<Self> {
        let length = word(bytes, 0)?;
        let row = bytes.get(..(length & !NOTED) as usize)?;
        if row.len() < PREFIX {
            return None;
        }
        let note = match length & NOTED {
            0 => None,
            _ => {
                let end = row.len().checked_sub(4)?;
                let start = end.checked_sub(word(row, end)? as usize)?;
                (start >= PREFIX).then_some(start..end)?.into()
            }
        };
        Some(Self { bytes: row, note })
    }

    /// Calls `each` with number and content of each field of bytes (`None`: null). `None`: the fields
    /// do not fit the row.
    #[inline]
    pub(crate) fn fields(
        &self,
        format: &Head,
        mut each: impl FnMut(usize, Option<&'a [u8]>),
    ) -> Option<()> {
        let end = self.note.as_ref().map_or(self.bytes.len(), |n| n.start);
        let content = self.bytes.get(..end)?;
        let mut at = format.head;
        content.get(..at)?;
        for number in 0..format.byte_fields {
            let length = word(content, format.lengths + 4 * number)?;
            if length == NULL {
                each(number, None);
                continue;
            }
            let next = at.checked_add(length as usize)?;
            each(number, Some(content.get(at..next)?));
            at = next;
        }
        Some(())
    }
}

/// Numbers of a [`Format`], computed once for many rows.
pub(crate) struct Head {
    /// Where the lengths of fields of bytes are.
    pub(crate) lengths: usize,
    /// Where the bytes begin.
    pub(crate) head: usize,
    /// How many fields are of bytes.
    pub(crate) byte_fields: usize,
}

impl Head {
    pub(crate) fn new(format: &Format) -> Self {
        Self {
            lengths: PREFIX + format.fixed_width(),
            head: format.head(),
            byte_fields: format.byte_fields(),
        }
    }

    /// Those of a format with one field of bytes.
    pub(crate) const fn of_bytes() -> Self {
        Self {
            lengths: PREFIX,
            head: PREFIX + 4,
            byte_fields: 1,
        }
    }
}
