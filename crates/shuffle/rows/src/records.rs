//! Rows with one field of bytes, as records: without a copy.

use crate::format::{Field, Format, Head, Row};
use crate::{RowsError, scan};

/// The records of a piece of rows with one field of bytes, in their order.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Those of a piece that was [checked](Records::check). Of another one, those before the first that is damaged.
    pub fn new(piece: &'a [u8]) -> Self {
        Self { rest: piece }
    }

    /// Looks at all of a piece. Returns how many records it has.
    ///
    /// # Errors
    /// [`RowsError::Damaged`], as of piece 0: these are no such rows.
    pub fn check(piece: &[u8]) -> Result<usize, RowsError> {
        scan(&Self::format(), &[piece]).map(|joined| joined.rows)
    }

    /// The format of such rows.
    pub fn format() -> Format {
        Format::new([Field::Bytes].into())
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let row = Row::first(self.rest)?;
        self.rest = &self.rest[row.bytes.len()..];
        let mut record = None;
        row.fields(&Head::of_bytes(), |_, content| record = content)?;
        // Null is no record, and nobody writes it as one.
        Some(record.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(record: &[u8]) -> Vec<u8> {
        let length = record.len() as u32;
        let mut row = (8 + length).to_le_bytes().to_vec();
        row.extend(length.to_le_bytes());
        row.extend(record);
        row
    }

    #[test]
    fn records_come_as_they_lie_and_empty_ones_too() {
        let records: [&[u8]; 4] = [b"one", b"", b"three", b""];
        let piece = records.map(row).concat();
        assert_eq!(Records::check(&piece), Ok(4));
        assert!(Records::new(&piece).eq(records));
        assert_eq!(Records::new(&[]).count(), 0);
    }

    #[test]
    fn what_is_cut_or_says_more_than_it_has_is_refused() {
        let piece = [row(b"one"), row(b"two")].concat();
        for end in 1..piece.len() {
            assert_eq!(Records::check(&piece[..end]).is_ok(), end == 11, "{end}");
        }
        let mut longer = piece;
        longer[11 + 4] = 4;
        let damaged = RowsError::Damaged { piece: 0, at: 11 };
        assert_eq!(Records::check(&longer), Err(damaged));
        assert!(Records::new(&longer).eq([b"one"]));
    }
}
