//! The pieces of many batches in one order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::iter::from_fn;

use treadle_shuffle::ReadPiece;
use treadle_shuffle::block::Header;

use crate::run::Batch;

/// All pieces with their partitions and rows, in the order in which they are written: by partition and
/// batch. The pieces of a batch are in order, so batches are merged. A list of small pieces would take more
/// memory than their rows.
pub(crate) fn in_order(batches: &[Batch]) -> impl Iterator<Item = (u32, ReadPiece, &[u8])> {
    let mut sources = Vec::with_capacity(batches.len());
    for (batch, bytes, table) in batches {
        let Ok(header) = Header::decode(bytes) else {
            // Not reached: it was decoded when it came.
            continue;
        };
        sources.push((
            *batch,
            &bytes[header.rows_offset() as usize..],
            table.pieces().peekable(),
        ));
    }
    sources.sort_unstable_by_key(|(batch, ..)| *batch);
    let firsts = (0..).zip(&mut sources);
    let firsts =
        firsts.filter_map(|(at, (.., pieces))| Some(Reverse((pieces.peek()?.partition, at))));
    let mut next: BinaryHeap<Reverse<(u32, usize)>> = firsts.collect();
    from_fn(move || {
        let mut first = next.peek_mut()?;
        let Reverse((partition, at)) = *first;
        let (batch, rows, pieces) = &mut sources[at];
        let piece = pieces.next()?;
        match pieces.peek() {
            Some(piece) => *first = Reverse((piece.partition, at)),
            None => drop(PeekMut::pop(first)),
        }
        let read = ReadPiece::new(*batch, &piece);
        let start = piece.offset as usize;
        Some((
            partition,
            read,
            &rows[start..start + read.stored() as usize],
        ))
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use treadle_shuffle::block::TableBuilder;
    use treadle_shuffle::{AttemptId, BatchId, Generation, ShuffleId, Tally};

    use super::*;

    /// A batch of a map with a row of one byte, the map's number, for each of these partitions.
    fn batch(map: u8, partitions: &[u32]) -> Batch {
        let id = BatchId {
            map: map.into(),
            attempt: AttemptId(1),
            number: 0,
        };
        let mut builder = TableBuilder::new(ShuffleId(1), Generation(1), id, 1);
        for &partition in partitions {
            builder.push(
                partition,
                &Tally {
                    rows: 1,
                    bytes: 1,
                    digest: 0,
                },
            );
        }
        let (header, table) = builder.finish().unwrap();
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(table.as_bytes());
        bytes.resize(header.rows_offset() as usize, 0);
        bytes.resize(header.length() as usize, map);
        (id, Bytes::from(bytes), table)
    }

    #[test]
    fn pieces_are_in_the_order_of_partitions_and_then_of_maps() {
        let batches = [
            batch(3, &[0, 1, 7]),
            batch(1, &[1, 9]),
            batch(2, &[]),
            batch(4, &[1]),
        ];
        let found = in_order(&batches);
        let found: Vec<(u32, u32, &[u8])> = found
            .map(|(partition, piece, rows)| (partition, piece.batch.map, rows))
            .collect();
        let expected: [(u32, u32, &[u8]); 6] = [
            (0, 3, &[3]),
            (1, 1, &[1]),
            (1, 3, &[3]),
            (1, 4, &[4]),
            (7, 3, &[3]),
            (9, 1, &[1]),
        ];
        assert_eq!(found, expected);
        assert_eq!(in_order(&[]).count(), 0);
    }
}
