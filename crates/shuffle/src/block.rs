//! The row-block format: what a batch is as bytes.
//!
//! ```text
//! header   80 bytes      whose batch it is, what is in it, a checksum
//! table    12 or 16 bytes a piece, pieces in ascending order of their partitions
//! padding  to a multiple of 64, so that rows can be used where they are
//! rows     the pieces one after another, without gaps
//! ```
//!
//! A batch has rows of one map for many partitions of one group, at most one piece for each
//! partition. Numbers are little-endian. What rows look like (types, names, width) is said once a
//! shuffle, and is opaque here.
//!
//! Entries of the table say where a piece *ends*, so that a piece is found by a binary search without
//! adding up what is before it.

use alloc::vec::Vec;

use bytes::Bytes;

use crate::{BatchId, Generation, ShuffleId, Tally};

/// Length of a header in bytes.
pub const HEADER: usize = 80;
/// Bytes a piece in the table, if all rows have the same width.
pub const FIXED_ENTRY: usize = 12;
/// Bytes a piece in the table otherwise.
pub const VARIABLE_ENTRY: usize = 16;
/// Rows begin at a multiple of this many bytes.
pub const ALIGNMENT: usize = 64;
/// First bytes of each batch: the format and its version.
const MAGIC: u32 = u32::from_le_bytes(*b"TSB1");

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Whose rows.
    pub shuffle: ShuffleId,
    /// In which generation the group was assigned.
    pub epoch: Generation,
    /// Which batch.
    pub batch: BatchId,
    /// The first partition of a piece. 0 without pieces.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// How many pieces there are.
    pub pieces: u32,
    /// Bytes of a row; 0: rows differ, and entries have lengths.
    pub width: u32,
    /// What is in all pieces together.
    pub tally: Tally,
    /// CRC-32C of all other bytes of the batch, padding included; 0: nobody computed it.
    pub crc: u32,
}

/// Why bytes are no batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// Other bytes than those of a header.
    #[error("these bytes are not a batch of rows: they do not begin with TSB1")]
    Magic,
    /// Fewer bytes than the header or its numbers say, or more.
    #[error("the batch should have {expected} bytes, and has {found}")]
    Length {
        /// As many as the header says.
        expected: u64,
        /// As many as there are.
        found: u64,
    },
    /// More rows, bytes or pieces than a batch can have.
    #[error(
        "the batch is too large: it must have fewer than 2³² rows, and fewer than 2³² bytes if its \
         rows have no common width"
    )]
    TooLarge,
    /// Pieces that are not in ascending order, or outside the range of the header.
    #[error(
        "piece {piece} is for partition {partition}, which is not above that of the piece before, or \
         is outside the range of the header"
    )]
    Order {
        /// Its position.
        piece: u32,
        /// The partition.
        partition: u32,
    },
    /// Pieces that do not add up to what the header says.
    #[error("the pieces add up to {found:?}, and the header says {expected:?}")]
    Sum {
        /// What the header says.
        expected: Tally,
        /// What was added up, with half of the digest.
        found: Tally,
    },
}

impl Header {
    /// Bytes of an entry of the table.
    pub fn entry(&self) -> usize {
        match self.width {
            0 => VARIABLE_ENTRY,
            _ => FIXED_ENTRY,
        }
    }

    /// Bytes of the table.
    pub fn table_length(&self) -> u64 {
        u64::from(self.pieces) * self.entry() as u64
    }

    /// Where rows begin.
    pub fn rows_offset(&self) -> u64 {
        (HEADER as u64 + self.table_length()).next_multiple_of(ALIGNMENT as u64)
    }

    /// Bytes of the batch: header, table, padding and rows. Saturates if the numbers are absurd.
    pub fn length(&self) -> u64 {
        self.rows_offset().saturating_add(self.tally.bytes)
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| {
            let (place, after) = core::mem::take(&mut rest).split_at_mut(field.len());
            place.copy_from_slice(field);
            rest = after;
        };
        put(&MAGIC.to_le_bytes());
        put(&self.crc.to_le_bytes());
        put(&self.shuffle.0.to_le_bytes());
        put(&self.batch.attempt.0.to_le_bytes());
        put(&self.tally.rows.to_le_bytes());
        put(&self.tally.bytes.to_le_bytes());
        put(&self.tally.digest.to_le_bytes());
        put(&self.epoch.0.to_le_bytes());
        put(&self.batch.map.to_le_bytes());
        put(&self.batch.number.to_le_bytes());
        put(&self.first.to_le_bytes());
        put(&self.last.to_le_bytes());
        put(&self.pieces.to_le_bytes());
        put(&self.width.to_le_bytes());
        bytes
    }

    /// The header at the beginning of `bytes`. Nothing is allocated for what it claims.
    ///
    /// # Errors
    /// [`BlockError`]: these are no header's bytes, or its numbers cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, BlockError> {
        let Some(bytes) = bytes.first_chunk::<HEADER>() else {
            return Err(BlockError::Length {
                expected: HEADER as u64,
                found: bytes.len() as u64,
            });
        };
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        if word(0) != MAGIC {
            return Err(BlockError::Magic);
        }
        let header = Self {
            crc: word(4),
            shuffle: ShuffleId(long(8)),
            tally: Tally {
                rows: long(24),
                bytes: long(32),
                digest: long(40),
            },
            epoch: Generation(word(48)),
            batch: BatchId {
                map: word(52),
                attempt: crate::AttemptId(long(16)),
                number: word(56),
            },
            first: word(60),
            last: word(64),
            pieces: word(68),
            width: word(72),
        };
        header.validate()?;
        Ok(header)
    }

    fn validate(&self) -> Result<(), BlockError> {
        let Tally { rows, bytes, .. } = self.tally;
        let limit = u64::from(u32::MAX);
        let fits = match self.width {
            0 => bytes <= limit,
            width => rows.checked_mul(u64::from(width)) == Some(bytes),
        };
        let spans = u64::from(self.last.wrapping_sub(self.first)) + 1;
        let is_range = self.first <= self.last && u64::from(self.pieces) <= spans;
        if rows > limit || !fits || !is_range {
            return Err(BlockError::TooLarge);
        }
        Ok(())
    }
}

/// One piece: the rows of one map for one partition, in one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The partition.
    pub partition: u32,
    /// Where its bytes begin, from the beginning of the rows.
    pub offset: u64,
    /// What is in it, with the low half of the digest.
    pub tally: Tally,
}

/// The table of a batch: a view of its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    width: u32,
    /// No piece is for a partition below the first or above the last of these.
    bounds: (u32, u32),
    /// How many pieces there are.
    len: usize,
    bytes: Bytes,
}

impl Table {
    /// The table of a batch, once it is seen to fit its header.
    ///
    /// # Errors
    /// [`BlockError`]: it does not.
    pub fn new(header: &Header, bytes: Bytes) -> Result<Self, BlockError> {
        header.validate()?;
        let expected = header.table_length();
        if bytes.len() as u64 != expected {
            let found = bytes.len() as u64;
            return Err(BlockError::Length { expected, found });
        }
        let width = header.width;
        let bounds = (header.first, header.last);
        let table = Self {
            width,
            bounds,
            len: header.pieces as usize,
            bytes,
        };
        let mut sum = Tally::default();
        let mut next = u64::from(header.first);
        for index in 0..table.len() {
            let piece = table.piece(index);
            let partition = piece.partition;
            let limit = u64::from(u32::MAX);
            let Tally { rows, bytes, .. } = piece.tally;
            // Ends of 32 bits cannot be further apart, unless one is before the other.
            let ends_before = rows > limit || (width == 0 && bytes > limit);
            if u64::from(partition) < next || partition > header.last || ends_before {
                let piece = index as u32;
                return Err(BlockError::Order { piece, partition });
            }
            next = u64::from(partition) + 1;
            sum.add(&piece.tally);
        }
        if sum.narrow() != header.tally.narrow() {
            return Err(BlockError::Sum {
                expected: header.tally,
                found: sum.narrow(),
            });
        }
        Ok(table)
    }

    /// Its bytes, as they are in the batch.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn entry(&self) -> usize {
        match self.width {
            0 => VARIABLE_ENTRY,
            _ => FIXED_ENTRY,
        }
    }

    fn word(&self, index: usize, field: usize) -> u32 {
        let at = index * self.entry() + 4 * field;
        // One load: with many small pieces most of a server's time is spent here.
        let word = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        u32::from_le_bytes(*word.unwrap_or(&[0; 4]))
    }

    /// Where the piece ends, in rows and in bytes.
    fn end(&self, index: usize) -> (u64, u64) {
        let rows = u64::from(self.word(index, 1));
        match self.width {
            0 => (rows, u64::from(self.word(index, 3))),
            width => (rows, rows * u64::from(width)),
        }
    }

    fn piece(&self, index: usize) -> Piece {
        let (rows, bytes) = index
            .checked_sub(1)
            .map_or((0, 0), |before| self.end(before));
        let end = self.end(index);
        Piece {
            partition: self.word(index, 0),
            offset: bytes,
            tally: Tally {
                rows: end.0.wrapping_sub(rows),
                bytes: end.1.wrapping_sub(bytes),
                digest: u64::from(self.word(index, 2)),
            },
        }
    }

    /// The pieces in the order of their partitions.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        (0..self.len()).map(|index| self.piece(index))
    }

    /// The piece for a partition, if there is one.
    pub fn find(&self, partition: u32) -> Option<Piece> {
        let (first, last) = self.bounds;
        if partition < first || partition > last {
            return None;
        }
        // Partitions ascend: there are at most as many pieces before and after it as partitions. Where each
        // has a piece, one look finds it.
        let (before, after) = ((partition - first) as usize, (last - partition) as usize);
        let mut low = self.len().saturating_sub(after.saturating_add(1));
        let mut high = before.saturating_add(1).min(self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.word(middle, 0) < partition {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let is_there = low < self.len() && self.word(low, 0) == partition;
        is_there.then(|| self.piece(low))
    }
}

/// Makes the table of a batch, piece by piece.
#[derive(Clone, Debug)]
pub struct TableBuilder {
    header: Header,
    bytes: Vec<u8>,
}

impl TableBuilder {
    /// For rows of `width` bytes, or of any length (0).
    pub fn new(shuffle: ShuffleId, epoch: Generation, batch: BatchId, width: u32) -> Self {
        let header = Header {
            shuffle,
            epoch,
            batch,
            width,
            ..Header::default()
        };
        Self {
            header,
            bytes: Vec::new(),
        }
    }

    /// Adds a piece, whose partition is above those before. An empty one is left out.
    pub fn push(&mut self, partition: u32, tally: &Tally) {
        if tally.rows == 0 {
            return;
        }
        let header = &mut self.header;
        if header.pieces == 0 {
            header.first = partition;
        }
        header.last = partition;
        header.pieces += 1;
        header.tally.add(tally);
        let mut put = |word: u64| self.bytes.extend((word as u32).to_le_bytes());
        put(u64::from(partition));
        put(header.tally.rows);
        put(tally.digest);
        if header.width == 0 {
            put(header.tally.bytes);
        }
    }

    /// The header, whose checksum is 0 yet, and the table.
    ///
    /// # Errors
    /// [`BlockError`]: pieces were out of order, or are too many.
    pub fn finish(self) -> Result<(Header, Table), BlockError> {
        let table = Table::new(&self.header, self.bytes.into())?;
        Ok((self.header, table))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::AttemptId;

    fn batch() -> BatchId {
        BatchId {
            map: 7,
            attempt: AttemptId(1 << 40),
            number: 2,
        }
    }

    fn build(width: u32, pieces: &[(u32, u64, u64)]) -> Result<(Header, Table), BlockError> {
        let mut builder = TableBuilder::new(ShuffleId(9), Generation(3), batch(), width);
        for &(partition, rows, digest) in pieces {
            let bytes = rows * if width == 0 { 5 } else { u64::from(width) };
            let tally = Tally {
                rows,
                bytes,
                digest,
            };
            builder.push(partition, &tally);
        }
        builder.finish()
    }

    proptest! {
        #[test]
        fn pieces_are_found_as_they_were_put(
            width in prop::sample::select(vec![0_u32, 1, 8, 80]),
            pieces in prop::collection::btree_map(0..500_u32, (0..50_u64, any::<u64>()), 0..40),
        ) {
            let list: Vec<_> = pieces.iter().map(|(&p, &(rows, digest))| (p, rows, digest)).collect();
            let (header, table) = build(width, &list).unwrap();
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
            prop_assert_eq!(header.entry(), [16, 12][usize::from(width > 0)]);
            let mut offset = 0;
            for partition in 0..510 {
                let rows = pieces.get(&partition).filter(|(rows, _)| *rows > 0);
                let found = table.find(partition);
                prop_assert_eq!(found.is_some(), rows.is_some());
                if let (Some(piece), Some(&(rows, digest))) = (found, rows) {
                    prop_assert_eq!(piece.offset, offset);
                    prop_assert_eq!(piece.tally.rows, rows);
                    prop_assert_eq!(piece.tally.digest, digest & 0xffff_ffff);
                    offset += piece.tally.bytes;
                }
            }
            prop_assert_eq!(offset, header.tally.bytes);
            prop_assert_eq!(header.length(), header.rows_offset() + offset);
            prop_assert_eq!(header.rows_offset() % 64, 0);
        }

        #[test]
        fn any_bytes_are_refused_or_taken_without_a_panic(
            head in prop::collection::vec(any::<u8>(), 0..100),
            table in prop::collection::vec(any::<u8>(), 0..64),
            good in any::<bool>(),
        ) {
            let mut head = head;
            if good && head.len() >= 4 {
                head[..4].copy_from_slice(&MAGIC.to_le_bytes());
            }
            if let Ok(header) = Header::decode(&head) {
                let _ = header.length();
                let _ = Table::new(&header, table.into());
            }
        }
    }

    #[test]
    fn a_table_that_does_not_fit_is_refused_before_it_is_used() {
        let (header, table) = build(8, &[(1, 2, 5), (4, 3, 6)]).unwrap();
        let bytes = table.bytes.clone();
        let short = Table::new(&header, bytes.slice(..12));
        assert!(matches!(short, Err(BlockError::Length { .. })));
        let mut other = header;
        other.tally.digest += 1;
        let sum = Table::new(&other, bytes.clone());
        assert!(matches!(sum, Err(BlockError::Sum { .. })));
        let mut swapped = bytes.to_vec();
        swapped.rotate_left(12);
        let order = Table::new(&header, swapped.into());
        assert!(matches!(order, Err(BlockError::Order { .. })));
        let (variable, table) = build(0, &[(1, 2, 5), (4, 3, 6)]).unwrap();
        let mut back = table.bytes.to_vec();
        // Where the first piece ends, in bytes: beyond the second.
        back[12] = 26;
        let order = Table::new(&variable, back.into());
        assert!(matches!(order, Err(BlockError::Order { piece: 1, .. })));
        let mut huge = header;
        huge.tally.rows = u64::from(u32::MAX) + 1;
        huge.tally.bytes = huge.tally.rows * 8;
        assert_eq!(Header::decode(&huge.encode()), Err(BlockError::TooLarge));
        huge.pieces = u32::MAX;
        assert_eq!(Header::decode(&huge.encode()), Err(BlockError::TooLarge));
        assert_eq!(Header::decode(&[0; HEADER]), Err(BlockError::Magic));
        assert!(build(8, &[(4, 1, 1), (1, 1, 1)]).is_err());
    }
}
