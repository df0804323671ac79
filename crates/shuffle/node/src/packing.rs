//! Compression of pieces: by the thread that gathers them, and by the one that reads them. Servers send
//! what came.

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use treadle_compress::{Codec, Packer, Unpacker};
use treadle_memory::{MemoryError, Pool};
use treadle_rows::{Batch, Wanted};
use treadle_shuffle::block::{ALIGNMENT, HEADER, Header, Table};
use treadle_shuffle::{ReadPiece, Transfer};
use treadle_types::Runs;

use crate::held::Held;
use crate::read_rows::{ReadRows, cut};
use crate::{Allocate, Arena, ArenaMemory, Failure, Source};

thread_local! {
    /// A thread writes maps one after another.
    static PACKER: RefCell<Option<Packer>> = const { RefCell::new(None) };
    static UNPACKER: RefCell<Unpacker> = RefCell::default();
}

/// The rows of a source, compressed after they were gathered.
pub struct Packed<'a> {
    /// What gathers them.
    pub source: &'a dyn Source,
    /// What compresses them.
    pub codec: Codec,
}

impl Source for Packed<'_> {
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure> {
        let arenas = self.source.gather(transfer, groups, allocate)?;
        let arenas = arenas.into_iter().enumerate();
        PACKER.with_borrow_mut(|packer| {
            let packer = match packer {
                Some(packer) if packer.codec() == self.codec => packer,
                _ => packer.insert(Packer::new(self.codec)),
            };
            let arenas = arenas.map(|(group, arena)| {
                pack(arena, packer, |length| allocate(group, length))
                    .map_err(|error| Failure::Source(Box::new(error)))
            });
            arenas.collect()
        })
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        self.source.count_in(partitions)
    }
}

/// A batch with compressed pieces.
struct Repacked {
    header: Header,
    table: Table,
    rows: Vec<u8>,
}

/// The same batches with compressed pieces, in memory of their own; or as they were, if none is smaller so.
fn pack(
    mut arena: Arena,
    packer: &mut Packer,
    allocate: impl FnOnce(usize) -> Result<ArenaMemory, MemoryError>,
) -> Result<Arena, MemoryError> {
    let bytes = &*arena.memory.as_mut_slice();
    let packed = arena.batches.iter().map(|batch| {
        let end = batch.offset + batch.header.length() as usize;
        repack(&batch.header, &bytes[batch.offset..end], packer)
    });
    let packed: Vec<Option<Repacked>> = packed.collect();
    if packed.iter().all(Option::is_none) {
        return Ok(arena);
    }
    let mut end = 0;
    let place = |(before, packed): (&Batch, &Option<Repacked>)| {
        let header = packed
            .as_ref()
            .map_or(before.header, |packed| packed.header);
        let offset = usize::next_multiple_of(end, ALIGNMENT);
        end = offset + header.length() as usize;
        Batch { offset, header }
    };
    let batches: Vec<Batch> = arena.batches.iter().zip(&packed).map(place).collect();
    let mut memory = allocate(end)?;
    let mut rest = memory.as_mut_slice();
    let mut written = 0;
    for ((batch, before), packed) in batches.iter().zip(&arena.batches).zip(packed) {
        let (gap, after) = rest.split_at_mut(batch.offset - written);
        gap.fill(0);
        let (place, after) = after.split_at_mut(batch.header.length() as usize);
        match packed {
            Some(packed) => packed.write(place),
            None => place.copy_from_slice(&bytes[before.offset..][..place.len()]),
        }
        written = batch.offset + place.len();
        rest = after;
    }
    Ok(Arena { memory, batches })
}

/// A batch with its pieces compressed; `None`: none is smaller so.
fn repack(header: &Header, batch: &[u8], packer: &mut Packer) -> Option<Repacked> {
    let table = &batch[HEADER..][..header.table_length() as usize];
    let table = Table::new(header, Bytes::copy_from_slice(table)).ok()?;
    let rows = &batch[header.rows_offset() as usize..];
    let mut packed = Vec::new();
    let mut ends = Vec::with_capacity(table.len());
    for piece in table.pieces() {
        let piece = &rows[piece.offset as usize..][..piece.tally.bytes as usize];
        if !packer.pack(piece, &mut packed) {
            packed.extend_from_slice(piece);
        }
        ends.push(u32::try_from(packed.len()).ok()?);
    }
    // With a table that is longer, what is saved may be nothing.
    let (packed_header, table) = table.packed(header, &ends).ok()?;
    (packed_header.length() < header.length()).then_some(Repacked {
        header: packed_header,
        table,
        rows: packed,
    })
}

impl Repacked {
    fn write(&self, place: &mut [u8]) {
        let (head, rest) = place.split_at_mut(HEADER);
        head.copy_from_slice(&self.header.encode());
        let table = self.table.as_bytes();
        let (entries, rest) = rest.split_at_mut(table.len());
        entries.copy_from_slice(table);
        let (padding, rows) = rest.split_at_mut(rest.len() - self.rows.len());
        padding.fill(0);
        rows.copy_from_slice(&self.rows);
    }
}

/// Pieces that came, with their rows. Compressed ones are in one piece of memory. What cannot be unpacked
/// has no rows.
///
/// # Errors
/// There is no memory.
pub(crate) fn unpacked(
    pieces: &[ReadPiece],
    rows: Vec<Bytes>,
    held: &Arc<Held>,
) -> Result<ReadRows, MemoryError> {
    if pieces.iter().all(|piece| piece.packed == 0) {
        return Ok(ReadRows::new(pieces.to_vec(), rows));
    }
    let bytes = match &rows[..] {
        [all] if pieces.len() > 1 => cut(pieces, all.clone()),
        _ => rows,
    };
    // How long the rows are is what a server says. So it is compared with what came before there is
    // memory for them.
    let length = |(piece, bytes): (&ReadPiece, &Bytes)| {
        let length = usize::try_from(piece.bytes).ok()?;
        let is_packed = piece.packed > 0 && Unpacker::check(bytes, length).is_ok();
        is_packed.then_some(length)
    };
    let lengths: Vec<Option<usize>> = pieces.iter().zip(&bytes).map(length).collect();
    let mut buffer = Pool::global().buffer(lengths.iter().flatten().sum())?;
    let mut rest = buffer.as_mut_slice();
    let unpacked = UNPACKER.with_borrow_mut(|unpacker| {
        let unpack = |(length, bytes): (&Option<usize>, &Bytes)| {
            let (place, after) = std::mem::take(&mut rest).split_at_mut(length.unwrap_or(0));
            rest = after;
            length.is_some() && unpacker.unpack(bytes, place).is_ok()
        };
        lengths
            .iter()
            .zip(&bytes)
            .map(unpack)
            .collect::<Vec<bool>>()
    });
    let mut rows = held.charge(buffer.into_bytes());
    let piece = |(at, (piece, bytes)): (usize, (&ReadPiece, Bytes))| {
        let own = rows.split_to(lengths[at].unwrap_or(0));
        match piece.packed {
            0 => bytes,
            _ if unpacked[at] => own,
            _ => Bytes::new(),
        }
    };
    let rows = pieces.iter().zip(bytes).enumerate().map(piece);
    Ok(ReadRows::new(pieces.to_vec(), rows.collect()))
}

#[cfg(test)]
mod tests;
