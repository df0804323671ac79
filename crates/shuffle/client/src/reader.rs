//! The rows of partitions.

use std::fmt;
use std::ops::Range;

use treadle_net::Wait;
use treadle_rows::Records;
use treadle_shuffle::Generation;
use treadle_shuffle_node::ReadRows;

use crate::raw::Asked;
use crate::{Error, Kind, Part, Shuffle};

/// Reads partitions of a shuffle that was committed.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'s> {
    shuffle: &'s Shuffle,
    generation: Generation,
}

impl<'s> Reader<'s> {
    pub(crate) fn new(shuffle: &'s Shuffle, generation: Generation) -> Self {
        Self {
            shuffle,
            generation,
        }
    }

    /// The rows of a partition, in the order of their maps. All rows of the receipts that were committed come, each one
    /// once and as it was written, or an error.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no such partition. [`Error::RowsLost`]: all copies of some rows are lost.
    /// [`Error::DamagedRows`]: no copy has the rows as they were written. [`Error::NotCommitted`],
    /// [`Error::Superseded`]: the generation is not the one to read. [`Error::Refused`] after the end of the shuffle;
    /// [`Error::Gone`]; [`Error::TimedOut`].
    pub fn read(&self, partition: u32, wait: &mut Wait<'_>) -> Result<Rows, Error> {
        self.ask(partition, None, wait)
    }

    /// Those of some maps, from the first one up to the end, so that several readers share a large partition.
    ///
    /// # Errors
    /// As for [`Reader::read`]; [`Error::Invalid`] for maps that the shuffle does not have, too.
    pub fn read_maps(
        &self,
        partition: u32,
        maps: Range<u32>,
        wait: &mut Wait<'_>,
    ) -> Result<Rows, Error> {
        self.ask(partition, Some(maps), wait)
    }

    fn ask(
        &self,
        partition: u32,
        maps: Option<Range<u32>>,
        wait: &mut Wait<'_>,
    ) -> Result<Rows, Error> {
        let shuffle = self.shuffle;
        let at = || shuffle.raw().at(Part::Partition(partition));
        let invalid = |reason| Err(Error::Invalid { at: at(), reason });
        if partition >= shuffle.partitions() {
            return invalid(format!(
                "there are {} partitions, from 0 on",
                shuffle.partitions()
            ));
        }
        if let Some(Range { start, end }) = maps
            && (start > end || end > shuffle.maps())
        {
            return invalid(format!(
                "maps {start} to {end}: there are {}; give the first one, and the one after the last",
                shuffle.maps()
            ));
        }
        let asked = Asked {
            generation: self.generation,
            partition,
            maps,
            width: shuffle.kind().width(),
            is_checked: true,
        };
        let rows = shuffle.raw().read(&asked, wait)?;
        Rows::new(rows, shuffle.kind()).map_err(|reason| Error::DamagedRows { at: at(), reason })
    }
}

/// The rows of a partition. They are in memory as long as this is.
pub struct Rows {
    rows: ReadRows,
    kind: Kind,
    count: u64,
}

impl Rows {
    fn new(rows: ReadRows, kind: Kind) -> Result<Self, String> {
        let mut count = 0;
        for (piece, bytes) in rows.iter() {
            // They are what was written. Whether that was of this kind, only its writer knew.
            let is_right = match kind {
                Kind::Fixed(width) => piece.rows.checked_mul(width.into()) == Some(piece.bytes),
                Kind::Records => Records::check(bytes).is_ok_and(|rows| rows as u64 == piece.rows),
            };
            if !is_right {
                return Err(format!(
                    "the rows of map {} are of another kind than those of the shuffle: write the map with this kind",
                    piece.batch.map
                ));
            }
            count += piece.rows;
        }
        Ok(Self { rows, kind, count })
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that they took on their way: as they are kept, compressed or not. So much is what their writers were told of
    /// their sizes.
    pub fn stored(&self) -> u64 {
        self.rows.stored()
    }

    /// Each row, without a copy.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let kind = self.kind;
        self.pieces().flat_map(move |(_, bytes)| split(bytes, kind))
    }

    /// Each row with the map that wrote it.
    pub fn with_maps(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let (pieces, kind) = (self.pieces(), self.kind);
        pieces.flat_map(move |(map, bytes)| split(bytes, kind).map(move |row| (map, row)))
    }

    /// The memory as it came, in pieces of one map each, in ascending order of the maps. Rows of a fixed width lie side by
    /// side. Before each record are eight bytes.
    pub fn pieces(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let pieces = self.rows.iter();
        pieces.map(|(piece, bytes)| (piece.batch.map, bytes))
    }
}

/// The rows of a piece that was looked at.
fn split(bytes: &[u8], kind: Kind) -> impl Iterator<Item = &[u8]> {
    let (records, fixed) = match kind {
        Kind::Records => (Some(Records::new(bytes)), None),
        Kind::Fixed(width) => (None, Some(bytes.chunks_exact((width as usize).max(1)))),
    };
    let records = records.into_iter().flatten();
    records.chain(fixed.into_iter().flatten())
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows({})", self.count)
    }
}
