//! Runs: batches that were in memory, as bytes in one place: a file, or an object of the remote store.
//!
//! A run is written partition by partition, each in the order of map, attempt and batch. Each piece has
//! an entry of [`ENTRY`] bytes before its rows. So a partition is one range of the run, and maps with
//! consecutive numbers are a range of that one. The beginnings of the ranges are kept in memory (`index`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use treadle_memory::Pool;
use treadle_shuffle::block::{HEADER, Header, Table};
use treadle_shuffle::{AttemptId, BatchId, MapRange, ReadPiece, ShuffleId};

use crate::held::Held;
use crate::index::Index;
use crate::merged::in_order;
use crate::packing::unpacked;
use crate::read_rows::digest_of;

/// Bytes before the rows of a piece: map 4, number 4, attempt 8, rows 8, bytes 8, digest 4, the bytes of a
/// compressed one 4, and a check of these 4.
const ENTRY: usize = 44;
/// Bytes that are written at once, since pieces may be small.
const WRITE: usize = 4 << 20;

/// How long the batches that were put together last are remembered.
const REMEMBERED: Duration = Duration::from_secs(2);

/// A partition, and the maps whose rows are read, if not those of all.
pub(crate) type Part = (u32, Option<MapRange>);

/// Pieces of a partition that were read from a run.
pub(crate) type Loaded = Vec<(ReadPiece, Bytes)>;

/// A batch with its table.
pub(crate) type Batch = (BatchId, Bytes, Table);

/// Where the bytes of a run are kept. They go with it.
pub(crate) trait Kept: Send + Sync {
    fn length(&self) -> u64;

    /// Reads from a position on as many bytes as there is place for.
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), String>;

    /// What it is called, where others can read it, too.
    fn name(&self) -> &str {
        ""
    }

    /// They stay when this goes.
    fn leave(&self) {}
}

/// A run, and where everything is in it.
pub(crate) struct Run {
    pub(crate) kept: Box<dyn Kept>,
    pub(crate) shuffle: ShuffleId,
    pub(crate) index: Index,
    /// The headers of its batches.
    pub(crate) headers: HashMap<BatchId, Header>,
}

/// Writes batches with `append`. Returns where everything is, and the length.
pub(crate) fn write<E>(
    batches: &[Batch],
    mut append: impl FnMut(&[&[u8]]) -> Result<(), E>,
) -> Result<(Index, u64), E> {
    let mut staged = Vec::with_capacity(WRITE);
    let mut end = 0;
    let mut index = Index::default();
    for (partition, piece, rows) in in_order(batches) {
        index.add(partition, piece.batch.map, end);
        end += (ENTRY + rows.len()) as u64;
        staged.extend(encode(&piece));
        if staged.len() + rows.len() > WRITE {
            append(&[&staged[..], rows])?;
            staged.clear();
        } else {
            staged.extend_from_slice(rows);
        }
    }
    if !staged.is_empty() {
        append(&[&staged[..]])?;
    }
    Ok((index, end))
}

impl Run {
    pub(crate) fn new(
        shuffle: ShuffleId,
        batches: &[Batch],
        index: Index,
        kept: Box<dyn Kept>,
    ) -> Self {
        Self {
            kept,
            shuffle,
            index,
            headers: headers(batches),
        }
    }

    /// The pieces of a partition.
    pub(crate) fn pieces(&self, part: Part, held: &Arc<Held>) -> Result<Loaded, String> {
        let Some(range) = self.range(part) else {
            return Ok(Vec::new());
        };
        let length = usize::try_from(range.end - range.start).map_err(|error| error.to_string())?;
        let buffer = Pool::global().buffer(length);
        let mut buffer = buffer.map_err(|error| error.to_string())?;
        self.kept.read_at(range.start, buffer.as_mut_slice())?;
        self.decoded(part, held.charge(buffer.into_bytes()))
    }

    /// Where a partition is. `None`: it has no rows.
    pub(crate) fn range(&self, (partition, maps): Part) -> Option<Range<u64>> {
        self.index.range(partition, maps, self.kept.length())
    }

    /// The pieces of a partition, from the bytes of its range.
    pub(crate) fn decoded(&self, (_, maps): Part, bytes: Bytes) -> Result<Loaded, String> {
        let mut loaded = decode(bytes).ok_or_else(|| String::from("the file is damaged"))?;
        if let Some(maps) = maps {
            loaded.retain(|(piece, _)| maps.contains(piece.batch.map));
        }
        Ok(loaded)
    }

    /// Its batches as they were before they were written. All are put together at once, since the pieces of each
    /// are everywhere in the run.
    pub(crate) fn batches(&self, held: &Arc<Held>) -> Result<HashMap<BatchId, Bytes>, String> {
        let mut building: HashMap<BatchId, Building> = HashMap::new();
        for (id, header) in &self.headers {
            building.insert(*id, Building::new(header)?);
        }
        for partition in self.index.partitions() {
            let loaded = self.pieces((partition, None), held)?;
            self.compare(partition, &loaded, held)?;
            for (piece, rows) in loaded {
                let batch = building.get_mut(&piece.batch);
                let batch = batch.ok_or("the file has rows of a batch that it should not have")?;
                batch.add(partition, &piece, &rows)?;
            }
        }
        let batches = building.into_iter();
        let batches = batches.map(|(id, batch)| Ok((id, held.charge(batch.done()?))));
        batches.collect()
    }

    /// Compares rows with their digests: another copy would be as damaged as this one.
    fn compare(&self, partition: u32, loaded: &Loaded, held: &Arc<Held>) -> Result<(), String> {
        let pieces: Vec<ReadPiece> = loaded.iter().map(|(piece, _)| *piece).collect();
        let rows = loaded.iter().map(|(_, rows)| rows.clone()).collect();
        let rows = unpacked(&pieces, rows, held).map_err(|error| error.to_string())?;
        let differs = rows.iter().any(|(piece, rows)| {
            let header = self.headers.get(&piece.batch);
            let width = header.map_or(0, |header| header.width as usize);
            digest_of(piece, rows, partition, width) != piece.digest
        });
        match differs {
            true => Err("the file is damaged".into()),
            false => Ok(()),
        }
    }
}

/// The run whose batches were put together last, and the batches: the next ones are often of it, too.
#[derive(Default)]
pub(crate) struct Rebuilt(Option<(u64, HashMap<BatchId, Bytes>)>);

impl Rebuilt {
    /// A batch of the run of this number, as it was before it was written.
    pub(crate) fn batch(
        &mut self,
        (number, run): (u64, &Run),
        batch: BatchId,
        held: &Arc<Held>,
    ) -> Result<Bytes, String> {
        if self.0.as_ref().is_none_or(|(other, _)| *other != number) {
            self.0 = None;
            self.0 = Some((number, run.batches(held)?));
        }
        let batches = self.0.as_ref().map(|(_, batches)| batches);
        // It is sent again only if its server was not reached.
        let batch = batches.and_then(|batches| batches.get(&batch).cloned());
        batch.ok_or_else(|| "a batch is not in its run".into())
    }

    /// The next job of a thread, which forgets what it remembers if there is none for a while. `None`: there are
    /// no more.
    pub(crate) fn next<T>(&mut self, queue: &Receiver<T>) -> Option<T> {
        if self.0.is_some() {
            match queue.recv_timeout(REMEMBERED) {
                Err(RecvTimeoutError::Timeout) => self.0 = None,
                job => return job.ok(),
            }
        }
        queue.recv().ok()
    }
}

/// A batch that is put together again: header, table, padding and rows.
struct Building {
    header: Header,
    bytes: Vec<u8>,
    /// Pieces, their rows and bytes, and the bytes that they take, so far.
    done: (usize, u64, u64, usize),
}

impl Building {
    fn new(header: &Header) -> Result<Self, String> {
        let length = usize::try_from(header.length()).map_err(|error| error.to_string())?;
        let mut bytes = Vec::new();
        let reserved = bytes.try_reserve_exact(length);
        reserved.map_err(|error| error.to_string())?;
        bytes.resize(length, 0);
        bytes[..HEADER].copy_from_slice(&header.encode());
        Ok(Self {
            header: *header,
            bytes,
            done: (0, 0, 0, 0),
        })
    }

    /// Adds the next piece. They come in the order of their partitions.
    fn add(&mut self, partition: u32, piece: &ReadPiece, rows: &[u8]) -> Result<(), String> {
        let (count, rows_before, bytes_before, offset) = self.done;
        let (all_rows, all_bytes) = (rows_before + piece.rows, bytes_before + piece.bytes);
        let end = offset + rows.len();
        let start = self.header.rows_offset() as usize + offset;
        let place = self.bytes.get_mut(start..start + rows.len());
        if count >= self.header.pieces as usize || place.is_none() {
            return Err("the file has more rows of a batch than it had".into());
        }
        if let Some(place) = place {
            place.copy_from_slice(rows);
        }
        let mut entry = Vec::with_capacity(20);
        entry.extend(partition.to_le_bytes());
        entry.extend((all_rows as u32).to_le_bytes());
        entry.extend(piece.digest.to_le_bytes());
        if self.header.width == 0 {
            entry.extend((all_bytes as u32).to_le_bytes());
        }
        if self.header.packed > 0 {
            entry.extend((end as u32).to_le_bytes());
        }
        let at = HEADER + count * self.header.entry();
        self.bytes[at..at + entry.len()].copy_from_slice(&entry);
        self.done = (count + 1, all_rows, all_bytes, end);
        Ok(())
    }

    fn done(self) -> Result<Bytes, String> {
        let (count, rows, bytes, end) = self.done;
        let header = &self.header;
        let is_whole = (count as u64, rows, bytes, end as u64)
            == (
                header.pieces.into(),
                header.tally.rows,
                header.tally.bytes,
                header.stored(),
            );
        match is_whole {
            true => Ok(self.bytes.into()),
            false => Err("the file has fewer rows of a batch than it had".into()),
        }
    }
}

/// The headers of batches.
fn headers(batches: &[Batch]) -> HashMap<BatchId, Header> {
    let headers = batches.iter();
    let headers = headers.filter_map(|(id, bytes, _)| Some((*id, Header::decode(bytes).ok()?)));
    headers.collect()
}

fn encode(piece: &ReadPiece) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    let BatchId {
        map,
        attempt,
        number,
    } = piece.batch;
    entry[0..4].copy_from_slice(&map.to_le_bytes());
    entry[4..8].copy_from_slice(&number.to_le_bytes());
    entry[8..16].copy_from_slice(&attempt.0.to_le_bytes());
    entry[16..24].copy_from_slice(&piece.rows.to_le_bytes());
    entry[24..32].copy_from_slice(&piece.bytes.to_le_bytes());
    entry[32..36].copy_from_slice(&piece.digest.to_le_bytes());
    entry[36..40].copy_from_slice(&piece.packed.to_le_bytes());
    let check = check(&entry);
    entry[40..].copy_from_slice(&check.to_le_bytes());
    entry
}

/// Differs where a bit of an entry has flipped. The digest is of the rows alone: rows of another map or
/// attempt would be left out without an error.
fn check(entry: &[u8; ENTRY]) -> u32 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, _) = entry[..40].as_chunks();
    let words = words.iter().copied().map(u64::from_le_bytes);
    let sum = words.fold(0u64, |sum, word| {
        (sum.rotate_left(23) ^ word).wrapping_mul(FACTOR)
    });
    (sum ^ (sum >> 32)) as u32
}

/// The pieces in a range of a file; `None` if the bytes are not whole pieces, or an entry is damaged.
fn decode(mut bytes: Bytes) -> Option<Loaded> {
    let mut pieces = Vec::new();
    while !bytes.is_empty() {
        let entry: [u8; ENTRY] = *bytes.first_chunk()?;
        bytes.advance(ENTRY);
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| entry[at + i]));
        let piece = ReadPiece {
            batch: BatchId {
                map: word(0),
                attempt: AttemptId(long(8)),
                number: word(4),
            },
            rows: long(16),
            bytes: long(24),
            digest: word(32),
            packed: word(36),
        };
        let length = usize::try_from(piece.stored()).ok()?;
        if length > bytes.len() || word(40) != check(&entry) {
            return None;
        }
        pieces.push((piece, bytes.split_to(length)));
    }
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_that_has_flipped_in_an_entry_is_noticed() {
        let piece = ReadPiece {
            batch: BatchId {
                map: 3,
                attempt: AttemptId(1 << 40 | 7),
                number: 2,
            },
            rows: 2,
            bytes: 16,
            digest: 0xdead_beef,
            packed: 0,
        };
        let written = [&encode(&piece)[..], &[1; 16]].concat();
        let read = decode(written.clone().into()).unwrap();
        assert_eq!(read, [(piece, Bytes::from(vec![1; 16]))]);
        for bit in 0..8 * ENTRY {
            let mut damaged = written.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(damaged.into()).is_none(), "bit {bit}");
        }
    }
}
