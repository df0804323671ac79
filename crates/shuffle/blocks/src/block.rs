//! The row-block format: what a batch is as bytes.
//!
//! ```text
//! header   80 bytes      whose batch it is, what is in it, a check of header and table
//! table    12 or 16 bytes a piece, pieces in ascending order of their partitions; 4 more if some of
//!          them are compressed
//! padding  to a multiple of 64, so that rows can be used where they are
//! rows     the pieces one after another, without gaps
//! ```
//!
//! A batch has rows of one map for many partitions of one group, at most one piece for each
//! partition. Numbers are little-endian. What rows look like (types, names, width) is said once a
//! shuffle, and is opaque here. So is how pieces are compressed. A piece that takes fewer bytes than its
//! rows is; counts and digests are of rows.
//!
//! Entries of the table say where a piece *ends*, so that a piece is found by a binary search without
//! adding up what is before it.

use alloc::vec::Vec;
use core::ops::Range;

use bytes::Bytes;

use crate::{BatchId, Generation, RowDigest, ShuffleId, Tally};

/// Length of a header in bytes.
pub const HEADER: usize = 80;
/// Bytes a piece in the table, if all rows have the same width.
pub const FIXED_ENTRY: usize = 12;
/// Bytes a piece in the table otherwise.
pub const VARIABLE_ENTRY: usize = 16;
/// Bytes a piece more, if some are compressed.
const PACKED_ENTRY: usize = 4;
/// Rows begin at a multiple of this many bytes.
pub const ALIGNMENT: usize = 64;
/// Digests of headers and of entries. Partitions ascend, so the order of entries needs none.
const TABLE: RowDigest = RowDigest::new(u32::MAX, u32::MAX);
/// First bytes of each batch: the format and its version.
const MAGIC: u32 = u32::from_le_bytes(*b"TSB2");

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Whose rows.
    pub shuffle: ShuffleId,
    /// In which generation the group was assigned.
    pub epoch: Generation,
    pub batch: BatchId,
    /// The first partition of a piece. 0 without pieces.
    pub first: u32,
    pub last: u32,
    /// How many pieces there are.
    pub pieces: u32,
    /// Bytes of a row; 0: rows differ, and entries have lengths.
    pub width: u32,
    /// What is in all pieces together.
    pub tally: Tally,
    /// Bytes of all pieces, if some are compressed; 0: none is.
    pub packed: u32,
    /// A digest of the other fields and of the table. The rows have digests of their own.
    pub check: u32,
}

/// Why bytes are no batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// Other bytes than those of a header.
    #[error("these bytes are not a batch of rows: they do not begin with TSB2")]
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
        partition: u32,
    },
    /// Pieces that have more bytes compressed than their rows, or none, or other ones together.
    #[error(
        "the compressed pieces do not have the {0} bytes of the header, or not fewer than their rows"
    )]
    Packed(u32),
    /// A bit of the header or the table is wrong.
    #[error("the header and the table of the batch have another digest than the header says")]
    Check,
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
        let entry = match self.width {
            0 => VARIABLE_ENTRY,
            _ => FIXED_ENTRY,
        };
        entry + PACKED_ENTRY * usize::from(self.packed > 0)
    }

    /// Bytes of the table.
    pub fn table_length(&self) -> u64 {
        u64::from(self.pieces) * self.entry() as u64
    }

    /// Where rows begin.
    pub fn rows_offset(&self) -> u64 {
        (HEADER as u64 + self.table_length()).next_multiple_of(ALIGNMENT as u64)
    }

    /// Bytes that all pieces take.
    pub fn stored(&self) -> u64 {
        stored(self.packed, self.tally.bytes)
    }

    /// Bytes of the batch: header, table, padding and rows. Saturates if the numbers are absurd.
    pub fn length(&self) -> u64 {
        self.rows_offset().saturating_add(self.stored())
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
        put(&self.check.to_le_bytes());
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
        put(&self.packed.to_le_bytes());
        bytes
    }

    /// The digest of its fields, to which those of the entries are added.
    fn digest(&self) -> u64 {
        let header = Self { check: 0, ..*self };
        TABLE.of(&header.encode())
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
            check: word(4),
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
            packed: word(76),
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
        match self.packed == 0 || u64::from(self.packed) < bytes {
            true => Ok(()),
            false => Err(BlockError::Packed(self.packed)),
        }
    }
}

/// Bytes of what is stored: those of its rows, unless it is compressed.
pub fn stored(packed: u32, bytes: u64) -> u64 {
    match packed {
        0 => bytes,
        packed => packed.into(),
    }
}

/// One piece: the rows of one map for one partition, in one batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub partition: u32,
    /// Where its bytes begin, from the beginning of the rows.
    pub offset: u64,
    /// What is in it, with the low half of the digest.
    pub tally: Tally,
    /// Its bytes, if it is compressed; 0: it is not.
    pub packed: u32,
}

/// Where a piece ends: in rows, in their bytes, and in what is stored of them.
#[derive(Clone, Copy, Default)]
struct Ends {
    rows: u64,
    bytes: u64,
    stored: u64,
}

/// A number of an entry. One load: with many small pieces most of a server's time is spent here.
#[inline]
fn word(entry: &[u8], field: usize) -> u32 {
    let word = entry.get(4 * field..).and_then(<[u8]>::first_chunk);
    u32::from_le_bytes(*word.unwrap_or(&[0; 4]))
}

/// The table of a batch: a view of its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    width: u32,
    /// Bytes of an entry.
    entry: usize,
    /// Bytes of all pieces, if some are compressed.
    packed: u32,
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
        match Self::parse(header, bytes)? {
            (table, check) if check == header.check => Ok(table),
            _ => Err(BlockError::Check),
        }
    }

    /// A table of this header, whose bytes are right.
    fn of(header: &Header, bytes: Bytes) -> Self {
        Self {
            width: header.width,
            entry: header.entry(),
            packed: header.packed,
            bounds: (header.first, header.last),
            len: header.pieces as usize,
            bytes,
        }
    }

    /// The table, and the check that the header should have.
    fn parse(header: &Header, bytes: Bytes) -> Result<(Self, u32), BlockError> {
        header.validate()?;
        let expected = header.table_length();
        if bytes.len() as u64 != expected {
            let found = bytes.len() as u64;
            return Err(BlockError::Length { expected, found });
        }
        let table = Self::of(header, bytes);
        let (entries, _) = table.bytes.as_chunks::<FIXED_ENTRY>();
        let check = match table.entry {
            // Most are such. The compiler knows their length here.
            FIXED_ENTRY => table.verify(header, entries.iter().map(|entry| &entry[..]))?,
            length => table.verify(header, table.bytes.chunks_exact(length))?,
        };
        Ok((table, check))
    }

    /// Looks whether entries fit their header. Returns the check that the header should have.
    #[inline]
    fn verify<'a>(
        &self,
        header: &Header,
        entries: impl Iterator<Item = &'a [u8]>,
    ) -> Result<u32, BlockError> {
        let mut check = header.digest();
        let mut sum = Tally::default();
        let mut next = u64::from(header.first);
        let mut before = Ends::default();
        for (index, entry) in entries.enumerate() {
            let ends = self.ends(entry);
            let Piece {
                partition, tally, ..
            } = self.between(entry, before, ends);
            let limit = u64::from(u32::MAX);
            let Tally { rows, bytes, .. } = tally;
            // Ends of 32 bits cannot be further apart, unless one is before the other.
            let ends_before = rows > limit || (self.width == 0 && bytes > limit);
            if u64::from(partition) < next || partition > header.last || ends_before {
                let piece = index as u32;
                return Err(BlockError::Order { piece, partition });
            }
            let stored = ends.stored.wrapping_sub(before.stored);
            if stored > bytes || (stored == 0 && bytes > 0) {
                return Err(BlockError::Packed(header.packed));
            }
            next = u64::from(partition) + 1;
            sum.add(&tally);
            check = check.wrapping_add(TABLE.of(entry));
            before = ends;
        }
        if sum.narrow() != header.tally.narrow() {
            return Err(BlockError::Sum {
                expected: header.tally,
                found: sum.narrow(),
            });
        }
        match before.stored == header.stored() {
            true => Ok(check as u32),
            false => Err(BlockError::Packed(header.packed)),
        }
    }

    /// Header and table of the same batch after its pieces were compressed, or left as they are. The bytes
    /// of each end there.
    ///
    /// # Errors
    /// [`BlockError`]: they are not fewer than those of its rows.
    pub fn packed(&self, header: &Header, ends: &[u32]) -> Result<(Header, Self), BlockError> {
        let mut header = Header {
            packed: ends.last().copied().unwrap_or(0),
            ..*header
        };
        let entries = self.bytes.chunks_exact(self.entry).zip(ends);
        let entries =
            entries.flat_map(|(entry, end)| entry.iter().copied().chain(end.to_le_bytes()));
        let table;
        (table, header.check) = Self::parse(&header, entries.collect::<Vec<u8>>().into())?;
        Ok((header, table))
    }

    /// Its bytes, as they are in the batch.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// No piece is for a partition below the first or above the last of these.
    pub fn bounds(&self) -> (u32, u32) {
        self.bounds
    }

    /// How many pieces there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The entry of a piece. Empty, if there is none.
    fn entry(&self, index: usize) -> &[u8] {
        let at = index * self.entry;
        self.bytes.get(at..at + self.entry).unwrap_or_default()
    }

    /// Where the piece of an entry ends.
    #[inline]
    fn ends(&self, entry: &[u8]) -> Ends {
        let rows = u64::from(word(entry, 1));
        let bytes = match self.width {
            0 => word(entry, 3).into(),
            width => rows * u64::from(width),
        };
        let stored = match self.packed {
            0 => bytes,
            _ => word(entry, self.entry / 4 - 1).into(),
        };
        Ends {
            rows,
            bytes,
            stored,
        }
    }

    /// The piece of an entry, from where the one before ends.
    #[inline]
    fn between(&self, entry: &[u8], before: Ends, ends: Ends) -> Piece {
        let tally = Tally {
            rows: ends.rows.wrapping_sub(before.rows),
            bytes: ends.bytes.wrapping_sub(before.bytes),
            digest: word(entry, 2).into(),
        };
        let length = ends.stored.wrapping_sub(before.stored);
        Piece {
            partition: word(entry, 0),
            offset: before.stored,
            tally,
            packed: match length == tally.bytes {
                true => 0,
                false => length as u32,
            },
        }
    }

    fn piece(&self, index: usize) -> Piece {
        let before = index.checked_sub(1);
        let before = before.map_or(Ends::default(), |before| self.ends(self.entry(before)));
        let entry = self.entry(index);
        self.between(entry, before, self.ends(entry))
    }

    /// The pieces in the order of their partitions.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let mut before = Ends::default();
        self.bytes.chunks_exact(self.entry).map(move |entry| {
            let ends = self.ends(entry);
            let piece = self.between(entry, before, ends);
            before = ends;
            piece
        })
    }

    /// A word of the table near the entry of a partition: where it is, if each partition has a piece. Reading
    /// it gets the entry into the processor's cache.
    pub fn word_near(&self, partition: u32) -> u32 {
        word(
            self.entry(partition.wrapping_sub(self.bounds.0) as usize),
            0,
        )
    }

    /// The piece for a partition, if there is one.
    pub fn find(&self, partition: u32) -> Option<Piece> {
        let at = self.lower_bound(partition);
        let is_there = at < self.len() && word(self.entry(at), 0) == partition;
        is_there.then(|| self.piece(at))
    }

    /// The pieces for these partitions, in their order.
    pub fn find_all(&self, partitions: Range<u32>) -> impl Iterator<Item = Piece> + '_ {
        let first = self.lower_bound(partitions.start);
        let before = first.checked_sub(1);
        let mut before = before.map_or(Ends::default(), |before| self.ends(self.entry(before)));
        (first..self.len()).map_while(move |index| {
            let entry = self.entry(index);
            if word(entry, 0) >= partitions.end {
                return None;
            }
            let ends = self.ends(entry);
            let piece = self.between(entry, before, ends);
            before = ends;
            Some(piece)
        })
    }

    /// The position of the first piece that is not for a partition below this one.
    fn lower_bound(&self, partition: u32) -> usize {
        let (first, last) = self.bounds;
        if partition <= first {
            return 0;
        }
        if partition > last {
            return self.len();
        }
        // Partitions ascend: there are at most as many pieces before and after it as partitions. Where each
        // has a piece, one look finds it.
        let (before, after) = ((partition - first) as usize, (last - partition) as usize);
        let mut low = self.len().saturating_sub(after.saturating_add(1));
        let mut high = before.saturating_add(1).min(self.len());
        while low < high {
            let middle = low.midpoint(high);
            match word(self.entry(middle), 0) < partition {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

/// Makes the table of a batch, piece by piece.
#[derive(Clone, Debug)]
pub struct TableBuilder {
    header: Header,
    bytes: Vec<u8>,
    /// The digest of the entries.
    digest: u64,
    /// A piece whose partition is not above that of the one before.
    misplaced: Option<BlockError>,
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
            digest: 0,
            misplaced: None,
        }
    }

    /// Makes room for so many pieces.
    pub fn reserve(&mut self, pieces: usize) {
        let entry = match self.header.width {
            0 => VARIABLE_ENTRY,
            _ => FIXED_ENTRY,
        };
        self.bytes.reserve(pieces * entry);
    }

    /// Adds a piece, whose partition is above those before. An empty one is left out.
    pub fn push(&mut self, partition: u32, tally: &Tally) {
        if tally.rows == 0 {
            return;
        }
        let header = &mut self.header;
        if header.pieces == 0 {
            header.first = partition;
        } else if partition <= header.last {
            let piece = header.pieces;
            self.misplaced = Some(BlockError::Order { piece, partition });
        }
        header.last = partition;
        header.pieces += 1;
        header.tally.add(tally);
        let mut entry = [0; VARIABLE_ENTRY];
        entry[..4].copy_from_slice(&partition.to_le_bytes());
        entry[4..8].copy_from_slice(&(header.tally.rows as u32).to_le_bytes());
        entry[8..12].copy_from_slice(&(tally.digest as u32).to_le_bytes());
        entry[12..].copy_from_slice(&(header.tally.bytes as u32).to_le_bytes());
        // The compiler knows both lengths.
        let (entry, digest) = match header.width {
            0 => (&entry[..], TABLE.of(&entry)),
            _ => (&entry[..FIXED_ENTRY], TABLE.of(&entry[..FIXED_ENTRY])),
        };
        self.digest = self.digest.wrapping_add(digest);
        self.bytes.extend_from_slice(entry);
    }

    /// The header and the table.
    ///
    /// # Errors
    /// [`BlockError`]: pieces were out of order, or are too many.
    pub fn finish(mut self) -> Result<(Header, Table), BlockError> {
        self.header.validate()?;
        if let Some(error) = self.misplaced {
            return Err(error);
        }
        self.header.check = self.header.digest().wrapping_add(self.digest) as u32;
        let table = Table::of(&self.header, self.bytes.into());
        Ok((self.header, table))
    }
}
